"""Tables for people. Every cell is plain text: what peers say about themselves is never read as markup."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ByteSize
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmd.logs import short_peer
from swarmd.printable import printable

Render = Callable[[Mapping[str, Any]], RenderableType]
_SILENCE_WORTH_TELLING = 5.0  # s
_WIDTH_OF_FILES = 200  # columns, where the output is not a terminal and so has no width of its own


def show(renderable: RenderableType) -> None:
    """Print to stdout."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
    Console(file=sys.stdout, width=width, highlight=False).print(renderable)


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table with one heading a column."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(text(cell) for cell in row))
    return table


def status(answer: Mapping[str, Any]) -> RenderableType:
    """Lay out the answer to the operation `status`."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in _status_lines(answer):
        table.add_row(Text(name, style="bold"), text(value))
    log = answer.get("log") or []
    if not log:
        return table
    entries = [(f"{seconds(entry['ago_s'])} ago", entry["event"], entry["reason"]) for entry in log]
    return Group(table, Text(), grid(("when", "event", "reason"), entries))


def peers(answer: Mapping[str, Any]) -> RenderableType:
    """Lay out the answer to the operation `peers`."""
    headings = (
        "host",
        "state",
        "connection",
        "RTT",
        "memory",
        "free",
        "per layer",
        "block",
        "version",
        "heard",
        "note",
    )
    return grid(headings, [_peer_row(peer) for peer in answer["peers"]])


def _status_lines(answer: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "host", f"{answer['peer']}  (swarmd {answer['version']}, up {seconds(answer['uptime_s'])})"
    yield (
        "swarm",
        f"{answer['swarm']}, {answer['hosts']} host{'s' * (answer['hosts'] != 1)}; {_leader(answer['leader'])}",
    )
    yield "state", answer["state"]
    if waiting := answer.get("waiting_for"):
        yield "waiting for", waiting
    for address in answer["addresses"]:
        yield "address", address
    memory = answer["memory"]
    yield (
        "device",
        f"{answer['device'] or 'not known yet'}; memory {size(memory.get('total'))}, limit {size(memory['limit'])}, "
        f"free {size(memory['free'])}",
    )
    model = answer["model"]
    runtime = model["runtime"] or "not open yet"
    if better := model.get("runtime_instead_of"):
        runtime += f" (no {better} is installed)"
    yield "model", f"{model['id']}, {model['layers']} layers, runtime {runtime}, {model['path']}"
    if model.get("numerics"):
        yield "numerics", model["numerics"]
    working = answer.get("working")
    if working and working["silent_s"] >= _SILENCE_WORTH_TELLING:
        yield "runtime", f"{working['doing']}, without progress for {seconds(working['silent_s'])}"
    if block := answer.get("block"):
        yield "block", _block(block)
    if line := answer.get("plan"):
        speed = f"{line['predicted_tok_s']:.1f} tok/s predicted"
        yield (
            "plan",
            f"{line['id']} {line['state']}, term {line['term']}, head {short_peer(line['head'])}, {speed}",
        )
    sessions = answer["sessions"]
    yield "sessions", f"{sessions['coordinated']} coordinated, {sessions['held']} held"


def _leader(leader: Mapping[str, Any] | None) -> str:
    if leader is None:
        return "no leader yet"
    return f"leader {'this host' if leader['me'] else short_peer(leader['peer'])}, term {leader['term']}"


def _block(block: Mapping[str, Any]) -> str:
    text = f"layers [{block['lo']}, {block['hi']}) {block['state']}"
    if block["state"] == "loading" and block.get("total"):
        text += f", {size(block['loaded'])} of {size(block['total'])}"
    if "tensors" in block:
        text += (
            f", {block['tensors']} tensors, {size(block['weight_bytes'])}; {size(block['bytes_read'])} read"
        )
    if foreign := block.get("foreign_layers"):
        text += f"; holds foreign layers {foreign}"
    return text


def _peer_row(peer: Mapping[str, Any]) -> Sequence[str]:
    heard = peer.get("heard_ago_s")
    return (
        short_peer(peer["peer"]) + (" (this host)" if peer["me"] else ""),
        peer["state"],
        "-" if peer["me"] else peer["connection"],
        milliseconds(peer.get("rtt_ms")),
        size(peer.get("memory_limit")),
        size(peer.get("memory_free")),
        milliseconds(peer.get("layer_ms")),
        peer.get("block") or "-",
        peer.get("version") or "-",
        "-" if heard is None or peer["me"] else f"{seconds(heard)} ago",
        peer.get("note") or "",
    )


def text(value: object) -> Text:
    """Return a cell that is never read as markup."""
    return Text(printable(str(value)))


def size(count: int | None) -> str:
    """Return bytes for people."""
    return "-" if not count else ByteSize(count).human_readable(separator=" ")


def milliseconds(value: float | None) -> str:
    """Return milliseconds for people."""
    return "-" if value is None else f"{value:.2f} ms"


def seconds(value: float) -> str:
    """Return a duration for people."""
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
