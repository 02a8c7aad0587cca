from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from ring.announcement import Announcement, HostState, SignedAnnouncement
from ring.election import (
    FIRST_TERM_LIMIT,
    MAX_TERM,
    TERM_LEAP,
    UNSETTLED,
    BecameLeader,
    Candidate,
    Election,
    ElectionEvent,
    ElectionTimings,
    Following,
    LeaderLost,
    SteppedDown,
)
from ring.identity import PeerId, peer_id_of
from ring.membership import Membership, MembershipTimings
from ring.membership_events import HostDied, HostLeft, MembershipEvent

PEERS = sorted(peer_id_of(bytes(SigningKey(bytes([n]) * 32).verify_key)) for n in range(6))
A, B, C = PEERS[:3]
TIMINGS = ElectionTimings()
TICK = 0.25


def announced(
    peer: PeerId,
    leader: str,
    term: int,
    seniority: int = 0,
    *,
    state: HostState = "member",
    count: tuple[int, int] = (1, 1),
) -> Announcement:
    return Announcement(
        swarm="home",
        peer=peer,
        incarnation=count[0],
        sequence=count[1],
        addresses=(),
        version="0.1.0",
        wire=1,
        state=state,
        seniority=seniority,
        leader=leader,
        term=term,
        plan="",
        device="cpu",
        memory_limit=1,
        memory_free=1,
        model="",
        layer_ns=(),
        tail_ns=0,
        rtt_us=(),
        block=None,
        sessions=0,
    )


def candidates(**seniority: int) -> list[Candidate]:
    names = {"a": A, "b": B, "c": C}
    return [Candidate(names[name], value) for name, value in seniority.items()]


def kinds(events: list[ElectionEvent]) -> list[type]:
    return [type(event) for event in events]


def ticked(election: Election, until: float, who: list[Candidate], start: float = 0.0) -> list[ElectionEvent]:
    events: list[ElectionEvent] = []
    for step in range(int((until - start) / TICK) + 1):
        events += election.tick(start + step * TICK, who)
    return events


def follower_of_a(term: int = 3) -> Election:
    """B, which joined in the term that it follows A in."""
    election = Election(B, TIMINGS)
    election.tick(0, [])
    assert kinds(election.observe(announced(A, A, term), 0)) == [Following]
    return election


def leader(peer: PeerId, term: int = 1) -> Election:
    election = Election(peer, TIMINGS)
    if term > 1:
        election.observe(announced(PEERS[5], "", term - 1), -10)
    assert kinds(ticked(election, 2, [Candidate(peer, UNSETTLED)])) == [BecameLeader]
    assert election.term == term
    return election


def test_a_host_that_hears_nobody_founds_only_after_having_listened() -> None:
    election = Election(A, TIMINGS)
    who = candidates(a=UNSETTLED)
    assert ticked(election, TIMINGS.found_seconds - TICK, who) == []
    assert not election.is_leader
    assert kinds(election.tick(TIMINGS.found_seconds, who)) == [BecameLeader]
    assert (election.leader, election.term, election.seniority) == (A, 1, 0)
    assert election.lease_left(1000) == TIMINGS.lease_seconds


def test_who_is_not_first_in_the_order_waits_patiently_for_each_before_it() -> None:
    who = candidates(a=UNSETTLED, b=UNSETTLED, c=UNSETTLED)
    for peer, before in ((B, 1), (C, 2)):
        election = Election(peer, TIMINGS)
        patience = TIMINGS.found_seconds + before * TIMINGS.patience_seconds
        assert ticked(election, patience - TICK, who) == []
        assert kinds(ticked(election, patience + 3 * TICK, who, start=patience)) == [BecameLeader]


def test_a_stranger_that_comes_first_and_never_leads_does_not_keep_the_swarm_leaderless() -> None:
    election = follower_of_a()
    turn = TIMINGS.lease_seconds + TIMINGS.patience_seconds
    assert kinds(ticked(election, turn - TICK, candidates(b=3, c=0))) == [LeaderLost]
    assert kinds(ticked(election, turn + 3 * TICK, candidates(b=3, c=0), start=turn)) == [BecameLeader]
    assert election.leader == B


