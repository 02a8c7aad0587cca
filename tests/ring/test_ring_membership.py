from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from nacl.signing import SigningKey

import ring.membership
from ring.announcement import Announcement, BlockHeld, HostState, SignedAnnouncement
from ring.identity import PeerId, peer_id_of
from ring.membership import Membership, MembershipTimings
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

PEERS = sorted(peer_id_of(bytes(SigningKey(bytes([n]) * 32).verify_key)) for n in range(6))
SELF, A, B = PEERS[:3]
TIMINGS = MembershipTimings()


def announced(
    peer: PeerId, incarnation: int = 1, sequence: int = 1, state: HostState = "member", swarm: str = "home"
) -> SignedAnnouncement:
    announcement = Announcement(
        swarm=swarm,
        peer=peer,
        incarnation=incarnation,
        sequence=sequence,
        addresses=(),
        version="0.1.0",
        wire=1,
        state=state,
        seniority=0,
        leader="",
        term=0,
        plan="",
        device="cpu",
        memory_limit=1,
        memory_free=1,
        model="tale",
        layer_ns=((1, 100),),
        tail_ns=1,
        rtt_us=(),
        block=None,
        sessions=0,
    )
    return SignedAnnouncement(announcement, b"")


def loading(signed: SignedAnnouncement, loaded: int = 1) -> SignedAnnouncement:
    block = BlockHeld("p", "tale", 0, 2, "loading", loaded, 9)
    return SignedAnnouncement(replace(signed.announcement, block=block), b"")


def kinds(events: list[MembershipEvent]) -> list[type]:
    return [type(event) for event in events]


@pytest.fixture
def swarm() -> Membership:
    return Membership(SELF, "home", TIMINGS)


def test_a_host_joins_once_and_is_listed_with_its_newest_announcement(swarm: Membership) -> None:
    assert kinds(swarm.heard(announced(A), 0)) == [HostJoined]
    assert swarm.heard(announced(A, sequence=2), 1) == []
    assert swarm.alive() == (announced(A, sequence=2),)
    assert swarm.state(A) == "alive"
    assert swarm.state(B) == "unknown"


def test_the_own_host_is_listed_and_never_suspected(swarm: Membership) -> None:
    assert kinds(swarm.heard(announced(SELF), 0)) == [HostJoined]
    assert swarm.disconnected(SELF, 1) == []
    assert swarm.next_deadline() is None
    assert swarm.tick(1000) == []
    assert swarm.alive() == (announced(SELF),)


def test_hosts_are_listed_in_the_order_of_their_ids(swarm: Membership) -> None:
    for peer in reversed(PEERS):
        swarm.heard(announced(peer), 0)
    assert [signed.announcement.peer for signed in swarm.alive()] == PEERS


def test_another_swarms_announcement_is_dropped(swarm: Membership) -> None:
    stranger = announced(A, swarm="away")
    assert not swarm.is_news(stranger.announcement)
    assert swarm.heard(stranger, 0) == []
    assert swarm.alive() == ()


@pytest.mark.parametrize("stale", [(2, 5), (2, 4), (1, 9)])
def test_a_stale_announcement_has_no_effect(swarm: Membership, stale: tuple[int, int]) -> None:
    swarm.heard(announced(A, 2, 5), 0)
    assert not swarm.is_news(announced(A, *stale).announcement)
    assert swarm.heard(announced(A, *stale), 3) == []
    assert swarm.get(A) == announced(A, 2, 5)
    assert swarm.silence(A, 3) == 3


def test_a_restart_is_one_host(swarm: Membership) -> None:
    swarm.heard(announced(A, 1, 50), 0)
    swarm.disconnected(A, 1)
    assert kinds(swarm.heard(announced(A, 2, 1), 1.5)) == [HostRestarted]
    assert len(swarm.alive()) == 1
    assert swarm.state(A) == "alive"


def test_a_lost_connection_suspects_at_once_and_kills_after_the_suspicion(swarm: Membership) -> None:
    swarm.heard(announced(A), 0)
    assert kinds(swarm.disconnected(A, 1)) == [HostSuspected]
    assert swarm.disconnected(A, 1.5) == []
    assert swarm.suspected() == (A,)
    assert len(swarm.alive()) == 1
    assert swarm.next_deadline() == 3
    assert swarm.tick(2.9) == []
    assert kinds(swarm.tick(3)) == [HostDied]
    assert swarm.alive() == ()
    assert swarm.state(A) == "dead"


