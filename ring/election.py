"""Election: who plans for the swarm. A lease, without a quorum: a side that is cut off goes on with what it has.

A pure machine like ring/membership.py; `now` is a monotonic clock in seconds. docs/control-plane.md tells what is
guaranteed and what is not. In short: a term is the pair (number, leader). One number has one leader wherever news
travels within the timings; where it does not (a partition, two founders that have not met), two leaders may
take the same number, and when they meet the worse one yields and the better one takes a fresh number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ring.announcement import Announcement
from ring.identity import PeerId

UNSETTLED = 2**62
"""The seniority of a host that has not followed or led anybody yet: behind all others."""

MAX_TERM = 2**48
"""A term beyond this is nobody's honest count and is not listened to."""
FIRST_TERM_LIMIT = 2**32
"""The highest term that a host believes as the first one it hears of: it leaves room for all that follow."""
TERM_LEAP = 2**16
"""How far a term may lie above the highest known. Elections count by one; who leaps further makes terms up."""


@dataclass(frozen=True, slots=True)
class ElectionTimings:
    """All in seconds.

    Attributes:
        lease_seconds: how long a leader is followed after its last announcement. Four announcements: three may be lost.
        found_seconds: how long a host that starts listens for a leader before it may found a swarm, and how long one
            that has got its seniority lets the others hear of it before it may succeed a leader. More than the
            time between announcements and the time that they travel.
        patience_seconds: how long others wait for a live candidate whose turn it is and who does not lead. More than
            it takes to notice that a host is dead, else hosts that notice it at different times stand side by side.
        stall_seconds: this long without a tick shows that this process stood still. The leader then has as long
            again to be heard, as its announcements may have come in meanwhile and be unread.

    """

    lease_seconds: float = 4.0
    found_seconds: float = 2.0
    patience_seconds: float = 15.0
    stall_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live host that may lead. The total order is (seniority, peer); the lowest comes first."""

    peer: PeerId
    seniority: int


@dataclass(frozen=True, slots=True)
class Following:
    """Whom this host follows, in which term: another leader than before, or the same in a higher term."""

    leader: PeerId
    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """The host itself leads in `term`. A leader may say so again with a higher term; its older term is void then."""

    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """The host itself led in `term` and yields to the leader `to`; Following comes next."""

    term: int
    to: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """Nobody is followed any more: `leader` is gone, fell silent, or gave up leading."""

    leader: PeerId
    term: int
    reason: str


ElectionEvent = Following | BecameLeader | SteppedDown | LeaderLost


@dataclass(frozen=True, slots=True)
class _Rumour:
    """A term that others follow or followed, and until when its leader may still be heard itself."""

    term: int
    leader: str
    until: float


class Election:
    """One host's view of who leads.

    Feed it every announcement that membership found to be news, every death and leave, and ticks; announce `leader`,
    `term` and `seniority`, at once after BecameLeader and before acting on it. A new object, and so a restarted host, leads and follows nobody.
    """

    def __init__(self, self_peer: PeerId, timings: ElectionTimings) -> None:
        """Start as a host that knows nobody; the time until it may found begins with the first input."""
        self._self = self_peer
        self._timings = timings
        self._leader: Candidate | None = None
        self._term = 0
        self._highest = 0
        self._lease_end = 0.0
        self._last_leader: PeerId | None = None
        self._silent: PeerId | None = None
        self._ticked_at: float | None = None
        self._stands_at = 0.0
        self._rumour: _Rumour | None = None
        self._awaited: tuple[PeerId, float] | None = None
        self._passed: set[PeerId] = set()
        self._seniority = UNSETTLED

    @property
    def leader(self) -> PeerId | None:
        """Whom this host follows, itself included; None between leaders."""
        return None if self._leader is None else self._leader.peer

    @property
    def term(self) -> int:
        """The term it follows, or the last one it followed; it never falls. 0: none yet."""
        return self._term

    @property
    def is_leader(self) -> bool:
        """Whether this host leads."""
        return self.leader == self._self

    @property
    def seniority(self) -> int:
        """The term in force when this host joined (0 for a founder), fixed once known; UNSETTLED before."""
        return self._seniority

    def lease_left(self, now: float) -> float:
        """Return the seconds for which the leader is followed without being heard again; a leader's own never shrink."""
        if self._leader is None:
            return 0.0
        return self._timings.lease_seconds if self.is_leader else max(0.0, self._lease_end - now)

    def observe(self, announcement: Announcement, now: float) -> list[ElectionEvent]:
        """Take another host's announcement, which membership has found to be news."""
        self._begin(now)
        peer, claimed = announcement.peer, announcement.leader
        if peer == self._self:
            return []
        if announcement.term > self._credible():
            return []
        self._highest = max(self._highest, announcement.term)
        if peer == self._silent:
            self._silent = None
        if announcement.state == "leaving":
            return self.host_gone(peer, now, "it leaves")
        if claimed == peer:
            return self._claim(Candidate(peer, announcement.seniority), announcement.term, now)
        self._note_rumour(announcement.term, claimed, now)
        if peer == self.leader:
            return self._lose(f"it follows {claimed}" if claimed else "it follows nobody: it has restarted")
        return []

    def host_gone(self, peer: PeerId, now: float, reason: str) -> list[ElectionEvent]:
        """Take note that a host has died or left: it is followed, and waited for, no longer."""
        self._begin(now)
        if self._rumour is not None and self._rumour.leader == peer:
            self._rumour = _Rumour(self._rumour.term, peer, until=now)
        return self._lose(reason) if peer == self.leader and peer != self._self else []

    def tick(self, now: float, candidates: Sequence[Candidate]) -> list[ElectionEvent]:
        """Let the lease run out, and raise the term where that is this host's turn. Call it twice a second.

        `candidates` are all live hosts that may lead, suspected ones and this one (if it may) included: a host that is
        merely suspected may be raising the term itself.
        """
        self._begin(now)
        self._notice_standstill(now)
        events: list[ElectionEvent] = []
        if self._leader is not None and not self.is_leader and now >= self._lease_end:
            self._silent = self.leader
            events += self._lose(f"it was not heard for {self._timings.lease_seconds:.1f} s")
        if self._leader is None:
            return events + self._stand(now, candidates)
        return events + (self._outbid(now) if self.is_leader else [])

    def _claim(self, leader: Candidate, term: int, now: float) -> list[ElectionEvent]:
        """A host says that it leads itself: renew its lease, follow it, yield to it, or outdo it."""
        if term < self._term:
            return []
        if self._leader is not None and term == self._term and leader.peer != self._leader.peer:
            if self.is_leader and _order(self._own()) < _order(leader):
                return [self._raise(f"{leader.peer} leads in term {term} too, and comes later in the order")]
            if _order(self._leader) < _order(leader):
                return []
        old_leader, old_term, led = self.leader, self._term, self.is_leader
        self._leader, self._last_leader, self._term = leader, leader.peer, term
        self._lease_end = now + self._timings.lease_seconds
        self._awaited = None
        self._passed.clear()
        if self._rumour is not None and self._rumour.term <= term:
            self._rumour = None
        if self._seniority == UNSETTLED:
            # Nobody stands before the others can have heard of its seniority: they would not expect it to.
            self._seniority, self._stands_at = term, now + self._timings.found_seconds
        if (old_leader, old_term) == (leader.peer, term):
            return []
        reason = "its term is higher" if term > old_term else "it comes first in the order"
        following = Following(leader.peer, term, reason)
        return [SteppedDown(old_term, leader.peer, reason), following] if led else [following]

    def _note_rumour(self, term: int, leader: str, now: float) -> None:
        """Remember the highest term heard of at second hand, from its first mention on.

        Its leader has one lease to be heard itself. Only a higher term replaces it: otherwise stale followers of
        two dead leaders could keep everybody waiting by turns.
        """
        if term < self._term or (term == self._term and leader in ("", self._self, self._last_leader)):
            return
        if self._rumour is None or term > self._rumour.term:
            patience = 0.0 if leader == self._self else self._timings.lease_seconds
            self._rumour = _Rumour(term, leader, now + patience)

    def _stand(self, now: float, candidates: Sequence[Candidate]) -> list[ElectionEvent]:
        if now < self._stands_at or (self._rumour is not None and now < self._rumour.until):
            return []
        first = self._first(now, candidates)
        if first is None or first.peer != self._self:
            return []
        return [
            self._raise("no leader is left, and it comes first" if self._highest else "it founds the swarm")
        ]

    def _first(self, now: float, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return whose turn it is. One that does not take its turn within our patience is waited for no longer.

        Nor does anybody wait for a leader whose lease ran out to succeed itself, though it may still count as alive.
        """
        left = [c for c in candidates if c.peer != self._silent and c.peer not in self._passed]
        first = min(left, key=_order, default=None)
        if first is None:
            self._passed.clear()
            return None
        if self._awaited is None or self._awaited[0] != first.peer:
            self._awaited = (first.peer, now)
        elif first.peer != self._self and now - self._awaited[1] >= self._timings.patience_seconds:
            self._passed.add(first.peer)
        return first

    def _credible(self) -> int:
        """Return the highest term that is believed."""
        known = max(self._highest, self._term)
        return min(known + TERM_LEAP, MAX_TERM) if known else FIRST_TERM_LIMIT

    def _outbid(self, now: float) -> list[ElectionEvent]:
        """Take a fresh term when others hold to one as high as ours whose leader does not speak up: they may not go back."""
        rumour = self._rumour
        if rumour is None or rumour.term < self._term or now < rumour.until:
            return []
        whose = rumour.leader or "a leader that is gone"
        return [self._raise(f"others hold to term {rumour.term} of {whose}, which was not heard of")]

    def _raise(self, reason: str) -> BecameLeader:
        if self._seniority == UNSETTLED:
            self._seniority = self._highest
        self._term = self._highest = max(self._highest, self._term) + 1
        self._leader, self._last_leader = self._own(), self._self
        self._rumour, self._awaited = None, None
        self._passed.clear()
        return BecameLeader(self._term, reason)

    def _lose(self, reason: str) -> list[ElectionEvent]:
        lost, self._leader = self._leader, None
        return [] if lost is None else [LeaderLost(lost.peer, self._term, reason)]

    def _begin(self, now: float) -> None:
        if self._ticked_at is None:
            self._ticked_at, self._stands_at = now, now + self._timings.found_seconds

    def _notice_standstill(self, now: float) -> None:
        if self._ticked_at is not None and now - self._ticked_at > self._timings.stall_seconds:
            self._stands_at = now + self._timings.stall_seconds
            self._lease_end = max(self._lease_end, self._stands_at)
        self._ticked_at = now

    def _own(self) -> Candidate:
        return Candidate(self._self, self._seniority)


def _order(candidate: Candidate) -> tuple[int, PeerId]:
    return candidate.seniority, candidate.peer
