"""A stage's books: frames in order or refused by name, fences, and nothing open that nobody will close."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from simulated_ring import LAYERS, key_of, packed, peer_of

from ring.frame import CloseFrame, DataFrame, ErrorFrame, FinishFrame, Frame, OpenFrame, VerifiedFrame
from ring.receipts import ReceiptChain, ids_bytes
from ring.stage import (
    Action,
    Close,
    Compute,
    Drop,
    Forward,
    Open,
    StageLimits,
    StageRole,
    StageTable,
    overtaken,
)

HEAD, MIDDLE, TAIL, WHOLE = (0, 2), (2, 4), (4, LAYERS), (0, LAYERS)


def table_of(
    block: tuple[int, int] = MIDDLE,
    *,
    sessions: int = 2,
    context: int = 32,
    idle: float = 60.0,
    ids: bool = False,
) -> StageTable:
    role = StageRole(peer_of(1), "home", "plan-1", *block, LAYERS, forward_tokens=ids)
    return StageTable(role, StageLimits(sessions, context, idle), key_of(1))


def opening(session: str = "s", plan: str = "plan-1", prompt: int = 4, most: int = 4) -> OpenFrame:
    return OpenFrame(session, plan, "nonce", prompt, most)


def data(
    position: int, width: int = 1, *, epoch: int = 0, session: str = "s", head: bool = False
) -> DataFrame:
    tokens = tuple(range(width))
    return DataFrame(
        session, epoch, position, width, tokens if head else None, () if head else (packed(tokens),)
    )


def opened(
    block: tuple[int, int] = MIDDLE, *, sessions: int = 2, context: int = 32, idle: float = 60.0
) -> StageTable:
    table = table_of(block, sessions=sessions, context=context, idle=idle)
    table.receive(opening(), 0.0)
    return table


def compute_of(actions: list[Action]) -> Compute:
    (action,) = actions
    assert isinstance(action, Compute)
    return action


def error_of(actions: list[Action]) -> ErrorFrame:
    *closed, last = actions
    assert all(isinstance(action, Close) for action in closed)
    assert isinstance(last, Forward)
    assert isinstance(last.frame, ErrorFrame)
    return last.frame


class FramesAtAStage(RuleBasedStateMachine):
    """Any frames in any order to a stage whose runtime is as slow as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = opened(sessions=3)
        self.cached: dict[str, int] = {"s": 0}
        self.queue: list[Compute] = []

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Open(session):
                    assert session not in self.cached
                    self.cached[session] = 0
                case Close(session):
                    del self.cached[session]
                case Compute():
                    self.queue.append(action)
                case Forward(frame):
                    assert not isinstance(frame, VerifiedFrame)
                case Drop():
                    pass

    def receive(self, frame: Frame) -> None:
        self.now += 1.0
        self.carry_out(self.table.receive(frame, self.now))

    @rule(session=st.sampled_from("stuv"), prompt=st.integers(1, 40))
    def a_session_opens(self, session: str, prompt: int) -> None:
        self.receive(opening(session, prompt=prompt))

    @rule(
        session=st.sampled_from("stuv"),
        epoch=st.integers(0, 3),
        position=st.integers(0, 34),
        width=st.integers(1, 4),
    )
    def any_frame_comes(self, session: str, epoch: int, position: int, width: int) -> None:
        self.receive(data(position, width, epoch=epoch, session=session))

    @rule(
        session=st.sampled_from("stuv"),
        back=st.integers(0, 2),
        width=st.integers(1, 4),
        step=st.integers(0, 1),
    )
    def a_likely_frame_comes(self, session: str, back: int, width: int, step: int) -> None:
        ends = [
            (c.frame.position + c.frame.width, c.frame.epoch)
            for c in self.queue
            if c.frame.session == session
        ]
        end, epoch = ends[-1] if ends else (self.cached.get(session, 0), 0)
        self.receive(data(max(0, end - back * step), width, epoch=epoch + step, session=session))

    @rule(session=st.sampled_from("stuv"))
    def a_session_finishes(self, session: str) -> None:
        held = self.table._held.get(session)
        epoch, end = (held.epoch, held.computed) if held else (0, 0)
        self.receive(FinishFrame(session, epoch + 1, end, ()))

    @rule(session=st.sampled_from("stuv"))
    def a_session_closes(self, session: str) -> None:
        self.receive(CloseFrame(session, "cancelled"))

    @rule(session=st.sampled_from(["s", "t", "u", "v", ""]))
    def an_error_passes(self, session: str) -> None:
        self.receive(ErrorFrame(session, peer_of(0), "stage_lost", "gone"))

    @rule(fails=st.integers(0, 9))
    def the_runtime_takes_a_frame(self, fails: int) -> None:
        if not self.queue:
            return
        compute = self.queue.pop(0)
        frame = compute.frame
        if not self.table.stands(compute):
            (dropped,) = self.table.computed(compute, (packed([1]),), None, self.now)
            assert isinstance(dropped, Drop)
        elif fails == 0:
            self.carry_out(self.table.failed(frame.session, "memory_exceeded", "no room"))
        else:
            assert frame.position <= self.cached[frame.session], "a gap has reached the runtime"
            assert frame.position + frame.width <= 32
            self.cached[frame.session] = frame.position + frame.width
            self.carry_out(self.table.computed(compute, (packed([1]),), None, self.now))

    @rule()
    def time_passes(self) -> None:
        self.now += 61.0
        self.carry_out(self.table.tick(self.now))
        waiting = {compute.frame.session for compute in self.queue if self.table.stands(compute)}
        assert set(self.table.sessions()) == waiting

    @invariant()
    def the_table_and_the_runtime_hold_the_same_sessions(self) -> None:
        assert set(self.table.sessions()) == set(self.cached)
        assert len(self.cached) <= 3


