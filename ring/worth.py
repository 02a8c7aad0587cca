"""Worth: what a ring's circuit time and bottleneck are worth under an objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ring.objective import Objective
from ring.pace import WIDTHS, pace_at
from ring.throughput import prefill_frames, prefill_ns

_LONGEST_NS = 1 << 62


@dataclass(frozen=True)
class Worth:
    """Values rings; a smaller value is better.

    Attributes:
        objective: what is to be best.
        sessions: how many sessions run at once.

    """

    objective: Objective
    sessions: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Frame widths that may be best; others never are."""
        return WIDTHS if self._drafts else (1,)

    @property
    def heeds_bottleneck(self) -> bool:
        """Whether the bottleneck changes the value at all."""
        return self._drafts or (self.objective.kind == "aggregate" and self.sessions > 1)

    @property
    def _drafts(self) -> bool:
        return self.objective.kind != "latency" and bool(self.objective.drafters)

    def value(self, width: int, circuit_ns: int, bottleneck_ns: int) -> int:
        """Return the picoseconds between two committed tokens at the best pace with frames of `width` tokens: of one
        session, or, for the objective "aggregate", of all. It never falls when one of the times grows.
        """
        sessions = self.sessions if self.objective.kind == "aggregate" else 1
        drafters = self.objective.drafters if self._drafts else ()
        options = [None, *drafters] if width == 1 else list(drafters)
        context = self.objective.prompt_tokens
        return min(
            pace_at(width, circuit_ns, bottleneck_ns, drafter, context=context, sessions=sessions).token_ps
            for drafter in options
        )

    def largest_bottleneck(self, width: int, circuit_ns: int, below: int) -> int:
        """Return the largest bottleneck time with which a ring of that circuit time has a value less than `below`; 0 if
        there is none.
        """
        return _largest(lambda bottleneck: self.value(width, circuit_ns, bottleneck) < below)

    def largest_circuit(self, width: int, bottleneck_ns: int, below: int) -> int:
        """Return the same for the circuit time, given the bottleneck."""
        return _largest(lambda circuit: self.value(width, circuit, bottleneck_ns) < below)

    def first_token(self) -> FirstToken:
        """Return what values rings by the time to the first token."""
        return FirstToken(*prefill_frames(self.objective.prompt_tokens))


@dataclass(frozen=True)
class FirstToken:
    """Values rings by the nanoseconds to the first token of a prompt that goes around in `frames` frames of `width`."""

    width: int
    frames: int

    @property
    def widths(self) -> tuple[int, ...]:
        """The frame width of the prompt."""
        return (self.width,)

    @property
    def heeds_bottleneck(self) -> bool:
        """Whether the bottleneck changes the value at all."""
        return self.frames > 1

    def value(self, width: int, circuit_ns: int, bottleneck_ns: int) -> int:
        """Return the nanoseconds to the first token."""
        return prefill_ns(circuit_ns, bottleneck_ns, self.frames)

    def largest_bottleneck(self, width: int, circuit_ns: int, below: int) -> int:
        """See Worth.largest_bottleneck."""
        return _largest(lambda bottleneck: self.value(width, circuit_ns, bottleneck) < below)

    def largest_circuit(self, width: int, bottleneck_ns: int, below: int) -> int:
        """See Worth.largest_circuit."""
        return _largest(lambda circuit: self.value(width, circuit, bottleneck_ns) < below)


def _largest(holds: Callable[[int], bool]) -> int:
    """Return the largest integer in [1, _LONGEST_NS] for which what holds for smaller ones holds as well; 0 if none."""
    if not holds(1):
        return 0
    low, high = 1, 2
    while high < _LONGEST_NS and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
