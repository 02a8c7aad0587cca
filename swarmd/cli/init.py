"""`swarmd init`: an annotated configuration and an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from conf.template import template_text
from swarmd.cli.options import load_configuration
from swarmd.state_dir import StateDir


class ConfigExists(Exception):
    """There is a configuration already. Edit it, choose another --path, or replace it with --force."""

    code: ClassVar[str] = "config_exists"


def init(
    path: Annotated[Path, typer.Option("--path", help="Where to write the configuration.")] = Path(
        "swarmd.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write an annotated swarmd.toml and create this host's identity key."""
    _write(path, template_text(), force=force)
    loaded = load_configuration(path, None)
    peer = StateDir.prepare(loaded.state_dir).host_key().peer
    print(f"wrote     {path}")
    print(f"identity  {peer}  (key: {loaded.state_dir / 'identity.key'})")
    print(f"next      swarmd join --config {path}")


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigExists(f"{path} exists already: edit it, or replace it with --force") from error