TestFramesAtAStage = FramesAtAStage.TestCase
TestFramesAtAStage.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_an_opening_goes_on_to_the_next_stage_and_from_the_tail_to_nobody() -> None:
    assert table_of(HEAD).receive(opening(), 0.0) == [Forward(opening()), Open("s")]
    assert table_of(TAIL).receive(opening(), 0.0) == [Open("s")]
    assert table_of(WHOLE).receive(opening(), 0.0) == [Open("s")]


def test_an_opening_goes_on_before_the_runtime_may_refuse_so_that_the_error_frees_the_rest() -> None:
    table = table_of(HEAD)
    sent = [*table.receive(opening(), 0.0), *table.failed("s", "memory_exceeded", "no room\nat all")]
    assert sent == [
        Forward(opening()),
        Open("s"),
        Close("s"),
        Forward(ErrorFrame("s", peer_of(1), "memory_exceeded", "no room at all")),
    ]


def test_the_head_takes_ids_and_passes_on_tensors_alone() -> None:
    table = opened(HEAD)
    compute = compute_of(table.receive(data(0, 2, head=True), 0.0))
    activation = (packed([5, 6]), None)
    assert table.computed(compute, activation, None, 0.0) == [
        Forward(DataFrame("s", 0, 0, 2, None, activation))
    ]


def test_ids_go_everywhere_for_a_runtime_that_needs_them() -> None:
    table = table_of(HEAD, ids=True)
    table.receive(opening(), 0.0)
    compute = compute_of(table.receive(data(0, 2, head=True), 0.0))
    (sent,) = table.computed(compute, (packed([5, 6]),), None, 0.0)
    assert isinstance(sent, Forward)
    assert isinstance(sent.frame, DataFrame)
    assert sent.frame.tokens == (0, 1)


def test_the_tail_answers_with_the_ids_it_chose() -> None:
    table = opened(TAIL)
    compute = compute_of(table.receive(data(0, 2), 0.0))
    assert table.computed(compute, None, [7, 8], 0.0) == [Forward(VerifiedFrame("s", 0, 0, (7, 8)))]


def test_a_stage_that_is_the_whole_ring_takes_ids_and_answers_with_ids() -> None:
    table = opened(WHOLE)
    compute = compute_of(table.receive(data(0, 2, head=True), 0.0))
    assert table.computed(compute, None, [7, 8], 0.0) == [Forward(VerifiedFrame("s", 0, 0, (7, 8)))]
    close, finish = table.receive(FinishFrame("s", 1, 2, ()), 0.0)
    assert close == Close("s")
    assert isinstance(finish, Forward)
    assert isinstance(finish.frame, FinishFrame)
    chain = ReceiptChain()
    chain.observe(0, [ids_bytes([0, 1])], [ids_bytes([7, 8])])
    (receipt,) = finish.frame.receipts
    assert (receipt["in_root"], receipt["out_root"], receipt["n_chunks"]) == (
        chain.in_root,
        chain.out_root,
        1,
    )
    assert (receipt["layer_start"], receipt["layer_end"], receipt["nonce"]) == (0, LAYERS, "nonce")