def test_patience_outlasts_the_time_that_it_takes_to_notice_a_death() -> None:
    noticing = MembershipTimings()
    assert (
        TIMINGS.patience_seconds
        > noticing.silent_seconds + noticing.suspect_seconds + TIMINGS.found_seconds + TIMINGS.lease_seconds
    )


def test_who_may_not_lead_does_not_found() -> None:
    assert ticked(Election(A, TIMINGS), 100, []) == []


def test_a_host_joins_with_the_seniority_of_the_term_in_force_and_keeps_it() -> None:
    election = follower_of_a(term=3)
    assert election.seniority == 3
    election.observe(announced(A, A, 9), 1)
    assert (election.seniority, election.term) == (3, 9)


def test_the_leaders_own_announcement_renews_the_lease_and_nobody_elses() -> None:
    election = follower_of_a()
    assert election.observe(announced(A, A, 3), 2) == []
    assert election.lease_left(2) == TIMINGS.lease_seconds
    assert election.observe(announced(C, A, 3), 3) == []
    assert election.lease_left(3) == TIMINGS.lease_seconds - 1


def test_the_lease_runs_out_and_the_first_in_order_takes_the_next_term() -> None:
    election = follower_of_a()
    events = ticked(election, TIMINGS.lease_seconds, candidates(b=3, c=3))
    assert kinds(events) == [LeaderLost, BecameLeader]
    assert (election.leader, election.term) == (B, 4)


def test_seniority_comes_before_the_id_in_the_order() -> None:
    election = follower_of_a()
    patience = 2 * TIMINGS.lease_seconds - TICK
    assert kinds(ticked(election, patience, candidates(b=3, c=2))) == [LeaderLost]
    assert election.leader is None
    assert election.term == 3


def test_the_death_of_the_leader_ends_its_lease_at_once() -> None:
    election = follower_of_a()
    ticked(election, 3, [])
    election.observe(announced(A, A, 3), 3)
    assert election.host_gone(C, 3, "it died") == []
    assert election.host_gone(A, 3, "it died") == [LeaderLost(A, 3, "it died")]
    assert kinds(election.tick(3, candidates(b=3))) == [BecameLeader]


def test_a_leader_that_leaves_is_lost_at_once() -> None:
    election = follower_of_a()
    assert kinds(election.observe(announced(A, A, 3, state="leaving"), 1)) == [LeaderLost]


def test_a_leader_that_restarted_leads_no_more() -> None:
    election = follower_of_a()
    assert kinds(election.observe(announced(A, "", 0, UNSETTLED, count=(2, 1)), 1)) == [LeaderLost]
    ticked(election, 2, candidates(a=UNSETTLED, b=3))
    assert election.leader == B


def test_a_restarted_leader_that_is_alone_takes_a_fresh_term() -> None:
    election = Election(A, TIMINGS)
    election.tick(0, candidates(a=UNSETTLED))
    election.observe(announced(B, A, 7), 0.5)
    assert not election.is_leader
    ticked(election, TIMINGS.found_seconds, candidates(a=UNSETTLED))
    assert (election.leader, election.term) == (A, 8)


def test_the_next_term_is_above_all_that_were_ever_heard_of() -> None:
    election = follower_of_a()
    election.observe(announced(C, "", 40), 0)
    ticked(election, TIMINGS.lease_seconds, candidates(b=3))
    assert election.term == 41


@pytest.mark.parametrize("term", [3 + TERM_LEAP + 1, 2**40, MAX_TERM - 1, MAX_TERM + 1])
@pytest.mark.parametrize("claimed", [C, A, ""])
def test_a_term_that_no_honest_host_can_have_reached_has_no_effect(term: int, claimed: str) -> None:
    election = follower_of_a()
    assert election.observe(announced(C, claimed, term), 0) == []
    assert election.leader == A
    ticked(election, TIMINGS.lease_seconds, candidates(b=3))
    assert election.term == 4


def test_the_first_term_heard_of_leaves_room_for_all_that_follow() -> None:
    election = Election(B, TIMINGS)
    assert election.observe(announced(C, C, FIRST_TERM_LIMIT + 1), 0) == []
    assert kinds(election.observe(announced(A, A, FIRST_TERM_LIMIT), 0)) == [Following]
    ticked(election, TIMINGS.lease_seconds, candidates(b=FIRST_TERM_LIMIT))
    follower = Election(C, TIMINGS)
    assert follower.observe(announced(A, A, FIRST_TERM_LIMIT), 0)
    assert kinds(follower.observe(announced(B, B, election.term), 0)) == [Following]


