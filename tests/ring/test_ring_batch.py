"""Which waiting frames share a forward pass: nothing is lost, sessions keep their order, and results are those of frames one by one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_ring import LAYERS, VOCAB, Stage, packed, peer_of

from ring.batch import BATCH_ROWS, take_batch
from ring.frame import CloseFrame, DataFrame, ErrorFrame, FinishFrame, Frame, OpenFrame
from ring.stage import Action, Compute, StageLimits

SESSIONS = "abc"


def data(session: str, position: int = 0, width: int = 1, *, epoch: int = 0, head: bool = False) -> DataFrame:
    ids = tuple((position + i + 3 * epoch + ord(session)) % VOCAB for i in range(width))
    return DataFrame(session, epoch, position, width, ids if head else None, () if head else (packed(ids),))


def opening(session: str) -> OpenFrame:
    return OpenFrame(session, "plan-1", "nonce", 8, 8)


ANY_FRAME = st.one_of(
    st.builds(data, st.sampled_from(SESSIONS), st.integers(0, 9), st.integers(1, 9)),
    st.builds(data, st.sampled_from(SESSIONS), st.integers(0, 9), st.integers(1, 9)),
    st.sampled_from(SESSIONS).map(opening),
    st.sampled_from(SESSIONS).map(lambda session: CloseFrame(session, "enough")),
    st.sampled_from(["", *SESSIONS]).map(lambda session: ErrorFrame(session, peer_of(0), "gone", "gone")),
)


@given(st.lists(ANY_FRAME, min_size=1, max_size=20), st.integers(1, 12))
def test_frames_go_together_or_past_each_other_only_where_that_makes_no_difference(
    frames: list[Frame], rows: int
) -> None:
    waiting = deque(frames)
    batch = take_batch(waiting, rows)
    where = {id(frame): index for index, frame in enumerate(frames)}
    order = [where[id(frame)] for frame in [*batch, *waiting]]
    assert order[0] == 0
    assert sorted(order) == list(range(len(frames)))
    if len(batch) > 1:
        together = [frame for frame in batch if isinstance(frame, DataFrame)]
        assert together == batch
        assert sum(frame.width for frame in together) <= rows
        assert len({frame.session for frame in together}) == len(together)
    for at, index in enumerate(order):
        if overtaken := {frames[other].session for other in order[at + 1 :] if other < index}:
            assert isinstance(frames[index], DataFrame)
            assert not overtaken & {"", frames[index].session}


@given(st.lists(ANY_FRAME, min_size=1, max_size=8), st.lists(ANY_FRAME, min_size=48, max_size=48))
def test_nothing_waits_for_ever_whatever_else_comes(frames: list[Frame], later: list[Frame]) -> None:
    waiting, missing, newcomers = deque(frames), {id(frame) for frame in frames}, iter(later)
    for _ in range(len(SESSIONS) * len(frames)):
        missing -= {id(frame) for frame in take_batch(waiting, rows=4)}
        if not missing:
            return
        waiting += [next(newcomers), next(newcomers)]
    raise AssertionError(f"{len(missing)} frames still wait")


def _one_by_one(stage: Stage, waiting: deque[Frame]) -> list[Frame]:
    return stage.receive(waiting.popleft())


def _together(stage: Stage, waiting: deque[Frame]) -> list[Frame]:
    """As the daemon does it: all frames are received, then all are computed, then all results go on."""
    actions: list[Action] = []
    for frame in take_batch(waiting):
        actions += stage.table.receive(frame, stage.now)
    return stage.carry_out(sorted(actions, key=lambda action: isinstance(action, Compute)))


@given(st.data(), st.sampled_from([(0, 2), (2, 4), (4, LAYERS), (0, LAYERS)]))
def test_sessions_side_by_side_get_the_results_and_receipts_of_frames_one_by_one(
    given_data: st.DataObject, block: tuple[int, int]
) -> None:
    limits = StageLimits(sessions=len(SESSIONS), context=64)
    traffic = {session: _traffic(given_data, session, head=block[0] == 0) for session in SESSIONS}
    order = given_data.draw(st.permutations([s for s, frames in traffic.items() for _ in frames]))
    arriving = {session: iter(frames) for session, frames in traffic.items()}
    stream = [next(arriving[session]) for session in order]
    groups = given_data.draw(st.lists(st.integers(1, 9), min_size=len(stream), max_size=len(stream)))

    def outcome(step: Callable[[Stage, deque[Frame]], list[Frame]]) -> dict[str, list[Frame]]:
        stage, waiting, sent = Stage(1, *block, limits), deque[Frame](), defaultdict[str, list[Frame]](list)
        coming = deque(stream)
        for size in groups:
            waiting.extend(coming.popleft() for _ in range(min(size, len(coming))))
            if waiting:
                for frame in step(stage, waiting):
                    sent[frame.session].append(frame)
        while waiting:
            for frame in step(stage, waiting):
                sent[frame.session].append(frame)
        assert not stage.table.sessions()
        return dict(sent)

    assert outcome(_together) == outcome(_one_by_one)


def _traffic(given_data: st.DataObject, session: str, *, head: bool) -> list[Frame]:
    """One session's frames: some in order, a later epoch that begins further back, and the receipts or an end."""
    frames: list[Frame] = [opening(session)]
    epoch = position = 0
    for width, back in given_data.draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=6)
    ):
        if back and position >= back:
            epoch, position = epoch + 1, position - back
        frames.append(data(session, position, width, epoch=epoch, head=head))
        position += width
    ends: list[Frame] = [FinishFrame(session, epoch + 1, position, ()), CloseFrame(session, "enough")]
    return [*frames, given_data.draw(st.sampled_from(ends))]