def test_receipts_of_earlier_stages_stay_in_the_finish_frame() -> None:
    table = opened()
    earlier: dict[str, str | int] = {"schema": "shard-receipt/1"}
    _, finish = table.receive(FinishFrame("s", 1, 0, (earlier,)), 0.0)
    assert isinstance(finish, Forward)
    assert isinstance(finish.frame, FinishFrame)
    assert finish.frame.receipts[0] is earlier
    assert len(finish.frame.receipts) == 2


@pytest.mark.parametrize("position", [0, 1, 3, 9], ids=["repeat", "overlap", "gap", "far gap"])
def test_frames_of_one_epoch_follow_each_other_exactly(position: int) -> None:
    table = opened()
    table.receive(data(0, 2), 0.0)
    error = error_of(table.receive(data(position, 2), 0.0))
    assert (error.session, error.stage, error.code) == ("s", peer_of(1), "frame_out_of_order")
    assert table.sessions() == ()


def test_a_later_epoch_rewinds_and_fences_off_what_was_waiting() -> None:
    table = opened()
    table.computed(compute_of(table.receive(data(0, 4), 0.0)), (packed([1]),), None, 0.0)
    old = compute_of(table.receive(data(4, 4), 0.0))
    new = compute_of(table.receive(data(3, 2, epoch=1), 0.0))
    assert (table.stands(old), table.stands(new)) == (False, True)
    (dropped,) = table.computed(old, (packed([1]),), None, 0.0)
    assert isinstance(dropped, Drop)
    (late,) = table.receive(data(8, 4), 0.0)
    assert isinstance(late, Drop)
    assert "epoch 0 is over" in late.reason
    assert isinstance(table.computed(new, (packed([1]),), None, 0.0)[0], Forward)


def test_a_later_epoch_may_not_build_on_what_it_fences_off() -> None:
    table = opened()
    table.receive(data(0, 4), 0.0)
    assert error_of(table.receive(data(4, 1, epoch=1), 0.0)).code == "frame_out_of_order"


@pytest.mark.parametrize(
    ("block", "frame"),
    [
        (HEAD, data(0)),
        (HEAD, DataFrame("s", 0, 0, 1, (1,), (packed([1]),))),
        (MIDDLE, data(0, head=True)),
        (TAIL, DataFrame("s", 0, 0, 1, None, (None,))),
        (MIDDLE, VerifiedFrame("s", 0, 0, (1,))),
        (MIDDLE, opening()),
    ],
    ids=["head without ids", "head with tensors", "ids alone", "only gaps", "answer", "opened twice"],
)
def test_a_frame_that_is_not_for_this_stage_is_refused(block: tuple[int, int], frame: Frame) -> None:
    assert error_of(opened(block).receive(frame, 0.0)).code == "frame_bad"


def test_a_frame_beyond_the_context_is_refused() -> None:
    table = opened(context=8)
    assert error_of(table.receive(data(0, 9), 0.0)).code == "context_exceeded"


def test_an_opening_that_promises_more_than_the_context_is_refused() -> None:
    assert error_of(table_of().receive(opening(prompt=30, most=3), 0.0)).code == "context_exceeded"


def test_an_opening_for_another_plan_is_refused() -> None:
    error = error_of(table_of().receive(opening(plan="plan-2"), 0.0))
    assert (error.code, error.message) == ("ring_changed", "this stage serves plan plan-1, not plan-2")


def test_one_session_too_many_is_refused_and_harms_no_other() -> None:
    table = table_of(sessions=1)
    table.receive(opening("s"), 0.0)
    assert error_of(table.receive(opening("t"), 0.0)).code == "busy"
    assert table.sessions() == ("s",)
    table.receive(CloseFrame("s", "enough"), 0.0)
    assert table.receive(opening("t"), 0.0)[-1] == Open("t")


@pytest.mark.parametrize("frame", [data(0), FinishFrame("s", 1, 0, ())], ids=["data", "finish"])
def test_a_session_that_is_not_open_is_named(frame: Frame) -> None:
    assert error_of(table_of().receive(frame, 0.0)).code == "session_unknown"


