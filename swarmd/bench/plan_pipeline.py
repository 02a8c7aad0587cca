"""A ring with frames in flight, frame by frame: what the closed form of ring/pace.py is checked against.

A session as the data plane runs it: at most D frames under way, all of w tokens; the first wrong draft makes all later frames
worthless, which are computed all the same; the session learns of it when the frame before the wrong token returns, and
starts again there. Every stage computes one frame at a time and sends one at a time, first come first served.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from ring.drafting import ONE, survival
from ring.throughput import StageCost


@dataclass(frozen=True)
class SimulatedSession:
    """How a session uses a ring: see ring.pace.token_ps for the names."""

    width: int
    frames: int
    draft_ns: int
    chances: tuple[int, ...]


def simulated_token_ns(
    stages: Sequence[StageCost], session: SimulatedSession, chains: int, dice: Generator
) -> float:
    """Return the mean nanoseconds between two committed tokens over many chains of drafts."""
    ring = _Ring(stages, session.width)
    now, committed = 0, 0
    falling = [-chance for chance in survival(session.chances)]
    for drawn in dice.integers(ONE, size=chains):
        wrong = bisect_left(
            falling, -int(drawn)
        )  # the first draft that is not accepted: how many S(n) are above
        now = _run_chain(ring, session, now, (wrong - 1) // session.width)
        committed += wrong
    return now / committed


class _Ring:
    """Remembers until when each stage and each uplink is busy."""

    def __init__(self, stages: Sequence[StageCost], width: int) -> None:
        self._compute = [stage.compute_ns(width) for stage in stages]
        self._wire = [stage.wire_ns(width) for stage in stages]
        self._way = [stage.hop_ns(width) - wire for stage, wire in zip(stages, self._wire, strict=True)]
        self._computing, self._sending = [0] * len(stages), [0] * len(stages)

    def traverse(self, sent: int) -> int:
        """Send a frame into the ring at a time, none before the last one's; returns when it is back."""
        at = sent
        for stage in range(len(self._compute)):
            at = max(at, self._computing[stage]) + self._compute[stage]
            self._computing[stage] = at
            at = max(at, self._sending[stage]) + self._wire[stage]
            self._sending[stage] = at
            at += self._way[stage]
        return at


def _run_chain(ring: _Ring, session: SimulatedSession, now: int, last_useful: int) -> int:
    """Send frames until the one that ends the chain, number `last_useful`, is back; returns when that is."""
    back: list[int] = []
    drafted, end = now + (session.width - 1) * session.draft_ns, None
    while True:
        number = len(back)
        place_free = back[number - session.frames] if number >= session.frames else now
        sent = max(drafted, place_free)
        if end is not None and sent >= end:
            return end
        back.append(ring.traverse(sent))
        if number == last_useful:
            end = back[number]
        drafted = sent + session.width * session.draft_ns
