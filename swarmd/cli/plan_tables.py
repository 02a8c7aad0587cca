"""Plans for people: the ring, what it yields, where its time goes, and what would be different."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from swarmd.cli.tables import grid, milliseconds, seconds, size, text
from swarmd.logs import short_peer

Document = Mapping[str, Any]


def plan_answer(answer: Mapping[str, Any], *, explain: bool = False) -> RenderableType:
    """Lay out the answer to the operation `plan`."""
    document = answer.get("plan")
    if document is None:
        return text(f"no plan: {answer.get('reason') or 'no reason given'}")
    is_hypothetical = answer.get("state") == "hypothetical"
    title = "hypothetical: nothing of this is carried out" if is_hypothetical else _title(answer)
    parts: list[RenderableType] = [Text(title, style="bold"), plan(document)]
    if explain:
        parts.append(explained(document))
    if is_hypothetical:
        parts.extend(text(line) for line in _compared(answer.get("now"), document))
    if verified := answer.get("verified"):
        parts.append(text(f"verified: {verified}"))
    parts.extend(text(f"assumed: {line}") for line in answer.get("assumed") or ())
    return Group(*parts)


def plan(document: Document) -> RenderableType:
    """Lay out a plan document."""
    ring = document["ring"]
    rows = [
        (
            short_peer(stage["peer"]),
            f"[{stage['lo']}, {stage['hi']})",
            f"{size(stage['memory_bytes'])} of {size(stage['memory_limit'])}",
            size(stage["load_bytes"]),
            milliseconds(stage["compute_ns"] / 1e6),
            milliseconds(2 * stage["hop_us"] / 1e3) if len(ring) > 1 else "-",
            _percent(stage_ns(stage), document["circuit_ns"]),
        )
        for stage in ring
    ]
    headings = ("host", "layers", "memory", "to load", "compute", "RTT to next", "share of T")
    parts: list[RenderableType] = [
        text(_origin(document)),
        grid(headings, rows),
        *(text(line) for line in _yield(document)),
    ]
    if left_out := document.get("left_out"):
        reasons = [(short_peer(entry["peer"]), short_peer(entry["reason"])) for entry in left_out]
        parts.append(grid(("left out", "why"), reasons))
    return Group(*parts)


def explained(document: Document) -> RenderableType:
    """Lay out the terms of which T consists, and where τ comes from."""
    ring, circuit = document["ring"], document["circuit_ns"]
    rows = [
        (
            short_peer(stage["peer"]),
            str(stage["hi"] - stage["lo"]),
            *(milliseconds(ns / 1e6) for ns in _terms(stage)),
            milliseconds(stage_ns(stage) / 1e6),
            _percent(stage_ns(stage), circuit),
        )
        for stage in ring
    ]
    sums = [sum(terms) for terms in zip(*(_terms(stage) for stage in ring), strict=True)]
    layers = str(sum(stage["hi"] - stage["lo"] for stage in ring))
    total = ("in all", layers, *(milliseconds(ns / 1e6) for ns in sums), milliseconds(circuit / 1e6), "100 %")
    headings = ("host", "layers", "n·t + tail", "one way", "wire", "overhead", "sum", "share of T")
    busiest = max(ring, key=_busy_ns)
    cause = "uplink" if busiest["wire_ns"] > busiest["compute_ns"] else "compute"
    lines = (
        f"T: a frame of {_tokens(document['frame_width'])} once around, the sums of all stages",
        f"τ: {milliseconds(document['bottleneck_ns'] / 1e6)}, the {cause} of {short_peer(busiest['peer'])}:"
        " frames follow each other at this distance at best",
        f"a frame at a time gives {1e9 / max(circuit, 1):.2f} frames/s; {_pace(document)}",
    )
    return Group(grid(headings, [*rows, total]), *(text(line) for line in lines))


def stage_ns(stage: Document) -> int:
    """Return a stage's part of T in nanoseconds."""
    return sum(_terms(stage))


def _terms(stage: Document) -> tuple[int, int, int, int]:
    return stage["compute_ns"], stage["hop_us"] * 1000, stage["wire_ns"], stage["overhead_ns"]


def _busy_ns(stage: Document) -> int:
    return max(int(stage["compute_ns"]), int(stage["wire_ns"]))


def _title(answer: Mapping[str, Any]) -> str:
    return f"plan {answer.get('id') or 'for a request'} ({answer.get('state') or 'active'})"


def _origin(document: Document) -> str:
    sessions = f"{document['sessions']} session{'s' * (document['sessions'] != 1)}"
    if document["context"] > 1:  # a tool gives the size of a whole session's cache instead
        sessions += f" of {document['context']} tokens"
    origin = f"model {document['model']}; best at {document['objective']['kind']}; {sessions}"
    if document["leader"]:
        origin += f"; term {document['term']}, leader {short_peer(document['leader'])}"
    return origin


def _yield(document: Document) -> Iterable[str]:
    yield (
        f"T {milliseconds(document['circuit_ns'] / 1e6)}, τ {milliseconds(document['bottleneck_ns'] / 1e6)};"
        f" {_pace(document)}"
    )
    speed = f"predicted {document['millitok_s'] / 1000:.1f} tok/s"
    if document["sessions"] > 1:
        speed += f", {document['aggregate_millitok_s'] / 1000:.1f} tok/s of {document['sessions']} sessions together"
    prompt = document["objective"]["prompt_tokens"]
    yield f"{speed}; {_short_time(document['ttft_ns'])} to the first token of a prompt of {prompt}"
    if document["load_ns"]:
        yield f"loading takes about {_short_time(document['load_ns'])}"


def _pace(document: Document) -> str:
    if not document["drafter"]:
        return "plain decoding"
    width, frames = document["frame_width"], document["frames_in_flight"]
    return f"drafter {document['drafter']}, {frames} frames of {_tokens(width)} in flight"


def _compared(now: Document | None, then: Document) -> Sequence[str]:
    if now is None:
        return ["now: there is no ring"]
    figures = (
        ("tok/s", "millitok_s", 1e3),
        ("ms around (T)", "circuit_ns", 1e6),
        ("ms at the bottleneck (τ)", "bottleneck_ns", 1e6),
        ("s to the first token", "ttft_ns", 1e9),
    )
    return [
        f"{now[key] / unit:.2f} {name} now → {then[key] / unit:.2f} then ({_change(now[key], then[key])})"
        for name, key, unit in figures
    ]


def _change(before: int, after: int) -> str:
    return "-" if not before else f"{100 * (after - before) / before:+.0f} %"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count != 1)}"


def _short_time(ns: int) -> str:
    return milliseconds(ns / 1e6) if ns < 10**9 else f"{ns / 1e9:.1f} s" if ns < 10**11 else seconds(ns / 1e9)