@pytest.mark.parametrize(("epoch", "position"), [(0, 4), (1, 5)], ids=["no fence", "not computed"])
def test_a_session_finishes_behind_its_epoch_and_within_what_is_computed(epoch: int, position: int) -> None:
    table = opened()
    table.computed(compute_of(table.receive(data(0, 4), 0.0)), (packed([1]),), None, 0.0)
    table.receive(data(4), 0.0)
    assert error_of(table.receive(FinishFrame("s", epoch, position, ()), 0.0)).code == "frame_out_of_order"


def test_a_finish_fences_off_what_waits_and_what_was_computed_behind_it() -> None:
    table = opened()
    for position in (0, 4):
        table.computed(compute_of(table.receive(data(position, 4), 0.0)), (packed([1]),), None, 0.0)
    table.receive(data(8, 4), 0.0)
    finish = table.receive(FinishFrame("s", 1, 3, ()), 0.0)[-1]
    assert isinstance(finish, Forward)
    assert isinstance(finish.frame, FinishFrame)
    assert finish.frame.receipts[0]["n_chunks"] == 1


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], False),
        ([data(4)], False),
        ([data(2, epoch=1, session="t")], False),
        ([data(2, epoch=1)], True),
        ([data(4), FinishFrame("s", 1, 2, ())], True),
        ([CloseFrame("s", "cancelled")], True),
        ([CloseFrame("t", "cancelled")], False),
    ],
)
def test_a_frame_is_overtaken_by_what_fences_off_its_session(later: list[Frame], expected: bool) -> None:
    assert overtaken(data(0, 4), later) is expected
    assert not overtaken(opening(), later)


def test_a_close_frees_and_goes_on_to_the_tail() -> None:
    closing = CloseFrame("s", "cancelled")
    assert opened(HEAD).receive(closing, 0.0) == [Close("s"), Forward(closing)]
    assert opened(TAIL).receive(closing, 0.0) == [Close("s")]
    dropped, sent = table_of(HEAD).receive(closing, 0.0)
    assert isinstance(dropped, Drop)
    assert sent == Forward(closing)


def test_an_error_frees_and_goes_on_to_the_coordinator() -> None:
    error = ErrorFrame("s", peer_of(0), "memory_exceeded", "no room")
    assert opened(TAIL).receive(error, 0.0) == [Close("s"), Forward(error)]


def test_an_error_of_the_whole_edge_frees_every_session() -> None:
    table = opened()
    table.receive(opening("t"), 0.0)
    error = ErrorFrame("", peer_of(0), "stage_lost", "gone")
    assert table.receive(error, 0.0) == [Close("s"), Close("t"), Forward(error)]


def test_a_runtime_that_refuses_is_reported_once() -> None:
    table = opened()
    error = error_of(table.failed("s", "memory_exceeded", "no room"))
    assert (error.session, error.code, error.message) == ("s", "memory_exceeded", "no room")
    (dropped,) = table.failed("s", "memory_exceeded", "no room")
    assert isinstance(dropped, Drop)


@pytest.mark.parametrize(
    ("block", "chosen"),
    [(MIDDLE, None), (TAIL, None), (TAIL, [1, 2])],
    ids=["no activation", "no ids", "too many ids"],
)
def test_a_runtime_that_gives_nothing_usable_fails_the_session(
    block: tuple[int, int], chosen: list[int] | None
) -> None:
    table = opened(block)
    compute = compute_of(table.receive(data(0), 0.0))
    assert error_of(table.computed(compute, None, chosen, 0.0)).code == "runtime_failed"


def test_an_idle_session_is_freed_but_a_slow_one_is_not() -> None:
    table = opened(idle=10.0)
    compute = compute_of(table.receive(data(0), 5.0))
    assert table.tick(100.0) == []
    table.computed(compute, (packed([1]),), None, 100.0)
    assert table.tick(109.9) == []
    assert error_of(table.tick(110.0)).code == "stalled"


def test_a_stage_serves_at_least_one_layer_of_the_model() -> None:
    with pytest.raises(ValueError, match=r"block \[2, 2\)"):
        StageRole(peer_of(0), "home", "plan-1", 2, 2, LAYERS)
