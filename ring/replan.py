"""Replan: whether another ring is so much better than the one that stands that changing to it pays."""

from __future__ import annotations

from dataclasses import dataclass

from ring.identity import PeerId
from ring.objective import Objective, ObjectiveKind
from ring.planner import RingPlan
from ring.throughput import NS_PER_SECOND

Assignment = tuple[tuple[PeerId, int, int], ...]
"""(host, lo, hi) of every stage, head first."""

_LOOKS = 2  # in a row that must find a gain: what was measured once may be noise


@dataclass(frozen=True, slots=True)
class Gain:
    """Another ring that pays.

    Attributes:
        percent: how much better it is, loading included.
        text: the same in words.

    """

    percent: int
    text: str


class Replanning:
    """Compares rings that could be with the one that stands, and decides when to change.

    Hysteresis keeps rings from alternating: the gain must be at least a given share, beyond what is lost while the
    new ring loads, and be found at two looks in a row.
    """

    def __init__(self, objective: Objective, least_gain: float) -> None:
        """`least_gain` is a share: 0.1 is a tenth."""
        self._objective = objective
        self._least_percent = round(100 * least_gain)
        self._found = 0

    def look(self, standing: RingPlan, proposed: RingPlan) -> Gain | None:
        """Return the gain if the proposed ring is to replace the standing one, both valued by what is measured now."""
        gain = self._gain(standing, proposed)
        self._found = 0 if gain is None else self._found + 1
        if gain is None or self._found < _LOOKS:
            return None
        self._found = 0
        return gain

    def reset(self) -> None:
        """Forget what was found: the ring that stands is another one."""
        self._found = 0

    def _gain(self, standing: RingPlan, proposed: RingPlan) -> Gain | None:
        if assignment_of(standing) == assignment_of(proposed):
            return None
        before, after = rate(standing, self._objective.kind), rate(proposed, self._objective.kind)
        horizon_ns = self._objective.horizon_s * NS_PER_SECOND
        if horizon_ns:
            after = after * max(0, horizon_ns - proposed.load_ns) // horizon_ns
        percent = 100 * after // max(before, 1) - 100
        if percent <= 0 or percent < self._least_percent:
            return None
        seconds = proposed.load_ns / NS_PER_SECOND
        return Gain(percent, f"another ring is {percent} % better, its loading of {seconds:.1f} s included")


def assignment_of(ring: RingPlan) -> Assignment:
    """Return who serves what."""
    return tuple((stage.peer, stage.lo, stage.hi) for stage in ring.stages)


def rate(ring: RingPlan, kind: ObjectiveKind) -> int:
    """Return what the objective makes large: thousandths of tokens, or of circuits, per second."""
    if kind == "latency":
        return 1000 * NS_PER_SECOND // max(ring.circuit_ns, 1)
    return ring.aggregate_millitok_s if kind == "aggregate" else ring.millitok_s
