"""SessionStats: what a session did, and how its speculation went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_DEPTHS = 16
"""Drafts this far or farther from the last committed token are counted together."""

_FIRST_CONTEXT = 64


class Tried(NamedTuple):
    """How many drafts were judged, and how many of them the model chose too.

    at: the first draft of the bucket: its distance from the last committed token (from 1), or its position's context.
    """

    at: int
    judged: int
    accepted: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """How a session's speculation went.

    A draft is judged if all drafts of its chain before it were accepted; those behind the first wrong one are wasted.

    Attributes:
        drafter: name of the drafter.
        drafted, judged, accepted: tokens that were drafted and sent, of these judged, of these accepted.
        sent, wasted: decode frames that were sent, of these fenced off by a wrong draft or the end before them.
        mean_depth_milli: frames under way when a frame was sent, itself included: 1,000 times the mean over decode frames.
        confidence_milli: 1,000 times the drafter's share of right drafts as last seen (see ring.depth).
        by_depth, by_context: judged and accepted drafts by distance from the last committed token, and by context length.

    """

    drafter: str = "none"
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    sent: int = 0
    wasted: int = 0
    mean_depth_milli: int = 0
    confidence_milli: int = 0
    by_depth: tuple[Tried, ...] = ()
    by_context: tuple[Tried, ...] = ()

    def to_map(self) -> dict[str, object]:
        """Return the statistics as they cross the wire."""
        fields: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "by_depth": [list(row) for row in self.by_depth],
            "by_context": [list(row) for row in self.by_context],
        }


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session did. Times in microseconds from its start; ttft_us is 0 while no token is committed.

    frames: frames whose answers stand; traversals: answers that committed a token.
    """

    prompt_tokens: int
    tokens: int
    frames: int
    ttft_us: int
    total_us: int
    traversals: int = 0
    speculation: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def tokens_per_traversal(self) -> float:
        """Return the mean number of tokens that an answer committed."""
        return self.tokens / self.traversals if self.traversals else 0.0


class SpeculationTally:
    """Counts what SpeculationStats reports."""

    def __init__(self, drafter: str) -> None:
        self._drafter = drafter
        self._drafted = self._sent = self._wasted = self._depths = 0
        self._by_depth: dict[int, list[int]] = {}
        self._by_context: dict[int, list[int]] = {}

    def sent(self, drafts: int, depth: int) -> None:
        """A decode frame with so many drafts was sent, as the depth-th under way."""
        self._sent += 1
        self._drafted += drafts
        self._depths += depth

    def wasted(self, frames: int) -> None:
        """So many frames under way were fenced off."""
        self._wasted += frames

    def judged(self, distance: int, position: int, accepted: bool) -> None:
        """The draft for `position`, the distance-th beyond the last committed token when it was made, was judged."""
        for buckets, at in (
            (self._by_depth, min(distance, MAX_DEPTHS)),
            (self._by_context, _context_bucket(position)),
        ):
            bucket = buckets.setdefault(at, [0, 0])
            bucket[0] += 1
            bucket[1] += accepted

    def stats(self, confidence: float) -> SpeculationStats:
        """Return the counts so far."""
        by_depth, by_context = _tried(self._by_depth), _tried(self._by_context)
        return SpeculationStats(
            drafter=self._drafter,
            drafted=self._drafted,
            judged=sum(row.judged for row in by_depth),
            accepted=sum(row.accepted for row in by_depth),
            sent=self._sent,
            wasted=self._wasted,
            mean_depth_milli=round(1000 * self._depths / self._sent) if self._sent else 0,
            confidence_milli=round(1000 * confidence),
            by_depth=by_depth,
            by_context=by_context,
        )


def _context_bucket(position: int) -> int:
    """Return 0 below 64, else the power of two at or below the position."""
    return 0 if position < _FIRST_CONTEXT else 1 << (position.bit_length() - 1)


def _tried(buckets: dict[int, list[int]]) -> tuple[Tried, ...]:
    return tuple(Tried(at, *counts) for at, counts in sorted(buckets.items()))