@pytest.mark.parametrize(
    ("waiting", "taken"),
    [
        ([data("a"), data("b"), data("c")], [0, 1, 2]),
        ([data("a", 0), data("a", 1), data("b")], [0, 2]),
        ([data("a"), opening("b"), data("b"), data("c")], [0, 3]),
        ([data("a"), CloseFrame("a", "enough"), data("b")], [0, 2]),
        ([data("a"), ErrorFrame("", peer_of(0), "gone", "gone"), data("b")], [0]),
        ([opening("a"), data("b"), data("c")], [0]),
        ([data("a", width=BATCH_ROWS), data("b")], [0]),
        ([data("a"), data("b", width=BATCH_ROWS), data("c")], [0, 2]),
        ([data("a", width=BATCH_ROWS - 1), data("b"), data("c")], [0, 1]),
    ],
    ids=[
        "all",
        "one of each session",
        "not before its opening",
        "past another's close",
        "not past an error of all",
        "an opening alone",
        "a wide frame alone",
        "past a wide frame",
        "full",
    ],
)
def test_data_frames_of_different_sessions_go_together(waiting: Sequence[Frame], taken: list[int]) -> None:
    assert take_batch(deque(waiting)) == [waiting[index] for index in taken]


def test_a_long_prompt_lets_the_others_have_their_turn_after_each_of_its_frames() -> None:
    prompt = [data("a", 512 * at, 512) for at in range(3)]
    waiting: deque[Frame] = deque([*prompt, data("b"), data("c")])
    passes = []
    while waiting:
        passes.append(batch := take_batch(waiting))
        if batch[0].session == "b" and len(passes) < 4:
            waiting += [data("b", 1), data("c", 1)]
    assert passes == [
        [prompt[0]],
        [data("b"), data("c")],
        [prompt[1]],
        [data("b", 1), data("c", 1)],
        [prompt[2]],
    ]


def test_long_prompts_that_take_turns_do_not_keep_an_opening_from_its_own() -> None:
    waiting: deque[Frame] = deque([data("a", 0, 512), opening("c"), data("b", 0, 512)])
    taken: list[Frame] = []
    for position in (512, 1024, 1536):
        (frame,) = take_batch(waiting)
        taken.append(frame)
        waiting.append(data(frame.session, position, 512))
    assert taken[1] == opening("c")


def test_of_nothing_there_is_no_batch() -> None:
    with pytest.raises(IndexError):
        take_batch(deque())
