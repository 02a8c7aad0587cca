"""ExclusionList: which hosts a refusal keeps out of the next plans, why, and for how long (what does not load is
planned around, invariant I4).
"""

from __future__ import annotations

from dataclasses import dataclass

from ring.identity import PeerId

MAX_EXCLUDED = 4096
"""Most hosts that are remembered; the one whose exclusion ends first gives way."""


@dataclass(frozen=True, slots=True)
class ExclusionTimings:
    """How long a refusal counts: first_seconds, doubled with each further one, up to longest_seconds."""

    first_seconds: float = 5.0
    longest_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class _Exclusion:
    incarnation: int
    reason: str
    until: float
    seconds: float


class ExclusionList:
    """Hosts that refused a plan or failed in one. A restart, or a plan that succeeds with the host, clears its name."""

    def __init__(self, timings: ExclusionTimings) -> None:
        """Start with nobody excluded."""
        self._timings = timings
        self._excluded: dict[PeerId, _Exclusion] = {}

    def refused(self, peer: PeerId, incarnation: int, reason: str, now: float) -> None:
        """Exclude the host from now on: twice as long as the last time while it stays in the same incarnation."""
        before = self._excluded.get(peer)
        seconds = self._timings.first_seconds
        if before is not None and before.incarnation == incarnation:
            seconds = min(2 * before.seconds, self._timings.longest_seconds)
        elif before is None and len(self._excluded) >= MAX_EXCLUDED:
            del self._excluded[min(self._excluded, key=lambda known: (self._excluded[known].until, known))]
        self._excluded[peer] = _Exclusion(incarnation, reason, now + seconds, seconds)

    def seen(self, peer: PeerId, incarnation: int) -> None:
        """Forget the host's refusals if it has restarted since."""
        known = self._excluded.get(peer)
        if known is not None and incarnation > known.incarnation:
            del self._excluded[peer]

    def served(self, peer: PeerId) -> None:
        """Forget the host's refusals: a plan has been completed with it."""
        self._excluded.pop(peer, None)

    def excluded(self, now: float) -> tuple[tuple[PeerId, str], ...]:
        """Return (peer, reason) of the hosts to leave out of a plan made now, sorted by peer."""
        return tuple((peer, e.reason) for peer, e in sorted(self._excluded.items()) if now < e.until)

    def next_end(self, now: float) -> float | None:
        """Return when the next host may be planned with again; None while nobody is excluded."""
        return min((e.until for e in self._excluded.values() if now < e.until), default=None)
