"""Speculation changes nothing but the speed: any drafter, depth, loss of interest and order of readers, the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_ring import LAYERS, VOCAB, SimulatedRing, blocks_of, generate, spec_of

from ring.depth import DepthSchedule
from ring.generation import verify_done
from ring.ngram import NgramDrafter, SuffixAutomaton

prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
cuts = st.lists(st.integers(1, LAYERS - 1), max_size=LAYERS - 1)


class Oracle:
    """A drafter that knows the result, and is wrong wherever `errors` (repeated for ever) says so."""

    name = "oracle"

    def __init__(self, result: Sequence[int], errors: Sequence[bool], most: int) -> None:
        self._result = list(result)
        self._errors = errors
        self._most = most
        self._known: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        self._known += tokens

    def draft(self, pending: Sequence[int], count: int) -> Sequence[int]:
        begin = len(self._known) + len(pending)
        end = min(begin + min(count, self._most), len(self._result))
        return [(self._result[at] + self._errors[at % len(self._errors)]) % VOCAB for at in range(begin, end)]


@settings(deadline=None)
@given(
    prompt=prompts,
    where=cuts,
    most=st.integers(1, 24),
    eos=st.sets(st.integers(0, VOCAB - 1), max_size=1),
    errors=st.one_of(
        st.just([False]), st.just([True]), st.lists(st.booleans(), min_size=1, max_size=9), st.none()
    ),
    each=st.integers(0, 6),
    drafts=st.integers(0, 5),
    window=st.integers(1, 8),
    data=st.data(),
)
def test_output_and_receipts_are_those_of_plain_decoding_whatever_is_drafted(
    prompt: list[int],
    where: list[int],
    most: int,
    eos: set[int],
    errors: list[bool] | None,
    each: int,
    drafts: int,
    window: int,
    data: st.DataObject,
) -> None:
    tokens, reason = generate(prompt, most, frozenset(eos))
    drafter = NgramDrafter(1) if errors is None else Oracle(prompt + tokens, errors, each)
    spec = spec_of(prompt, max_tokens=most, eos=frozenset(eos), window=window, draft_tokens=drafts)
    ring = SimulatedRing(blocks_of(where), spec, drafter=drafter)
    ring.act(ring.session.start(0.0))
    while waiting := [edge for edge, queue in enumerate(ring.edges) if queue]:
        ring.step(data.draw(st.sampled_from(waiting)))
        assert len(ring.session._in_flight) <= window
        assert ring.committed == tokens[: len(ring.committed)]
    assert ring.end is not None
    done = ring.done(ring.end)  # type: ignore[arg-type]
    assert (ring.committed, done.finish_reason) == (tokens, reason)
    assert verify_done(prompt, ring.committed, done, nonce="nonce-1") == len(ring.stages)
    assert all(not stage.table.sessions() and not stage.blocks for stage in ring.stages)
    counts = done_stats(ring)
    assert counts.accepted <= counts.judged <= counts.drafted
    if errors == [True]:
        assert counts.accepted == 0


def done_stats(ring: SimulatedRing):  # type: ignore[no-untyped-def]
    assert ring.end is not None
    return ring.end.stats.speculation


def run(drafter: object, *, most: int = 40, **changes: object) -> SimulatedRing:
    ring = SimulatedRing(
        blocks_of([2, 4]),
        spec_of((1, 2, 3), max_tokens=most, window=8, **changes),
        drafter=drafter,  # type: ignore[arg-type]
    )
    ring.run()
    return ring


RESULT = [1, 2, 3, *generate((1, 2, 3), 40, frozenset())[0]]


def test_a_perfect_drafter_fills_the_ring_and_wastes_nothing() -> None:
    ring = run(Oracle(RESULT, [False], 9))
    stats = done_stats(ring)
    assert (stats.wasted, stats.judged) == (0, stats.accepted)
    assert stats.mean_depth_milli > 3000
    assert ring.end is not None
    assert ring.end.stats.tokens_per_traversal > 4


def test_a_drafter_that_is_always_wrong_keeps_one_frame_under_way() -> None:
    ring = run(Oracle(RESULT, [True], 9))
    stats = done_stats(ring)
    assert stats.accepted == 0
    assert stats.confidence_milli < 10
    assert stats.mean_depth_milli < 1500


def test_stages_drop_overtaken_frames_uncomputed_and_the_receipts_agree() -> None:
    """Slow stages: each reads only when nothing else moves, so that fences wait behind what they fence off."""
    ring = SimulatedRing(
        blocks_of([2, 4]),
        spec_of((1, 2, 3), max_tokens=40, window=8),
        drafter=Oracle(RESULT, [False] * 7 + [True], 9),
    )
    ring.act(ring.session.start(0.0))
    while waiting := [edge for edge, queue in enumerate(ring.edges) if queue]:
        ring.step(waiting[-1])
    assert ring.dropped > 0
    assert ring.end is not None
    assert verify_done((1, 2, 3), ring.committed, ring.done(ring.end), nonce="nonce-1") == 3  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_automaton_finds_the_longest_suffix_that_came_before_and_what_followed(tokens: list[int]) -> None:
    text = SuffixAutomaton()
    for token in tokens:
        text.append(token)
    n = len(tokens)
    longest = next((k for k in range(n - 1, 0, -1) if occurs_before(tokens, tokens[n - k :])), 0)
    matches = text.matches(8)
    assert (matches[0][0] if matches else 0) == longest
    for length, end in matches:
        assert length <= end < n
        assert tokens[end - length : end] == tokens[n - length :]


def occurs_before(tokens: list[int], suffix: list[int]) -> bool:
    return any(tokens[at : at + len(suffix)] == suffix for at in range(len(tokens) - len(suffix)))


def test_the_ngram_drafter_copies_and_goes_on_copying_beyond_the_end() -> None:
    drafter = NgramDrafter()
    drafter.extend([7, 1, 2, 3, 9, 1, 2])
    assert list(drafter.draft((), 3)) == [3, 9, 1]
    assert list(drafter.draft((3, 9, 1), 4)) == [2, 3, 9, 1]
    drafter.extend([8, 8])
    assert list(drafter.draft((), 3)) == []


def test_the_ngram_drafter_prefers_the_latest_of_equal_matches() -> None:
    drafter = NgramDrafter()
    drafter.extend([1, 2, 3, 1, 2, 4, 1, 2])
    assert list(drafter.draft((), 1)) == [4]


def test_the_depth_follows_a_change_within_three_frames() -> None:
    schedule = DepthSchedule(5, 8)
    for _ in range(10):
        schedule.judged(5, 5)
    assert schedule.depth == 8
    for _ in range(3):
        schedule.judged(1, 0)
    assert schedule.depth == 1
    for _ in range(3):
        schedule.judged(5, 5)
    assert schedule.depth >= 3


@pytest.mark.parametrize("window", [1, 8])
def test_the_depth_never_leaves_its_bounds(window: int) -> None:
    schedule = DepthSchedule(1, window)
    for accepted in (0, 1, 1, 0, 1):
        for _ in range(200):
            schedule.judged(1, accepted)
            assert 1 <= schedule.depth <= window