def test_a_higher_term_is_followed_and_a_lower_one_is_not() -> None:
    election = follower_of_a()
    assert election.observe(announced(C, C, 2), 1) == []
    assert election.observe(announced(C, C, 4, 9), 1) == [Following(C, 4, "its term is higher")]
    election.host_gone(C, 2, "it died")
    assert election.observe(announced(A, A, 3), 2) == []
    assert election.leader is None


def test_a_leader_that_is_not_first_in_the_order_stays_leader() -> None:
    election = follower_of_a()
    assert election.observe(announced(C, A, 3, 0), 1) == []
    assert election.tick(1, candidates(a=5, b=3, c=0)) == []
    assert election.leader == A


def test_of_two_leaders_of_one_term_the_one_first_in_the_order_is_followed() -> None:
    election = follower_of_a()
    assert election.observe(announced(C, C, 3, 5), 1) == []
    assert election.leader == A
    assert kinds(election.observe(announced(PEERS[4], PEERS[4], 3, -1), 1)) == [Following]


def test_of_two_leaders_of_one_term_the_worse_yields_and_the_better_takes_a_fresh_one() -> None:
    better, worse = leader(A), leader(B)
    yielded = worse.observe(announced(A, A, 1, better.seniority), 3)
    assert kinds(yielded) == [SteppedDown, Following]
    raised = better.observe(announced(B, B, 1, worse.seniority), 3)
    assert kinds(raised) == [BecameLeader]
    assert better.term == 2
    assert kinds(worse.observe(announced(A, A, 2, better.seniority), 4)) == [Following]


def test_a_leader_yields_to_a_higher_term_even_of_a_worse_host() -> None:
    election = leader(A)
    events = election.observe(announced(C, C, 5, 9), 3)
    assert kinds(events) == [SteppedDown, Following]
    assert (election.leader, election.term) == (C, 5)


@pytest.mark.parametrize("cited", ["", C, A])
def test_a_leader_outbids_a_higher_term_that_others_hold_to_after_its_leader_had_time_to_speak(
    cited: str,
) -> None:
    election = leader(A)
    election.observe(announced(B, cited, 6), 2)
    patience = 0 if cited == A else TIMINGS.lease_seconds
    assert ticked(election, 2 + patience - TICK, candidates(a=0), start=2) == []
    for later in (2.5, 3.5):
        election.observe(announced(B, cited, 6), later)
    assert kinds(ticked(election, 2 + patience, candidates(a=0), start=2 + patience)) == [BecameLeader]
    assert election.term == 7


def test_a_leader_does_not_outbid_a_leader_that_speaks_up() -> None:
    election = leader(A)
    election.observe(announced(B, C, 6), 2)
    assert kinds(election.observe(announced(C, C, 6), 4)) == [SteppedDown, Following]
    assert kinds(ticked(election, 7, candidates(a=0), start=2)) == []


def test_a_follower_whose_leader_yielded_waits_for_the_new_leader_before_it_stands() -> None:
    election = follower_of_a()
    ticked(election, 3, [])
    assert kinds(election.observe(announced(A, C, 5), 3)) == [LeaderLost]
    assert ticked(election, 3 + TIMINGS.lease_seconds - TICK, candidates(b=3), start=3) == []
    assert kinds(election.observe(announced(C, C, 5), 6.5)) == [Following]


def test_late_followers_of_a_dead_leader_do_not_delay_its_successor() -> None:
    election = follower_of_a()
    ticked(election, 3, [])
    election.host_gone(A, 3, "it died")
    election.observe(announced(C, A, 3), 3)
    assert kinds(election.tick(3, candidates(b=3))) == [BecameLeader]


def test_a_process_that_stood_still_hears_its_leader_out() -> None:
    election = follower_of_a()
    election.tick(1, candidates(b=3))
    assert election.tick(60, candidates(b=3)) == []
    assert election.observe(announced(A, A, 3), 60.5) == []
    assert election.leader == A


# From here on: whole swarms, with real memberships, in virtual time.