def test_an_announcement_or_a_connection_clears_the_suspicion(swarm: Membership) -> None:
    swarm.heard(announced(A), 0)
    swarm.disconnected(A, 1)
    assert kinds(swarm.heard(announced(A, sequence=2), 2)) == [HostRecovered]
    swarm.disconnected(A, 3)
    assert kinds(swarm.connected(A, 4)) == [HostRecovered]
    assert swarm.connected(A, 4) == []
    assert swarm.tick(5) == []


def test_what_was_under_way_when_a_host_died_delays_its_death_only_shortly(swarm: Membership) -> None:
    swarm.heard(announced(A), 0)
    swarm.disconnected(A, 1)
    swarm.heard(announced(A, sequence=2), 1.25)
    assert kinds(swarm.tick(3.25)) == [HostSuspected]
    assert kinds(swarm.tick(5.25)) == [HostDied]


def test_silence_suspects_and_then_kills(swarm: Membership) -> None:
    swarm.heard(announced(A), 0)
    assert swarm.next_deadline() == TIMINGS.silent_seconds
    assert kinds(swarm.tick(6)) == [HostSuspected]
    assert kinds(swarm.tick(7)) == []
    assert kinds(swarm.tick(8)) == [HostDied]
    assert swarm.next_deadline() is None


def test_a_host_that_loads_may_be_silent_for_longer(swarm: Membership) -> None:
    swarm.heard(loading(announced(A)), 0)
    assert swarm.next_deadline() == TIMINGS.loading_seconds
    assert kinds(swarm.disconnected(A, 1)) == [HostSuspected]
    assert kinds(swarm.tick(3)) == [HostDied]


def test_a_dead_host_comes_back_with_a_newer_announcement_only(swarm: Membership) -> None:
    swarm.heard(announced(A, 1, 5), 0)
    swarm.disconnected(A, 0)
    swarm.tick(2)
    assert swarm.heard(announced(A, 1, 5), 3) == []
    assert swarm.connected(A, 3) == []
    assert kinds(swarm.heard(announced(A, 1, 6), 3)) == [HostRecovered]
    swarm.disconnected(A, 4)
    swarm.tick(6)
    assert kinds(swarm.heard(announced(A, 2, 1), 7)) == [HostRestarted]


def test_who_leaves_is_gone_at_once_and_an_older_message_does_not_bring_it_back(swarm: Membership) -> None:
    swarm.heard(announced(A, 1, 5), 0)
    assert kinds(swarm.heard(announced(A, 1, 7, "leaving"), 1)) == [HostLeft]
    assert swarm.state(A) == "left"
    assert swarm.heard(announced(A, 1, 6), 1) == []
    assert swarm.alive() == ()
    assert kinds(swarm.heard(announced(A, 2, 1), 1.5)) == [HostJoined]
    assert len(swarm.alive()) == 1


def test_a_leave_that_overtakes_the_join_prevents_it(swarm: Membership) -> None:
    assert swarm.heard(announced(A, 1, 2, "leaving"), 0) == []
    assert swarm.heard(announced(A, 1, 1), 0) == []
    assert swarm.alive() == ()


def test_an_update_names_what_changed_and_progress_alone_is_none(swarm: Membership) -> None:
    swarm.heard(announced(A, 1, 1, "standby"), 0)
    assert swarm.heard(announced(A, 1, 2, "member"), 1) == [HostUpdated(A, "state")]
    assert swarm.heard(loading(announced(A, 1, 3), 1), 2) == [HostUpdated(A, "block")]
    assert swarm.heard(loading(announced(A, 1, 4), 2), 3) == []


def test_a_process_that_stood_still_gives_everybody_time_to_be_heard(swarm: Membership) -> None:
    swarm.heard(announced(A), 0)
    swarm.heard(announced(B), 0)
    swarm.disconnected(B, 1)
    assert swarm.tick(60) == []
    assert swarm.next_deadline() == 62
    swarm.heard(announced(A, sequence=2), 61)
    assert kinds(swarm.tick(62)) == [HostDied]
    assert swarm.state(A) == "alive"


