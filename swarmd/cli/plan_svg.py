"""A ring as a picture: hosts on a circle as large as their blocks, hops as thick as their share of T."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from swarmd.cli.plan_tables import stage_ns
from swarmd.logs import short_peer

_INK, _QUIET, _PAPER = "#1f2933", "#7b8794", "#ffffff"
_HEAD, _HOST, _BUSIEST, _HOP = "#2f6f4f", "#3b6ea5", "#b5482f", "#9fb3c8"
_LEAST_RADIUS, _MOST_RADIUS = 26.0, 58.0
_MARGIN, _SIDE = 125.0, 270.0  # above and beside the circle, for the names of the hosts
_LONGEST_NAME = 20
_LINE = 18.0
_SIDEWAYS = 0.3  # a label further to the side begins, or ends, at its host
_MOST_LEFT_OUT = 12

Point = tuple[float, float]


def plan_svg(answer: Mapping[str, Any]) -> str:
    """Return the picture of the plan in an answer to the operation `plan`, which must hold one."""
    document = answer["plan"]
    ring = document["ring"]
    circle = max(150.0, len(ring) * 2.6 * _MOST_RADIUS / math.tau)
    left_out = _left_out(document)
    width = 2 * (circle + _SIDE)
    height = 2 * (circle + _MARGIN) + 40 + _LINE * len(left_out)
    centre = (width / 2, circle + _MARGIN + 30)
    places = [
        _on_circle(centre, circle if len(ring) > 1 else 0, place, len(ring)) for place in range(len(ring))
    ]
    layers = sum(stage["hi"] - stage["lo"] for stage in ring)
    radii = [_radius((stage["hi"] - stage["lo"]) / layers) for stage in ring]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
        f' height="{height:.0f}" font-family="system-ui, sans-serif" font-size="13" text-anchor="middle">',
        f"<title>{_say(_title(answer))}</title>",
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="7" refY="5" markerWidth="14" markerHeight="14"'
        f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 10 5 0 10 2.5 5z" fill="{_QUIET}"/></marker></defs>',
        _words((width / 2, 30), _title(answer), size=16, weight=600),
        *_hops(document, radii, centre, circle),
        *_hosts(document, places, radii, centre),
        *_middle(document, centre if len(ring) > 1 else (centre[0], centre[1] + radii[0] + 60)),
        *(
            _words((width / 2, height - 20 - _LINE * (len(left_out) - 1 - row)), line, colour=_QUIET)
            for row, line in enumerate(left_out)
        ),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _title(answer: Mapping[str, Any]) -> str:
    kind = "hypothetical ring" if answer.get("state") == "hypothetical" else "ring"
    return f"{answer['plan']['model']}: {kind}"


def _on_circle(centre: Point, radius: float, place: float, count: int) -> Point:
    angle = math.tau * place / count - math.tau / 4  # the head is at the top, frames go clockwise
    return centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)


def _radius(share: float) -> float:
    """The area of a host is as its share of the layers, within limits."""
    return _LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * math.sqrt(share)


def _hops(document: Mapping[str, Any], radii: list[float], centre: Point, circle: float) -> Iterable[str]:
    ring = document["ring"]
    if len(ring) == 1:
        return
    for place, stage in enumerate(ring):
        following = (place + 1) % len(ring)
        hop_ns = stage_ns(stage) - stage["compute_ns"]
        thickness = 1.5 + 10 * hop_ns / max(document["circuit_ns"], 1)
        start = _beside(centre, circle, place, len(ring), radii[place])
        end = _beside(centre, circle, following, len(ring), -radii[following] - 8)
        yield (
            f'<path d="M{start[0]:.1f} {start[1]:.1f} A{circle:.1f} {circle:.1f} 0 0 1 {end[0]:.1f} {end[1]:.1f}"'
            f' fill="none" stroke="{_HOP}" stroke-width="{thickness:.1f}" marker-end="url(#tip)"/>'
        )
        label = _on_circle(centre, circle + 34, 2 * place + 1, 2 * len(ring))
        yield _words((label[0], label[1] + 4), _ms(hop_ns), colour=_QUIET)


def _beside(centre: Point, circle: float, place: int, count: int, away: float) -> Point:
    """Return the point on the circle that lies `away` from a host: behind it, or before it where that is negative."""
    turn = 2 * math.asin(min(1.0, abs(away) / (2 * circle))) * count / math.tau
    return _on_circle(centre, circle, place + math.copysign(turn, away), count)


def _hosts(
    document: Mapping[str, Any], places: list[Point], radii: list[float], centre: Point
) -> Iterable[str]:
    ring = document["ring"]
    busiest = max(range(len(ring)), key=lambda place: max(ring[place]["compute_ns"], ring[place]["wire_ns"]))
    for place, (stage, (x, y), radius) in enumerate(zip(ring, places, radii, strict=True)):
        colour = _BUSIEST if place == busiest and len(ring) > 1 else _HEAD if place == 0 else _HOST
        used = stage["memory_bytes"] / max(stage["memory_limit"], 1)
        about = f"{stage['peer']}: layers [{stage['lo']}, {stage['hi']}), {100 * used:.0f} % of its memory"
        yield f"<g><title>{_say(about)}</title>"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"/>'
        yield _words((x, y - 3), f"{stage['lo']}–{stage['hi'] - 1}", colour=_PAPER, weight=600)
        yield _words((x, y + 14), _ms(stage["compute_ns"]), colour=_PAPER)
        yield _label(x, y, radius, centre, " · ".join([_short(stage["peer"]), *_roles(place, ring, busiest)]))
        yield "</g>"


def _roles(place: int, ring: Sequence[Mapping[str, Any]], busiest: int) -> list[str]:
    several = len(ring) > 1
    roles = (
        ("head", place == 0),
        ("tail", place == len(ring) - 1),
        ("slowest", several and place == busiest),
    )
    return [name for name, holds in roles if holds]


def _short(peer: str) -> str:
    name = short_peer(peer)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _label(x: float, y: float, radius: float, centre: Point, words: str) -> str:
    """Write beside a host, away from the middle, where no hop runs."""
    away = math.hypot(x - centre[0], y - centre[1])
    right, down = ((x - centre[0]) / away, (y - centre[1]) / away) if away else (0.0, -1.0)
    anchor = "middle" if abs(right) < _SIDEWAYS else "start" if right > 0 else "end"
    at = x + right * (radius + 9), y + down * (radius + 14) + 5
    return _words(at, words, weight=600, anchor=anchor)


def _middle(document: Mapping[str, Any], centre: Point) -> Iterable[str]:
    x, y = centre
    yield _words((x, y - 14), f"{document['millitok_s'] / 1000:.1f} tok/s", size=26, weight=700)
    yield _words((x, y + 10), f"T {_ms(document['circuit_ns'])} · τ {_ms(document['bottleneck_ns'])}")
    yield _words((x, y + 29), f"first token {_ms(document['ttft_ns'])}", colour=_QUIET)


def _left_out(document: Mapping[str, Any]) -> list[str]:
    left_out = document.get("left_out") or []
    lines = [f"{short_peer(entry['peer'])}: {short_peer(entry['reason'])}" for entry in left_out]
    more = len(lines) - _MOST_LEFT_OUT
    lines = lines[:_MOST_LEFT_OUT] + ([f"and {more} more"] if more > 0 else [])
    return ["left out", *lines] if lines else []


def _ms(ns: int) -> str:
    return (
        f"{ns / 1e6:.2f} ms" if ns < 10**7 else f"{ns / 1e6:.0f} ms" if ns < 10**10 else f"{ns / 1e9:.0f} s"
    )


def _words(
    at: Point, words: str, *, size: int = 13, weight: int = 400, colour: str = _INK, anchor: str = "middle"
) -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}"'
        f" fill={quoteattr(colour)}>{_say(words)}</text>"
    )


def _say(words: str) -> str:
    # What cannot be printed need not even be allowed in XML.
    return escape("".join(letter if letter.isprintable() else "�" for letter in words))