@dataclass
class Node:
    peer: PeerId
    incarnation: int
    membership: Membership
    election: Election
    next_announcement: float
    sequence: int = 0
    highest: int = 0


@dataclass
class Sim:
    """Hosts that announce once a second over a net that delays, loses and splits."""

    seed: int
    loss: float = 0.0
    max_delay: float = 0.5
    now: float = 0.0
    nodes: dict[PeerId, Node] = field(default_factory=dict)
    incarnations: dict[PeerId, int] = field(default_factory=lambda: defaultdict(int))
    mail: list[tuple[float, PeerId, PeerId, Callable[[Node], None]]] = field(default_factory=list)
    split: frozenset[PeerId] = frozenset()
    leaders: dict[int, set[PeerId]] = field(default_factory=lambda: defaultdict(set))
    unheard: set[tuple[int, PeerId]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def start(self, peer: PeerId) -> None:
        if peer in self.nodes:
            return
        self.incarnations[peer] += 1
        membership = Membership(peer, "home", MembershipTimings())
        self.nodes[peer] = Node(peer, self.incarnations[peer], membership, Election(peer, TIMINGS), self.now)

    def kill(self, peer: PeerId) -> None:
        if self.nodes.pop(peer, None) is not None:
            for term, who in self.unheard:
                if who == peer:
                    self.leaders[term].discard(
                        who
                    )  # it took the term with it: no living host has heard of it
            self._to_all(
                peer, lambda node: self._apply(node, node.membership.disconnected(peer, self.now)), 0.0
            )

    def leave(self, peer: PeerId) -> None:
        if peer in self.nodes:
            self._announce(self.nodes[peer], "leaving")
            self.kill(peer)

    def cut(self, side: frozenset[PeerId]) -> None:
        for one in self.nodes.values():
            for other in self.nodes.values():
                if (one.peer in side) != (other.peer in side):
                    self._apply(one, one.membership.disconnected(other.peer, self.now))
        self.split = side

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            self._deliver()
            for node in list(self.nodes.values()):
                if node.next_announcement <= self.now:
                    node.next_announcement += 1.0
                    self._announce(node, "member")
                self._apply(node, node.membership.tick(self.now))
                alive = [signed.announcement for signed in node.membership.alive()]
                who = [Candidate(a.peer, a.seniority) for a in alive]
                self._note(node, node.election.tick(self.now, who))

    def agreed(self) -> PeerId | None:
        """The leader whom all hosts follow in one term, if there is one."""
        views = {(node.election.leader, node.election.term) for node in self.nodes.values()}
        return views.pop()[0] if len(views) == 1 else None

    def _announce(self, node: Node, state: HostState) -> None:
        node.sequence += 1
        election = node.election
        count = (node.incarnation, node.sequence)
        announcement = announced(
            node.peer, election.leader or "", election.term, election.seniority, state=state, count=count
        )
        self._hear(node, announcement)
        self._to_all(node.peer, lambda other: self._hear(other, announcement), self.loss)

    def _to_all(self, sender: PeerId, action: Callable[[Node], None], loss: float) -> None:
        for peer in PEERS:
            if peer != sender and self.random.random() >= loss:
                self.mail.append((self.now + self.random.uniform(0, self.max_delay), sender, peer, action))

    def _deliver(self) -> None:
        due = sorted((letter for letter in self.mail if letter[0] <= self.now), key=lambda letter: letter[0])
        self.mail = [letter for letter in self.mail if letter[0] > self.now]
        for _, sender, receiver, action in due:
            if receiver in self.nodes and (sender in self.split) == (receiver in self.split):
                action(self.nodes[receiver])

    def _hear(self, node: Node, announcement: Announcement) -> None:
        if node.membership.is_news(announcement):
            self._apply(node, node.membership.heard(SignedAnnouncement(announcement, b""), self.now))
            self._note(node, node.election.observe(announcement, self.now))

    def _apply(self, node: Node, events: list[MembershipEvent]) -> None:
        for event in events:
            if isinstance(event, HostDied | HostLeft):
                self._note(node, node.election.host_gone(event.peer, self.now, event.reason))

    def _note(self, node: Node, events: list[ElectionEvent]) -> None:
        for event in events:
            if isinstance(event, BecameLeader):
                self.leaders[event.term].add(node.peer)
                self.unheard.add((event.term, node.peer))
                assert event.term > node.highest
                self._announce(node, "member")
            if isinstance(event, Following):
                self.unheard.discard((event.term, event.leader))
            if isinstance(event, Following | BecameLeader):
                assert event.term >= node.highest, "a lower term was followed after a higher one"
                node.highest = event.term


WITNESS = PEERS[3]  # lives through everything: a swarm that died out altogether remembers no term


def churn_of(peers: list[PeerId]) -> st.SearchStrategy[list[tuple[str, PeerId, float]]]:
    what = st.sampled_from(["start", "kill", "leave", "restart"])
    return st.lists(st.tuples(what, st.sampled_from(peers), st.floats(0, 8)), max_size=12)


def play(sim: Sim, what: str, peer: PeerId) -> None:
    if what in ("kill", "restart"):
        sim.kill(peer)
    if what in ("start", "restart"):
        sim.start(peer)
    if what == "leave":
        sim.leave(peer)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    churn=churn_of([peer for peer in PEERS if peer != WITNESS]),
    offsets=st.lists(st.floats(0, 5), min_size=4, max_size=4),
)
def test_in_a_connected_swarm_no_term_has_two_leaders_and_all_follow_one(
    seed: int, churn: list[tuple[str, PeerId, float]], offsets: list[float]
) -> None:
    sim = Sim(seed)
    for peer, offset in zip([WITNESS, *PEERS], offsets, strict=False):
        sim.start(peer)
        sim.run(offset)
    for what, peer, wait in churn:
        play(sim, what, peer)
        sim.run(wait)
    sim.run(20)
    assert sim.agreed() in sim.nodes
    assert {term: who for term, who in sim.leaders.items() if len(who) > 1} == {}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.6),
    churn=churn_of(PEERS),
    sides=st.lists(st.frozensets(st.sampled_from(PEERS)), max_size=3),
)
def test_whatever_was_lost_or_split_once_the_net_is_whole_all_follow_one_leader(
    seed: int, loss: float, churn: list[tuple[str, PeerId, float]], sides: list[frozenset[PeerId]]
) -> None:
    sim = Sim(seed, loss=loss, max_delay=2.0)
    for peer in PEERS:
        sim.start(peer)
    for number, side in enumerate([*sides, frozenset[PeerId]()]):
        sim.run(6)
        sim.cut(side)
        for what, peer, wait in churn[3 * number : 3 * number + 3]:
            play(sim, what, peer)
            sim.run(wait)
    sim.start(PEERS[3])
    sim.cut(frozenset())
    sim.loss, sim.max_delay = 0.0, 0.5
    sim.run(30)
    assert sim.agreed() in sim.nodes


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), start_delay=st.floats(0, 3), gracefully=st.booleans())
def test_when_the_leader_goes_another_is_followed_within_the_lease(
    seed: int, start_delay: float, gracefully: bool
) -> None:
    sim = Sim(seed)
    for peer in PEERS:
        sim.start(peer)
        sim.run(start_delay)
    sim.run(6)
    old = sim.agreed()
    assert old is not None
    term = sim.nodes[old].election.term
    if gracefully:
        sim.leave(old)
    else:
        sim.kill(old)
    sim.run(TIMINGS.lease_seconds + 1.0 + 2 * sim.max_delay)
    assert sim.agreed() in sim.nodes
    assert {node.election.term for node in sim.nodes.values()} == {term + 1}


def test_the_sides_of_a_split_each_have_a_leader_and_the_higher_term_stands_after_it() -> None:
    sim = Sim(1)
    for peer in PEERS:
        sim.start(peer)
    sim.run(10)
    old = sim.agreed()
    assert old == A
    sim.cut(frozenset({A, B}))
    sim.run(15)
    by_leader = defaultdict(set)
    for node in sim.nodes.values():
        by_leader[node.election.leader].add(node.peer)
    assert by_leader == {A: {A, B}, C: set(PEERS[2:])}
    term = sim.nodes[C].election.term
    assert term > sim.nodes[A].election.term
    sim.cut(frozenset())
    sim.run(5)
    assert sim.agreed() == C
    assert sim.nodes[A].election.term == term
