"""SwarmView: who is in the swarm and who leads it, as this host sees it: the shell around membership and election."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ring.announcement import Announcement, AnnouncementError, SignedAnnouncement, verified
from ring.election import (
    BecameLeader,
    Candidate,
    Election,
    ElectionEvent,
    ElectionTimings,
    Following,
    LeaderLost,
    SteppedDown,
)
from ring.envelope import EnvelopeError
from ring.identity import PeerId
from ring.membership import LifeState, Membership, MembershipTimings
from ring.membership_events import (
    HostDied,
    HostJoined,
    HostLeft,
    HostRecovered,
    HostRefused,
    HostRestarted,
    HostSuspected,
    MembershipEvent,
)
from swarmd.activity import Activity
from swarmd.changes import Changes
from swarmd.facts import OwnFacts

_TICK = 0.25  # s
LEADER_INTERVAL = MembershipTimings().announce_seconds  # its announcements renew its lease


class SwarmView:
    """Feeds both machines, remembers when membership last changed, and wakes the services that decide."""

    def __init__(self, peer: PeerId, swarm: str, facts: OwnFacts, activity: Activity) -> None:
        self.peer = peer
        self.swarm = swarm
        self._facts = facts
        self._activity = activity
        now = trio.current_time()
        self._membership = Membership(peer, swarm, MembershipTimings())
        self._election = Election(peer, ElectionTimings())
        self.stable_since = now
        self.changes = Changes()

    @property
    def leader(self) -> PeerId | None:
        """The leader that this host follows, or None."""
        return self._election.leader

    @property
    def term(self) -> int:
        """The leader's term; 0 while there is none."""
        return self._election.term

    @property
    def is_leader(self) -> bool:
        """Whether this host leads."""
        return self._election.is_leader

    @property
    def seniority(self) -> int:
        """The term in force when this host joined."""
        return self._election.seniority

    def alive(self) -> tuple[SignedAnnouncement, ...]:
        """Return the announcements of all hosts that live, sorted by peer."""
        return self._membership.alive()

    def announcement(self, peer: PeerId) -> Announcement | None:
        """Return what a live host last announced, or None if it does not live."""
        signed = self._membership.get(peer)
        return None if signed is None else signed.announcement

    def life(self, peer: PeerId) -> LifeState:
        """Return whether a host is alive, suspected, dead, left or unknown."""
        return self._membership.state(peer)

    def heard_seconds_ago(self, peer: PeerId) -> float | None:
        """Return the age of a live host's last announcement in seconds."""
        return self._membership.silence(peer, trio.current_time())

    def announce_interval(self) -> float:
        """Return the seconds between two announcements in a swarm of this size."""
        return LEADER_INTERVAL if self.is_leader else self._membership.announce_interval()

    def heard_bytes(self, data: bytes) -> bool:
        """Take a signed announcement as it came over the network; returns whether it is sound."""
        try:
            signed = verified(data)
        except (AnnouncementError, EnvelopeError) as error:
            self._activity.note("announcement_refused", str(error))
            return False
        if signed.announcement.peer == self.peer:
            self._hear_own(signed.announcement)
        else:
            self.heard(signed)
        return True

    def _hear_own(self, said: Announcement) -> None:
        """Notice when somebody else speaks with this host's key: the others cannot tell the two apart."""
        if self._membership.is_news(said):
            self._activity.note(
                "identity_in_use",
                "another daemon uses this host's identity.key, or an older copy of state.dir was restored: "
                "stop the other one, or remove identity.key here",
            )

    def heard(self, signed: SignedAnnouncement) -> None:
        """Take a verified announcement."""
        now, said = trio.current_time(), signed.announcement
        if not self._membership.is_news(said):
            return
        self._apply(self._membership.heard(signed, now))
        if said.peer != self.peer:
            self._apply_election(self._election.observe(said, now))
        self.changes.notify()

    def connected(self, peer: PeerId) -> None:
        """A connection to a host has come up."""
        self._apply(self._membership.connected(peer, trio.current_time()))

    def disconnected(self, peer: PeerId) -> None:
        """The last connection to a host is gone."""
        self._apply(self._membership.disconnected(peer, trio.current_time()))

    async def run(self) -> None:
        """Let time pass in both machines for as long as the daemon lives."""
        while True:
            now = trio.current_time()
            self._apply(self._membership.tick(now))
            self._apply_election(self._election.tick(now, self._candidates()))
            await trio.sleep(_TICK)

    def _candidates(self) -> list[Candidate]:
        """Return who may lead: the hosts that have sized and timed the model, for nobody else can plan."""
        return [
            Candidate(signed.announcement.peer, signed.announcement.seniority)
            for signed in self.alive()
            if signed.announcement.layer_ns and signed.announcement.state != "leaving"
        ]

    def _apply(self, events: Sequence[MembershipEvent]) -> None:
        for event in events:
            if event.peer == self.peer:
                continue  # this host knows of itself
            match event:
                case HostJoined(peer=peer, reason=reason):
                    self._moved("host_joined", peer, reason)
                case HostRestarted(peer=peer, reason=reason):
                    self._moved("host_restarted", peer, reason)
                    self._gone(peer, reason)
                case HostSuspected(peer=peer, reason=reason):
                    self._activity.note("host_suspected", reason, peer=peer)
                case HostRecovered(peer=peer, reason=reason):
                    self._activity.note("host_recovered", reason, peer=peer)
                case HostDied(peer=peer, reason=reason) | HostLeft(peer=peer, reason=reason):
                    self._moved("host_died" if isinstance(event, HostDied) else "host_left", peer, reason)
                    self._gone(peer, reason)
                case HostRefused(peer=peer, reason=reason):
                    self._activity.note("host_refused", reason, peer=peer)
        if events:
            self.changes.notify()

    def _moved(self, event: str, peer: PeerId, reason: str) -> None:
        self.stable_since = trio.current_time()
        self._activity.note(event, reason, peer=peer)

    def _gone(self, peer: PeerId, reason: str) -> None:
        self._apply_election(self._election.host_gone(peer, trio.current_time(), reason))

    def _apply_election(self, events: Sequence[ElectionEvent]) -> None:
        for event in events:
            match event:
                case BecameLeader(term=term):
                    self._activity.note("leading", term=term)
                case Following(leader=leader, term=term):
                    self._activity.note("following", leader=leader, term=term)
                case SteppedDown(term=term, to=to):
                    self._activity.note("stepped_down", f"host {to} comes first", term=term)
                case LeaderLost(reason=reason):
                    self._activity.note("leader_lost", reason)
        if events:
            self._facts.update(leader=self.leader or "", term=self.term)
            self.changes.notify()
