from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from nacl.signing import SigningKey

from ring.assignment import (
    Aborted,
    Activate,
    Assignment,
    AssignmentAction,
    AssignmentTimeouts,
    Cancel,
    Completed,
    Member,
    Prepare,
    Refusal,
)
from ring.identity import PeerId, peer_id_of

PEERS = [peer_id_of(bytes(SigningKey(bytes([n]) * 32).verify_key)) for n in range(4)]
A, B, C, STRANGER = PEERS
TIMEOUTS = AssignmentTimeouts()


@pytest.fixture
def assignment() -> Assignment:
    machine = Assignment("p1", [A, B, C], TIMEOUTS)
    assert machine.start(0) == [Prepare(A), Prepare(B), Prepare(C)]
    return machine


def all_ready(machine: Assignment, now: float) -> list[AssignmentAction]:
    return [action for peer in (A, B, C) for action in machine.ready(peer, now)]


def aborted(actions: list[AssignmentAction]) -> Aborted:
    assert isinstance(actions[0], Aborted)
    return actions[0]


@pytest.mark.parametrize("members", [[], [A, A]])
def test_a_plan_has_one_or_more_different_members(members: list[PeerId]) -> None:
    with pytest.raises(ValueError, match="different hosts"):
        Assignment("p1", members, TIMEOUTS)


def test_nothing_happens_before_the_start_and_it_starts_once(assignment: Assignment) -> None:
    assert assignment.start(1) == []
    new = Assignment("p1", [A], TIMEOUTS)
    assert new.ready(A, 0) == new.lost(A, "x") == new.tick(1e6) == new.superseded("x") == []
    assert new.next_deadline() is None


def test_all_are_activated_together_when_the_last_one_is_ready(assignment: Assignment) -> None:
    assert assignment.ready(B, 1) == []
    assert assignment.ready(B, 1) == []
    assert assignment.progress(A, 5, 9, 1) == []
    assert assignment.ready(A, 2) == []
    assert assignment.ready(C, 3) == [Activate(A), Activate(B), Activate(C)]
    assert assignment.activated(C, 3) == []
    assert assignment.activated(A, 4) == []
    assert assignment.activated(B, 5) == [Completed()]
    assert assignment.state == "active"
    assert assignment.next_deadline() is None


def test_a_member_alone_is_a_ring() -> None:
    machine = Assignment("p1", [A], TIMEOUTS)
    machine.start(0)
    assert machine.ready(A, 1) == [Activate(A)]
    assert machine.activated(A, 1) == [Completed()]


def test_one_who_says_active_before_it_was_told_is_not_counted(assignment: Assignment) -> None:
    assert assignment.activated(A, 1) == []
    all_ready(assignment, 2)
    assert [m.phase for m in assignment.members()] == ["activating"] * 3


def test_a_refusal_aborts_blames_the_one_and_cancels_the_others(assignment: Assignment) -> None:
    assignment.ready(A, 1)
    actions = assignment.refused(B, "memory_exceeded", "needs 9 bytes, has 8")
    assert aborted(actions).blame == (Refusal(B, "memory_exceeded", "needs 9 bytes, has 8"),)
    assert actions[1:] == [Cancel(A), Cancel(C)]
    assert assignment.ready(C, 2) == []
    assert assignment.state == "aborted"


def test_a_member_lost_while_the_ring_is_activated_aborts_it(assignment: Assignment) -> None:
    all_ready(assignment, 1)
    assignment.activated(A, 1)
    actions = assignment.lost(C, "its connection was lost")
    assert aborted(actions).blame == (Refusal(C, "host_lost", "its connection was lost"),)
    assert actions[1:] == [Cancel(A), Cancel(B)]


def test_a_newer_plan_cancels_all_and_blames_nobody(assignment: Assignment) -> None:
    actions = assignment.superseded("plan p2 replaces it")
    assert actions == [Aborted("plan p2 replaces it", ()), Cancel(A), Cancel(B), Cancel(C)]
    assert assignment.superseded("again") == []


def test_strangers_are_not_listened_to(assignment: Assignment) -> None:
    assert assignment.refused(STRANGER, "x", "x") == assignment.lost(STRANGER, "x") == []
    assert assignment.progress(STRANGER, 1, 2, 0) == assignment.ready(STRANGER, 0) == []
    assert assignment.state == "preparing"


def test_a_load_that_gets_on_is_never_killed_however_slow(assignment: Assignment) -> None:
    assignment.ready(A, 1)
    assignment.ready(C, 1)
    now = 0.0
    for done in range(100):
        now += TIMEOUTS.progress_seconds - 1
        assignment.progress(B, done + 1, 1000, now)
        assert assignment.tick(now) == []
    assert assignment.members()[1] == Member(B, "loading", 100, 1000)


def test_a_load_that_only_talks_is_aborted_and_says_where_it_stood(assignment: Assignment) -> None:
    assignment.ready(A, 1)
    assignment.ready(C, 1)
    assignment.progress(B, 7, 10, 2)
    for now in range(3, 122):
        assignment.progress(B, 7, 10, now)
        assert assignment.tick(now) == []
    assert assignment.next_deadline() == 122
    actions = assignment.tick(122)
    assert aborted(actions).blame == (
        Refusal(B, "no_progress", "its load stands at 7 of 10 bytes for 120 s"),
    )
    assert actions[1:] == [Cancel(A), Cancel(B), Cancel(C)]


