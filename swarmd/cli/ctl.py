"""`swarmd ctl`: what the daemon on this machine knows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import trio
import typer

from swarmd import control
from swarmd.cli import plan_tables, tables
from swarmd.cli.options import AsJson, ConfigFile, Settings, control_socket
from swarmd.cli.plan_options import (
    Context,
    Explain,
    Model,
    ObjectiveKind,
    Sessions,
    Svg,
    Verify,
    With,
    Without,
    check_signed,
    draw,
    what_if_of,
)
from swarmd.what_if_form import NOTHING, write_what_if

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
def plan(
    without: Without = None,
    extra: With = None,
    objective: ObjectiveKind = None,
    model: Model = None,
    context: Context = None,
    sessions: Sessions = None,
    explain: Explain = False,
    verify: Verify = False,
    svg: Svg = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Show the ring: which host serves which layers, and how fast that should be; or what it would be if ….

    With --without, --with, --objective, --model, --context or --sessions the ring is hypothetical.
    """
    what_if = what_if_of(without, extra, objective, model, context, sessions)
    check_signed(what_if, verify)
    fields = {} if what_if == NOTHING else {"what_if": write_what_if(what_if)}
    answer = _ask("plan", control_socket(config, settings), **fields)
    if verify and answer.get("plan") is not None:
        from swarmd.plan_files import verified  # heavy: not for every command

        answer["verified"] = verified(answer["plan"])
    draw(answer, svg)
    _show(answer, as_json, partial(plan_tables.plan_answer, explain=explain))


def _ask(op: str, socket: Path, **fields: Any) -> dict[str, Any]:
    return trio.run(partial(control.request, socket, op, **fields))


def _show(answer: dict[str, Any], as_json: bool, table: tables.Render) -> None:
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        tables.show(table(answer))
