"""`swarmd bench`: measure what swarmd claims, on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from swarmd import logs
from swarmd.bench.catalogue import BENCHES
from swarmd.bench.report import Check, Report
from swarmd.cli import tables
from swarmd.cli.options import AsJson
from swarmd.exit_status import ExitStatus


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which; without it, all there are are listed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what swarmd claims, against a baseline in the same run; exit status 1 if a figure misses its limit."""
    if name is None:
        _list(as_json)
        return
    if name not in BENCHES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(sorted(BENCHES))}", param_hint="NAME")
    logs.configure("warning", "auto")
    report = BENCHES[name].run(lambda text: print(f"» {text}", file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps(report.document(), allow_nan=False))
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(ExitStatus.FAILED)


def _list(as_json: bool) -> None:
    summaries = {name: bench.summary for name, bench in sorted(BENCHES.items())}
    if as_json:
        print(json.dumps({"benches": summaries}))
    else:
        tables.show(tables.grid(("bench", "what it measures"), list(summaries.items())))


def _show(report: Report) -> None:
    parts = [
        Group(Text(table.title, style="bold"), tables.grid(table.headings, table.rows))
        for table in report.tables
    ]
    rows = [
        (check.name, _figure(check, check.value), _limit(check), "ok" if check.ok else "MISSED")
        for check in report.checks
    ]
    tables.show(
        Group(*parts, Text("checks", style="bold"), tables.grid(("check", "value", "limit", ""), rows))
    )


def _limit(check: Check) -> str:
    return f"{'≤' if check.bound == 'at_most' else '≥'} {_figure(check, check.limit)}"


def _figure(check: Check, value: float) -> str:
    return f"{value:.4g} {check.unit}".rstrip()
