"""The coordinator's machine: committed tokens are those of the model, in order and once, and every session ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_ring import LAYERS, VOCAB, SimulatedRing, blocks_of, generate, spec_of

from ring.frame import CloseFrame, DataFrame, ErrorFrame, FinishFrame, OpenFrame, VerifiedFrame
from ring.session import (
    TRANSITIONS,
    Commit,
    Failed,
    Finished,
    Send,
    Session,
    State,
)
from ring.session_spec import PromptInvalid, PromptTooLong
from ring.session_stats import SessionStats, SpeculationStats

prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
cuts = st.lists(st.integers(1, LAYERS - 1), max_size=LAYERS - 1)


def started(prompt: tuple[int, ...] = (1, 2, 3), **changes: object) -> Session:
    session = Session(spec_of(prompt, **changes), 0.0)  # type: ignore[arg-type]
    session.start(1.0)
    return session


@given(
    prompts,
    cuts,
    st.integers(1, 12),
    st.integers(13, 24),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_any_ring_says_what_the_model_says_alone(
    prompt: list[int], where: list[int], most: int, context: int, eos: set[int], chunk: int, window: int
) -> None:
    spec = spec_of(
        prompt, max_tokens=most, context=context, eos=frozenset(eos), prefill_chunk=chunk, window=window
    )
    ring = SimulatedRing(blocks_of(where), spec)
    end = ring.run()
    tokens, reason = generate(prompt, min(most, context - len(prompt)), frozenset(eos))
    assert (ring.committed, end.reason) == (tokens, reason)
    assert ring.session.committed == tuple(tokens)
    assert len(end.receipts) == len(ring.stages)
    assert all(not stage.table.sessions() and not stage.blocks for stage in ring.stages)


class SessionInARing(RuleBasedStateMachine):
    """A session over a ring whose readers run in any order, whose answers come twice, and which may break at any time."""

    @initialize(prompt=prompts, where=cuts, most=st.integers(1, 6), window=st.integers(1, 3))
    def begin(self, prompt: list[int], where: list[int], most: int, window: int) -> None:
        self.ring = SimulatedRing(blocks_of(where), spec_of(prompt, max_tokens=most, window=window))
        self.expected = generate(prompt, most, frozenset())[0]
        self.broken = False
        self.ring.act(self.ring.session.start(0.0))

    @rule(data=st.data())
    def a_reader_takes_its_next_frame(self, data: st.DataObject) -> None:
        waiting = [edge for edge, queue in enumerate(self.ring.edges) if queue]
        if waiting:
            self.ring.step(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: self.ring.returned)
    @rule(data=st.data())
    def an_old_answer_comes_again(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.ring.returned))
        if isinstance(frame, VerifiedFrame):
            assert self.ring.answer(frame) == []

    @rule(chance=st.integers(0, 9), data=st.data())
    def a_stage_may_lose_its_edge(self, chance: int, data: st.DataObject) -> None:
        if chance == 0 and not self.broken:
            self.broken = True
            index = data.draw(st.integers(0, len(self.ring.stages) - 1))
            stage = self.ring.stages[index]
            self.ring.edges[index].clear()
            lost = ErrorFrame("", stage.peer, "stage_lost", "the stage before is gone")
            for sent in stage.receive(lost):
                self.ring.push(index + 1, sent)

    @rule(chance=st.integers(0, 14))
    def the_client_may_go_away(self, chance: int) -> None:
        if chance == 0:
            self.broken = True
            self.ring.act(self.ring.session.cancel("the client went away", self.ring.now))

    @invariant()
    def what_is_committed_is_a_prefix_of_the_result(self) -> None:
        if hasattr(self, "ring"):
            assert self.ring.committed == self.expected[: len(self.ring.committed)]
            assert tuple(self.ring.committed) == self.ring.session.committed

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.ring.drain()
        session = self.ring.session
        if not session.over:
            assert self.broken, "a whole ring has lost a session"
            self.ring.act(session.tick(session.deadline))
        self.ring.drain()
        assert self.ring.end is not None
        assert all(not stage.table.sessions() and not stage.blocks for stage in self.ring.stages)
        if not self.broken:
            assert isinstance(self.ring.end, Finished)
            assert self.ring.committed == self.expected


TestSessionInARing = SessionInARing.TestCase
TestSessionInARing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_prompt_goes_out_in_chunks_up_to_the_window_and_then_as_room_comes() -> None:
    session = Session(spec_of(range(5), prefill_chunk=2, window=2), 0.0)
    assert session.start(0.0) == [
        Send(OpenFrame("session-1", "plan-1", "nonce-1", 5, 5)),
        Send(DataFrame("session-1", 0, 0, 2, (0, 1), ())),
        Send(DataFrame("session-1", 0, 2, 2, (2, 3), ())),
    ]
    assert session.verified(0, 0, [9, 9], 1.0) == [Send(DataFrame("session-1", 0, 4, 1, (4,), ()))]
    assert session.verified(0, 2, [9, 9], 1.0) == []
    assert session.verified(0, 4, [7], 1.0) == [Commit((7,)), Send(DataFrame("session-1", 0, 5, 1, (7,), ()))]
    assert session.state is State.DECODING


def test_an_end_token_ends_with_stop_even_where_max_tokens_is_reached() -> None:
    session = started(max_tokens=1, eos=frozenset({4}), prefill_chunk=3)
    assert session.verified(0, 0, [9, 9, 4], 2.0) == [Commit((4,)), Send(FinishFrame("session-1", 1, 3, ()))]
    (end,) = session.receipts([], 3.0)
    assert isinstance(end, Finished)
    assert end.reason == "stop"


def test_an_end_token_within_the_prompt_ends_nothing() -> None:
    session = started((4, 4, 4), eos=frozenset({4}), prefill_chunk=3)
    session.verified(0, 0, [4, 4, 9], 2.0)
    assert session.state is State.DECODING


def test_a_full_context_ends_with_length() -> None:
    session = started(context=4, prefill_chunk=3)
    assert session.spec.limit == 1
    session.verified(0, 0, [9, 9, 9], 2.0)
    (end,) = session.receipts([], 3.0)
    assert isinstance(end, Finished)
    assert end.reason == "length"


def test_the_times_in_the_statistics_count_from_the_start() -> None:
    session = Session(spec_of(max_tokens=2, prefill_chunk=3), 10.0)
    session.start(10.0)
    session.verified(0, 0, [9, 9, 9], 10.25)
    session.verified(0, 3, [9], 10.5)
    (end,) = session.receipts([], 10.75)
    assert isinstance(end, Finished)
    assert end.stats == SessionStats(
        prompt_tokens=3,
        tokens=2,
        frames=2,
        ttft_us=250_000,
        total_us=750_000,
        traversals=2,
        speculation=SpeculationStats(sent=1, mean_depth_milli=1000, confidence_milli=900),
    )


def test_an_answer_of_a_past_position_is_ignored_and_is_no_progress() -> None:
    session = started()
    session.verified(0, 0, [9, 9], 2.0)
    before = session.deadline
    assert session.verified(0, 0, [8, 8], 20.0) == []
    assert session.deadline == before


def test_an_answer_of_an_epoch_that_is_over_is_ignored() -> None:
    session = started()
    session.epoch = 1
    assert session.verified(0, 0, [9, 9], 2.0) == []
    assert session.state is State.PREFILLING


@pytest.mark.parametrize(
    ("epoch", "position", "tokens"),
    [(0, 2, [9]), (0, 0, [9]), (0, 0, []), (1, 0, [9, 9]), (0, 0, [9, VOCAB]), (0, 0, [-1, 9])],
    ids=["gap", "too narrow", "empty", "epoch to come", "no such token", "negative token"],
)
def test_an_answer_to_what_was_not_asked_fails_the_session_by_name(
    epoch: int, position: int, tokens: list[int]
) -> None:
    session = started()
    close, failure = session.verified(epoch, position, tokens, 2.0)
    assert isinstance(close, Send)
    assert isinstance(close.frame, CloseFrame)
    assert isinstance(failure, Failed)
    assert failure.code == "ring_fault"


def test_no_progress_for_the_whole_deadline_is_a_stall_and_progress_renews_it() -> None:
    session = started(progress_seconds=5.0)
    assert session.deadline == 6.0
    session.verified(0, 0, [9, 9], 5.5)
    assert session.tick(10.4) == []
    close, failure = session.tick(10.5)
    assert isinstance(close, Send)
    assert isinstance(failure, Failed)
    assert (failure.code, failure.message) == ("stalled", "no progress for 5 s while prefilling")


def test_receipts_that_do_not_come_are_a_named_failure_though_all_tokens_are_there() -> None:
    session = started(max_tokens=1, prefill_chunk=3)
    session.verified(0, 0, [9, 9, 9], 2.0)
    _, failure = session.failed("stage_lost", "its connection broke", "12D3", 3.0)
    assert isinstance(failure, Failed)
    assert (failure.code, failure.stage) == ("stage_lost", "12D3")
    assert failure.message == "all tokens are there, but their receipts are not: its connection broke"


def test_receipts_before_the_end_are_ignored() -> None:
    session = started()
    assert session.receipts([], 2.0) == []
    assert session.state is State.PREFILLING


def test_a_session_that_was_never_opened_closes_nothing() -> None:
    session = Session(spec_of(), 0.0)
    (failure,) = session.cancel("the client went away", 1.0)
    assert isinstance(failure, Failed)
    assert failure.code == "cancelled"


def test_nothing_happens_after_the_end() -> None:
    session = started()
    session.cancel("enough", 1.0)
    assert session.over
    assert session.cancel("again", 2.0) == []
    assert session.failed("stage_lost", "late", "", 2.0) == []
    assert session.tick(1e9) == []
    assert session.verified(0, 0, [9, 9], 2.0) == []
    assert session.receipts([], 2.0) == []


def test_a_session_starts_once() -> None:
    session = started()
    with pytest.raises(RuntimeError, match="cannot go from prefilling to prefilling"):
        session.start(2.0)


def test_only_done_and_failed_are_ends() -> None:
    assert [state for state, following in TRANSITIONS.items() if not following] == [State.DONE, State.FAILED]
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": ()}, "has no tokens"),
        ({"prompt": (1, VOCAB)}, f"prompt token 1 is {VOCAB}"),
        ({"prompt": (-1,)}, "prompt token 0 is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_an_impossible_request_is_refused_by_name(changes: dict[str, object], says: str) -> None:
    with pytest.raises(PromptInvalid, match=says) as refused:
        spec_of(**changes)  # type: ignore[arg-type]
    assert refused.value.code == "bad_request"


def test_a_prompt_that_leaves_no_room_is_refused_at_once() -> None:
    spec_of((1, 2, 3), context=4)
    with pytest.raises(PromptTooLong, match="3 tokens, but at most 2 leave room") as refused:
        spec_of((1, 2, 3), context=3)
    assert refused.value.code == "context_exceeded"