def test_the_number_of_hosts_is_bounded_and_the_refusal_is_said_once(
    swarm: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring.membership, "MAX_HOSTS", 2)
    swarm.heard(announced(A), 0)
    swarm.heard(announced(B), 0)
    assert kinds(swarm.heard(announced(PEERS[3]), 0)) == [HostRefused]
    assert swarm.heard(announced(PEERS[4]), 0) == []
    assert kinds(swarm.heard(announced(SELF), 0)) == [HostJoined]
    for sequence, peer in enumerate([A, B, SELF]):
        swarm.heard(announced(peer, 2, sequence, "leaving"), 1)
    assert kinds(swarm.heard(announced(PEERS[3], 1, 2), 2)) == [HostJoined]
    assert [swarm.state(peer) for peer in (A, B, SELF)] == ["unknown", "left", "left"]


def test_a_large_swarm_slows_its_announcements_and_its_judgement() -> None:
    swarm = Membership(SELF, "home", replace(TIMINGS, full_rate_hosts=2))
    assert swarm.announce_interval() == 1
    for peer in PEERS[:4]:
        swarm.heard(announced(peer), 0)
    assert swarm.announce_interval() == 2
    assert swarm.next_deadline() == 12


class MembershipMachine(RuleBasedStateMachine):
    """Any order of messages, losses and ticks against a model that keeps what each host has ever said."""

    @initialize()
    def start(self) -> None:
        self.swarm = Membership(SELF, "home", TIMINGS)
        self.now = 0.0
        self.newest: dict[PeerId, tuple[int, int]] = {}
        self.gone: set[PeerId] = set()

    def _note(self, events: list[MembershipEvent]) -> None:
        for event in events:
            if isinstance(event, HostDied | HostLeft):
                assert event.peer not in self.gone
                self.gone.add(event.peer)
            elif isinstance(event, HostJoined | HostRestarted | HostRecovered):
                self.gone.discard(event.peer)
            assert event.reason

    @rule(
        peer=st.sampled_from(PEERS[1:]),
        incarnation=st.integers(1, 4),
        sequence=st.integers(0, 6),
        state=st.sampled_from(["standby", "member", "leaving"]),
    )
    def hear(self, peer: PeerId, incarnation: int, sequence: int, state: HostState) -> None:
        count = (incarnation, sequence)
        before = self.swarm.get(peer)
        events = self.swarm.heard(announced(peer, incarnation, sequence, state), self.now)
        if peer in self.newest and count <= self.newest[peer]:
            assert events == []
            assert self.swarm.get(peer) == before
            return
        self.newest[peer] = count
        self._note(events)
        assert self.swarm.state(peer) == ("left" if state == "leaving" else "alive")
        if before is not None and incarnation > before.announcement.incarnation and state != "leaving":
            assert kinds(events) == [HostRestarted]

    @rule(peer=st.sampled_from(PEERS), up=st.booleans())
    def connection(self, peer: PeerId, up: bool) -> None:
        before = self.swarm.state(peer)
        self._note(self.swarm.connected(peer, self.now) if up else self.swarm.disconnected(peer, self.now))
        if before not in ("alive", "suspected"):
            assert self.swarm.state(peer) == before
        else:
            assert self.swarm.state(peer) == ("alive" if up else "suspected")

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._note(self.swarm.tick(self.now))

    @rule()
    def wait_for_the_deadline(self) -> None:
        deadline = self.swarm.next_deadline()
        if deadline is not None:
            assert deadline >= self.now
            self.now = deadline
            events = self.swarm.tick(self.now)
            assert events
            self._note(events)

    @invariant()
    def alive_are_those_heard_and_not_gone(self) -> None:
        alive = {signed.announcement.peer: signed.announcement for signed in self.swarm.alive()}
        assert alive.keys() <= self.newest.keys()
        assert alive.keys().isdisjoint(self.gone)
        assert all((a.incarnation, a.sequence) == self.newest[peer] for peer, a in alive.items())
        assert set(self.swarm.suspected()) <= alive.keys()


TestMembershipMachine = MembershipMachine.TestCase
TestMembershipMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
