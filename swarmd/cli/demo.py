"""`swarmd demo`: a whole swarm on this machine, with proof that it does what it says."""

from __future__ import annotations

import json
from typing import Annotated, Any

import trio
import typer

from swarmd import logs
from swarmd.cli import plan_tables, tables
from swarmd.cli.options import AsJson, MaxTokens
from swarmd.exit_status import ExitStatus
from swarmd.printable import printable

_DEFAULT_MAX_TOKENS = 200


def demo(
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to ask the model.")] = None,
    max_tokens: MaxTokens = _DEFAULT_MAX_TOKENS,
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="How many daemons to start.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Start a swarm of real daemons here, run one model across them, and compare with the model run whole."""
    logs.configure("warning", "auto")

    from swarmd.demo import run_demo  # brings the runtimes along, which take seconds to import

    result = trio.run(run_demo, hosts, prompt, max_tokens, None, _tell_nothing if as_json else _tell)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        for line in _summary(result):
            print(line)
    if not result["ok"]:
        raise typer.Exit(ExitStatus.FAILED)


def _tell(kind: str, fields: dict[str, Any]) -> None:
    """Show how far the demo is; the outcome of its checks stands in the summary."""
    match kind:
        case "stage":
            print(f"\n» {fields['text']}", flush=True)
        case "peers":
            tables.show(tables.peers(fields))
        case "plan":
            tables.show(plan_tables.plan(fields))
        case "text":
            print(printable(fields["delta"]), end="", flush=True)


def _tell_nothing(kind: str, fields: dict[str, Any]) -> None:
    """With --json only the result counts."""


def _summary(result: dict[str, Any]) -> list[str]:
    return [
        "",
        f"identical: {'yes' if result['identical'] else 'NO'}",
        f"receipts {result['receipts_verified']}/{len(result['ring'])} verified",
        f"{result['tokens']} tokens, {result['tok_s']:.1f} tok/s (predicted {result['predicted_tok_s']:.1f} tok/s)",
    ]
