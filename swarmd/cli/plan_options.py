"""Options of `swarmd ctl plan` and `swarmd plan`, and what they lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ring.objective import KINDS
from swarmd.cli.plan_svg import plan_svg
from swarmd.what_if_form import NOTHING, WhatIf, WhatIfBad, read_what_if

_WITH = "vram=24,ms=0.4,rtt=20"

Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="HOST", help="If this host (an id, or its end) were gone. Repeatable."),
]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar=_WITH,
        help="If there were another host: GB, ms a layer, RTT in ms to the others; uplink=MBIT/S if that is to count."
        " Repeatable.",
    ),
]
ObjectiveKind = Annotated[
    str | None, typer.Option("--objective", help=f"If the ring were to be best at: {', '.join(KINDS)}.")
]
Model = Annotated[str | None, typer.Option("--model", metavar="ID", help="If this model were served.")]
Context = Annotated[int | None, typer.Option("--context", help="If sessions had so many tokens.")]
Sessions = Annotated[int | None, typer.Option("--sessions", help="If there were so many sessions at once.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the terms that the prediction consists of.")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Check the signatures, and compute the ring again from the plan's inputs."),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the ring into a file.")]


def what_if_of(
    without: Sequence[str] | None,
    extra: Sequence[str] | None,
    objective: str | None,
    model: str | None,
    context: int | None,
    sessions: int | None,
) -> WhatIf:
    """Return the options as a what-if; NOTHING where there are none.

    Raises:
        typer.BadParameter: one of them cannot be read.

    """
    try:
        return read_what_if(
            {
                "without": list(without or ()),
                "with": [_extra(text) for text in extra or ()],
                "objective": objective,
                "model": model,
                "context": context,
                "sessions": sessions,
            }
        )
    except WhatIfBad as error:
        raise typer.BadParameter(str(error)) from error


def check_signed(what_if: WhatIf, verify: bool) -> None:
    """Raise typer.BadParameter where a plan is to be verified that nobody has signed."""
    if verify and what_if != NOTHING:
        raise typer.BadParameter("a hypothetical plan is signed by nobody", param_hint="--verify")


def draw(answer: Mapping[str, Any], file: Path | None) -> None:
    """Write the picture of a plan, if asked to and there is one. Raises OSError."""
    if file is not None and answer.get("plan") is not None:
        file.write_text(plan_svg(answer), encoding="utf-8", errors="replace")


def _extra(text: str) -> dict[str, float]:
    """Return "vram=24,ms=0.4,rtt=20" as a map. Raises typer.BadParameter."""
    fields: dict[str, float] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            separator = ""
        if not separator or name.strip() in fields:
            raise typer.BadParameter(f"{text!r} is not of the form {_WITH}", param_hint="--with")
        fields[name.strip()] = number
    return fields
