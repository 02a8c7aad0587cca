"""`swarmd plan`: plans from files, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from registry.models import ModelRow, load_registry
from swarmd.cli import plan_tables, tables
from swarmd.cli.options import AsJson, ConfigFile, Settings, load_configuration
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


def plan(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.json", help="A saved plan, or a request as `POST /plan` takes it."),
    ],
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
    """Show a plan that was saved by `swarmd ctl plan --json`, or make one for the machines in a request, without a daemon."""
    what_if = what_if_of(without, extra, objective, model, context, sessions)
    check_signed(what_if, verify)
    from swarmd.plan_files import made_answer, read_plan_file, saved_answer  # heavy: not for every command

    held = read_plan_file(file)
    row = None if what_if.model is None else _row(what_if.model, config, settings)
    if held.is_plan:
        answer = saved_answer(held.document, what_if, row, verify)
    elif verify:
        raise typer.BadParameter("a request is signed by nobody", param_hint="--verify")
    else:
        answer = made_answer(held.data, what_if, row)
    draw(answer, svg)
    if as_json:
        print(json.dumps(answer.get("tool") or answer, ensure_ascii=False))
    else:
        tables.show(plan_tables.plan_answer(answer, explain=explain))


def _row(model: str, config: Path | None, settings: list[str] | None) -> ModelRow:
    registry = load_configuration(config, settings).config.registry
    return load_registry(registry.path, registry.publishers).row(model)
