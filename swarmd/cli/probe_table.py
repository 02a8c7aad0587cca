"""What `swarmd probe` has found, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmd.cli.tables import grid, milliseconds, size, text


def probe_table(answer: Mapping[str, Any]) -> RenderableType:
    """Lay out what `swarmd probe` has found."""
    model, memory, sizes, fits = answer["model"], answer["memory"], answer["sizes"], answer["fits"]
    lines = Table.grid(padding=(0, 2))
    lines.add_column()
    lines.add_column(overflow="fold")
    for name, value in (
        ("model", f"{model['id']}, {model['arch']}, {model['layers']} layers, runtime {model['runtime']}"),
        (
            "device",
            f"{answer['device']}; memory {size(memory['total'])}, free {size(memory['free'])}, "
            f"limit {size(memory['limit'])}",
        ),
        (
            "weights",
            f"{size(sizes['weights'])}: {size(sizes['layer'])} a layer, head {size(sizes['head'])}, "
            f"tail {size(sizes['tail'])}",
        ),
        (
            "a token",
            f"{size(sizes['kv_per_token'])} KV cache, {size(sizes['activation_per_token'])} between two hosts",
        ),
        ("speed", _probed_speed(answer)),
    ):
        lines.add_row(Text(name, style="bold"), text(value))
    rows = [
        (
            kind,
            f"{block['layers']} layers" if block["layers"] else "none fits",
            *(size(block[part]) for part in ("weights", "kv", "workspace")),
        )
        for kind, block in ((kind, fits[kind]) for kind in ("head", "middle", "tail"))
    ]
    whole = fits["whole"]
    rows.append(
        (
            "whole",
            "fits" if whole["fits"] else "does not fit",
            *(size(whole[p]) for p in ("weights", "kv", "workspace")),
        )
    )
    title = f"What fits, with {fits['sessions']} session{'s' * (fits['sessions'] != 1)} of {fits['context']} tokens"
    table = grid(("as", "fits", "weights", "KV cache", "workspace"), rows)
    return Group(lines, Text(), Text(title, style="bold"), table)


def _probed_speed(answer: Mapping[str, Any]) -> str:
    speed = answer["speed"]
    if speed is None:
        return f"not measured: {answer['not_measured']}"
    times = ", ".join(f"{milliseconds(ms)} for {width}" for width, ms in speed["layer_ms"].items())
    return (
        f"a layer takes {times} tokens; the tail {milliseconds(speed['tail_ms'])}; "
        f"all layers on this device alone {speed['whole_tok_s']:.1f} tok/s"
    )
