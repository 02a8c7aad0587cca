"""The annotated swarmd.toml that comes with swarmd."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def template_text() -> str:
    """Return the annotated configuration, in which every key stands with its default.

    Raises:
        OSError: the installation is incomplete.

    """
    installed = _HERE / "swarmd.toml"  # the wheel puts it here
    path = installed if installed.exists() else _HERE.parent / "swarmd.toml"
    return path.read_text(encoding="utf-8")
