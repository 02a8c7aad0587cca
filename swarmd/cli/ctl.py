"""`swarmd ctl`: what the daemon on this machine knows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import trio
import typer

from swarmd import control
from swarmd.cli import tables
from swarmd.cli.options import AsJson, ConfigFile, Settings, control_socket

ctl_app = typer.Typer(name="ctl", help="Look into the daemon on this machine.", no_args_is_help=True)


@ctl_app.command()
def status(as_json: AsJson = False, config: ConfigFile = None, settings: Settings = None) -> None:
    """Show what this host does, and what it waits for."""
    answer = _ask("status", control_socket(config, settings))
    _show(answer, as_json, tables.status)


@ctl_app.command()
def peers(as_json: AsJson = False, config: ConfigFile = None, settings: Settings = None) -> None:
    """Show the hosts of the swarm."""
    answer = _ask("peers", control_socket(config, settings))
    _show(answer, as_json, tables.peers)


@ctl_app.command()
def plan(as_json: AsJson = False, config: ConfigFile = None, settings: Settings = None) -> None:
    """Show the ring: which host serves which layers, and how fast that should be."""
    answer = _ask("plan", control_socket(config, settings))
    _show(answer, as_json, tables.plan_answer)


def _ask(op: str, socket: Path) -> dict[str, Any]:
    return trio.run(partial(control.request, socket, op))


def _show(answer: dict[str, Any], as_json: bool, table: tables.Render) -> None:
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        tables.show(table(answer))
