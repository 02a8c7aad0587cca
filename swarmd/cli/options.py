"""Options that several commands share, and the configuration that they lead to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from conf.load import Loaded, load
from swarmd.control import SOCKET_NAME

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file instead of the one that is found."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key, such as swarm.name=lab. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text for people.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens to generate.")]


def load_configuration(
    file: Path | None, settings: Sequence[str] | None, flags: Mapping[str, str] | None = None
) -> Loaded:
    """Load the configuration as the command line asks for it.

    Args:
        file: --config.
        settings: --set KEY=VALUE, each.
        flags: dotted key → text, of flags with a name of their own; they win over --set.

    Raises:
        ConfigError: some settings are wrong; names all of them.
        typer.BadParameter: a --set is not KEY=VALUE.

    """
    chosen = dict(_pair(setting) for setting in settings or ())
    return load(flags={**chosen, **(flags or {})}, environ=os.environ, file=file, cwd=Path.cwd())


def control_socket(file: Path | None, settings: Sequence[str] | None) -> Path:
    """Return where the daemon of this configuration listens for local programs."""
    return load_configuration(file, settings).state_dir / SOCKET_NAME


def _pair(setting: str) -> tuple[str, str]:
    key, separator, value = setting.partition("=")
    if not separator or not key.strip():
        raise typer.BadParameter(f"{setting!r} is not KEY=VALUE, such as swarm.name=lab", param_hint="--set")
    return key.strip(), value.strip()
