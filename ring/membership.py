"""Membership: which hosts of the swarm are alive, from what they announce and from the connections to them.

A pure machine: announcements, connections and the time go in, transitions come out. `now` is a monotonic clock in
seconds; no host's wall clock is ever compared with another's. See docs/control-plane.md for the table of states.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from ring.announcement import Announcement, SignedAnnouncement
from ring.identity import PeerId
from ring.membership_events import (
    HostDied,
    HostJoined,
    HostLeft,
    HostRecovered,
    HostRefused,
    HostRestarted,
    HostSuspected,
    HostUpdated,
    MembershipEvent,
)

MAX_HOSTS = 4096
"""Most hosts, and most tombstones, that are remembered."""

LifeState = Literal["unknown", "alive", "suspected", "dead", "left"]


@dataclass(frozen=True, slots=True)
class MembershipTimings:
    """When silence becomes suspicion and suspicion death. All in seconds.

    Attributes:
        announce_seconds: between two announcements of a host, in a swarm of up to `full_rate_hosts`.
        silent_seconds: without an announcement, until a host is suspected.
        suspect_seconds: from suspicion to death; also the silence that suspects a host whose connection was lost.
        loading_seconds: replaces silent_seconds for a host that said it is loading a block: loading can
            starve a process of its event loop, and slow is not dead.
        stall_seconds: a tick that comes this much after its deadline shows that this process stood still, so
            that every host is given this much time to be heard before it is judged.
        full_rate_hosts: in larger swarms all announcements and all limits on silence slow down in
            proportion, so that the announcements a host receives per second stay bounded.

    """

    announce_seconds: float = 1.0
    silent_seconds: float = 6.0
    suspect_seconds: float = 2.0
    loading_seconds: float = 90.0
    stall_seconds: float = 2.0
    full_rate_hosts: int = 64


@dataclass(slots=True)
class _Host:
    signed: SignedAnnouncement
    lived_at: float
    suspected_at: float | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Tombstone:
    count: tuple[int, int]
    state: Literal["dead", "left"]


class Membership:
    """The hosts of one swarm as one of them sees them.

    A host is known by its PeerId, so that one which restarts or moves stays one. Of two announcements the one with
    the higher (incarnation, sequence) counts and the other is dropped; the same holds against a dead or
    departed host's last one, which is kept as a tombstone for as long as the bound allows.
    """

    def __init__(self, self_peer: PeerId, swarm: str, timings: MembershipTimings) -> None:
        """Start with nobody. `self_peer` is never suspected: whoever runs this code lives."""
        self._self = self_peer
        self._swarm = swarm
        self._timings = timings
        self._hosts: dict[PeerId, _Host] = {}
        self._tombstones: OrderedDict[PeerId, _Tombstone] = OrderedDict()
        self._full = False

    def is_news(self, announcement: Announcement) -> bool:
        """Return whether `heard` would take the announcement: of this swarm, and newer than all of this host."""
        known = self._last_count(announcement.peer)
        return announcement.swarm == self._swarm and (known is None or _count(announcement) > known)

    def heard(self, signed: SignedAnnouncement, now: float) -> list[MembershipEvent]:
        """Take an announcement, another host's or one's own; what is stale or of another swarm has no effect."""
        announcement = signed.announcement
        if not self.is_news(announcement):
            return []
        peer = announcement.peer
        if announcement.state == "leaving":
            return self._bury(peer, "left", _count(announcement), "it said that it leaves")
        host = self._hosts.get(peer)
        if host is None:
            return self._admit(signed, now)
        before = host.signed.announcement
        suspected = host.suspected_at is not None
        host.signed, host.lived_at, host.suspected_at = signed, now, None
        if announcement.incarnation > before.incarnation:
            return [
                HostRestarted(peer, f"incarnation {before.incarnation} became {announcement.incarnation}")
            ]
        events: list[MembershipEvent] = [HostRecovered(peer, "it was heard again")] if suspected else []
        changed = _changes(before, announcement)
        if changed:
            events.append(HostUpdated(peer, ", ".join(changed)))
        return events

    def connected(self, peer: PeerId, now: float) -> list[MembershipEvent]:
        """A connection to the peer stands: a suspected host lives."""
        host = self._hosts.get(peer)
        if host is None:
            return []
        host.lost = False
        if host.suspected_at is None:
            return []
        host.lived_at, host.suspected_at = now, None
        return [HostRecovered(peer, "it is connected again")]

    def disconnected(self, peer: PeerId, now: float) -> list[MembershipEvent]:
        """The last connection to the peer is gone: suspected at once."""
        host = self._hosts.get(peer)
        if host is None or peer == self._self:
            return []
        host.lost = True
        if host.suspected_at is not None:
            return []
        host.suspected_at = now
        return [HostSuspected(peer, "its connection was lost")]

    def tick(self, now: float) -> list[MembershipEvent]:
        """Judge silence. Call it at `next_deadline` at the latest; earlier and more often does no harm."""
        deadline = self.next_deadline()
        if deadline is not None and now - deadline > self._timings.stall_seconds:
            self._forgive(now)
        events: list[MembershipEvent] = []
        for peer, host in sorted(self._hosts.items()):
            if now >= self._deadline(peer, host):
                events += self._silent(peer, host, now)
        return events

    def alive(self) -> tuple[SignedAnnouncement, ...]:
        """Return the newest announcement of every host that is not dead and has not left, sorted by peer."""
        return tuple(host.signed for _, host in sorted(self._hosts.items()))

    def suspected(self) -> tuple[PeerId, ...]:
        """Return the suspected hosts, sorted; `alive` contains them until they die."""
        return tuple(sorted(peer for peer, host in self._hosts.items() if host.suspected_at is not None))

    def get(self, peer: PeerId) -> SignedAnnouncement | None:
        """Return the newest announcement of a host that is alive or suspected."""
        host = self._hosts.get(peer)
        return None if host is None else host.signed

    def state(self, peer: PeerId) -> LifeState:
        """Return what is thought of the host."""
        host = self._hosts.get(peer)
        if host is not None:
            return "alive" if host.suspected_at is None else "suspected"
        tombstone = self._tombstones.get(peer)
        return "unknown" if tombstone is None else tombstone.state

    def silence(self, peer: PeerId, now: float) -> float | None:
        """Return the seconds since the host last showed that it lives; None when it is not among the living."""
        host = self._hosts.get(peer)
        return None if host is None else now - host.lived_at

    def announce_interval(self) -> float:
        """Return the seconds between one's own announcements; a leader keeps to `announce_seconds` whatever this says."""
        return self._timings.announce_seconds * self._pace()

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to judge; None while there is nobody to judge."""
        return min(
            (self._deadline(peer, host) for peer, host in self._hosts.items() if peer != self._self),
            default=None,
        )

    def _admit(self, signed: SignedAnnouncement, now: float) -> list[MembershipEvent]:
        peer, incarnation = signed.announcement.peer, signed.announcement.incarnation
        if len(self._hosts) >= MAX_HOSTS and peer != self._self:
            told, self._full = self._full, True
            return (
                []
                if told
                else [HostRefused(peer, f"the swarm has {MAX_HOSTS} hosts, and no more are kept track of")]
            )
        self._hosts[peer] = _Host(signed, now)
        tombstone = self._tombstones.pop(peer, None)
        if tombstone is None or tombstone.state == "left":
            return [HostJoined(peer, "first heard of" if tombstone is None else "it came back after leaving")]
        if incarnation > tombstone.count[0]:
            return [HostRestarted(peer, f"incarnation {tombstone.count[0]} died and became {incarnation}")]
        return [HostRecovered(peer, "it was heard again after it had been given up")]

    def _silent(self, peer: PeerId, host: _Host, now: float) -> list[MembershipEvent]:
        silence = f"nothing was heard of it for {now - host.lived_at:.1f} s"
        if host.suspected_at is not None:
            return self._bury(peer, "dead", _count(host.signed.announcement), silence)
        host.suspected_at = now
        return [HostSuspected(peer, silence)]

    def _bury(
        self, peer: PeerId, state: Literal["dead", "left"], count: tuple[int, int], reason: str
    ) -> list[MembershipEvent]:
        known = self._hosts.pop(peer, None) is not None
        self._full = self._full and not known
        self._tombstones[peer] = _Tombstone(count, state)
        self._tombstones.move_to_end(peer)
        if len(self._tombstones) > MAX_HOSTS:
            self._tombstones.popitem(last=False)
        if not known:
            return []
        return [HostDied(peer, reason) if state == "dead" else HostLeft(peer, reason)]

    def _last_count(self, peer: PeerId) -> tuple[int, int] | None:
        host = self._hosts.get(peer)
        if host is not None:
            return _count(host.signed.announcement)
        tombstone = self._tombstones.get(peer)
        return None if tombstone is None else tombstone.count

    def _deadline(self, peer: PeerId, host: _Host) -> float:
        if peer == self._self:
            return float("inf")
        if host.suspected_at is not None:
            return host.suspected_at + self._timings.suspect_seconds * self._pace()
        return host.lived_at + self._silence_limit(host)

    def _silence_limit(self, host: _Host) -> float:
        if host.lost:
            # Heard since, but maybe only what was under way when it died: it gets no long benefit of the doubt.
            return self._timings.suspect_seconds * self._pace()
        limit = self._timings.silent_seconds * self._pace()
        block = host.signed.announcement.block
        loading = block is not None and block.state == "loading"
        return max(limit, self._timings.loading_seconds) if loading else limit

    def _forgive(self, now: float) -> None:
        """Move every deadline to `stall_seconds` from now or later: what came in meanwhile is still to be read."""
        for peer, host in self._hosts.items():
            missing = now + self._timings.stall_seconds - self._deadline(peer, host)
            if missing > 0 and host.suspected_at is not None:
                host.suspected_at += missing
            elif missing > 0:
                host.lived_at += missing

    def _pace(self) -> float:
        return max(1.0, len(self._hosts) / self._timings.full_rate_hosts)


def _count(announcement: Announcement) -> tuple[int, int]:
    return announcement.incarnation, announcement.sequence


def _changes(old: Announcement, new: Announcement) -> list[str]:
    """Name the fields whose change matters; measurements drift all the time and count only by being there."""

    def matters(a: Announcement) -> dict[str, object]:
        return {
            "state": a.state,
            "leader": (a.leader, a.term),
            "plan": a.plan,
            "block": a.block and (a.block.plan, a.block.lo, a.block.hi, a.block.state),
            "model": a.model,
            "measured": bool(a.layer_ns),
            "edges": {peer for peer, _ in a.rtt_us},
            "memory_limit": a.memory_limit,
            "addresses": a.addresses,
            "version": (a.version, a.wire),
        }

    before, after = matters(old), matters(new)
    return [name for name, value in after.items() if value != before[name]]