def test_silence_after_prepare_and_after_activate_is_blamed_on_the_silent(assignment: Assignment) -> None:
    assignment.progress(A, 0, 10, 1)
    assignment.ready(B, 1)
    assert [refusal.code for refusal in aborted(assignment.tick(30)).blame] == ["no_answer"]

    second = Assignment("p2", [A, B, C], TIMEOUTS)
    second.start(0)
    all_ready(second, 1)
    second.activated(A, 20)
    assert second.tick(49) == []
    assert [(r.peer, r.code) for r in aborted(second.tick(50)).blame] == [
        (B, "not_activated"),
        (C, "not_activated"),
    ]


def test_progress_never_runs_backwards(assignment: Assignment) -> None:
    assignment.progress(A, 9, 10, 1)
    assignment.progress(A, 3, 10, 2)
    assert assignment.members()[0] == Member(A, "loading", 9, 10)


def test_a_leader_that_stood_still_gives_everybody_time_to_be_heard(assignment: Assignment) -> None:
    for peer in (A, B, C):
        assignment.progress(peer, 1, 10, 1)
    assert assignment.tick(500) == []
    assert assignment.next_deadline() == 502
    for peer in (A, B):
        assignment.progress(peer, 2, 10, 501)
    assert [refusal.peer for refusal in aborted(assignment.tick(502)).blame] == [C]


class AssignmentMachine(RuleBasedStateMachine):
    """Any order of reports: nobody is activated before all are ready, and the end comes once."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.members = PEERS[:count]
        self.machine = Assignment("p1", self.members, TIMEOUTS)
        self.now = 0.0
        self.said_ready: set[PeerId] = set()
        self.said_active: set[PeerId] = set()
        self.done: dict[PeerId, int] = {}
        self.moved = 0.0
        self.ended: AssignmentAction | None = None
        self._check(self.machine.start(0))

    def _check(self, actions: list[AssignmentAction]) -> None:
        assert not (self.ended and actions)
        if any(isinstance(action, Activate) for action in actions):
            assert self.said_ready == set(self.members)
            assert actions == [Activate(peer) for peer in self.members]
            self.moved = self.now
        for action in actions:
            if isinstance(action, Completed):
                assert self.said_active == set(self.members)
                self.ended = action
            if isinstance(action, Aborted):
                self.ended = action
                blamed = {refusal.peer for refusal in action.blame}
                cancelled = {other.peer for other in actions if isinstance(other, Cancel)}
                assert blamed | cancelled == set(self.members)

    @rule(peer=st.sampled_from(PEERS), done=st.integers(0, 9))
    def progress(self, peer: PeerId, done: int) -> None:
        if done > self.done.get(peer, -1):
            self.done[peer], self.moved = done, self.now
        self._check(self.machine.progress(peer, done, 9, self.now))

    @rule(peer=st.sampled_from(PEERS))
    def ready(self, peer: PeerId) -> None:
        if peer in self.members:
            self.said_ready.add(peer)
        self._check(self.machine.ready(peer, self.now))

    @rule(peer=st.sampled_from(PEERS))
    def activated(self, peer: PeerId) -> None:
        if self.machine.state == "activating" and peer in self.members and peer not in self.said_active:
            self.said_active.add(peer)
            self.moved = self.now
        self._check(self.machine.activated(peer, self.now))

    @rule(peer=st.sampled_from(PEERS), lost=st.booleans())
    def fails(self, peer: PeerId, lost: bool) -> None:
        self._check(self.machine.lost(peer, "gone") if lost else self.machine.refused(peer, "code", "no"))

    @rule(seconds=st.floats(0, 200))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._check(self.machine.tick(self.now))

    @rule()
    def wait_for_the_deadline(self) -> None:
        deadline = self.machine.next_deadline()
        assert (deadline is None) == (self.ended is not None)
        if deadline is not None and deadline >= self.now:
            self.now = deadline
            self._check(self.machine.tick(self.now))
            assert isinstance(self.ended, Aborted)

    @invariant()
    def the_state_is_that_of_what_was_said(self) -> None:
        assert (self.machine.state in ("active", "aborted")) == (self.ended is not None)


TestAssignmentMachine = AssignmentMachine.TestCase
TestAssignmentMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(PEERS), st.integers(0, 9)), max_size=40))
def test_it_ends_within_its_deadlines_when_nothing_more_is_said(reports: list[tuple[PeerId, int]]) -> None:
    machine = Assignment("p1", [A, B, C], replace(TIMEOUTS, stall_seconds=1e9))
    machine.start(0)
    for peer, done in reports:
        machine.progress(peer, done, 9, 1) if done else machine.ready(peer, 1)
    for _ in range(2):
        deadline = machine.next_deadline()
        if deadline is not None:
            machine.tick(deadline)
    assert machine.state == "aborted"
