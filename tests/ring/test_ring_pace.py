"""How a session should use a ring: what the closed form says, and which pace is chosen."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring.drafting import MAX_CHAIN, ONE, Drafter, chance_sum, tokens_per_chain
from ring.objective import Objective
from ring.pace import MAX_FRAMES, Pace, best_pace, pace_at, token_ps
from ring.throughput import StageCost, bottleneck_ns, circuit_ns
from ring.worth import Worth
from swarmd.bench.plan_pipeline import SimulatedSession, simulated_token_ns

CIRCUIT, BOTTLENECK = 100_000_000, 4_000_000  # ns


def drafter(alpha: float, token_ns: int = 0) -> Drafter:
    return Drafter("draft", token_ns, ((0, (int(alpha * 1e6),)),))


def ring_pace(
    *drafters: Drafter, circuit: int = CIRCUIT, bottleneck: int = BOTTLENECK, sessions: int = 1
) -> Pace:
    return best_pace(lambda width: circuit, lambda width: bottleneck, drafters, sessions=sessions)


def test_a_chain_commits_the_geometric_sum_of_its_chances() -> None:
    assert tokens_per_chain((500_000,)) == pytest.approx(2 * ONE, rel=1e-9)
    assert tokens_per_chain((0,)) == ONE
    assert tokens_per_chain((1_000_000,)) == MAX_CHAIN * ONE
    assert tokens_per_chain((500_000, 0)) == ONE + ONE // 2
    assert chance_sum((500_000,), 2) == pytest.approx(ONE / 3, rel=1e-9)
    with pytest.raises(ValueError, match="step is 0"):
        chance_sum((1,), 0)


def test_the_row_of_the_context_counts() -> None:
    rising = Drafter("draft", 0, ((0, (1,)), (100, (2,)), (1000, (3,))))
    assert [rising.chances_at(context) for context in (0, 99, 100, 5000)] == [(1,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    "rows", [(), ((1, (1,)),), ((0, ()),), ((0, (1,)), (0, (2,))), ((0, (1_000_001,)),), ((0, (-1,)),)]
)
def test_chances_that_make_no_sense_are_refused(rows: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    with pytest.raises(ValueError, match="acceptance"):
        Drafter("draft", 0, rows)


def test_without_a_drafter_a_token_takes_a_circuit() -> None:
    assert ring_pace() == Pace(CIRCUIT * 1000, 1, 1, "")
    assert ring_pace().millitok_s == 10_000


def test_one_frame_at_a_time_commits_what_of_it_is_accepted_and_one_more() -> None:
    found = token_ps(5, 1, CIRCUIT, BOTTLENECK, draft_ns=0, chances=(800_000,), sessions=1)
    assert found == pytest.approx(1000 * CIRCUIT * (1 - 0.8) / (1 - 0.8**5), rel=1e-6)


def test_a_drafter_that_is_never_right_is_not_used() -> None:
    assert ring_pace(drafter(0.0)).drafter == ""


def test_a_drafter_that_is_slower_than_the_ring_is_not_used() -> None:
    assert ring_pace(drafter(0.9, token_ns=2 * CIRCUIT)).drafter == ""


def test_the_pipe_is_filled_as_far_as_a_circuit_holds_frames() -> None:
    pace = pace_at(4, CIRCUIT, BOTTLENECK, drafter(0.9), context=0, sessions=1)
    assert pace.frames == CIRCUIT // BOTTLENECK
    deep = token_ps(4, 64, CIRCUIT, BOTTLENECK, draft_ns=0, chances=(900_000,), sessions=1)
    assert deep > pace.token_ps


def test_forcing_the_pipe_full_can_halve_the_speed() -> None:
    """Solo: each frame in flight beyond the first only stands in the way of the next chain."""
    forced = token_ps(4, 4, 10_000, 10_000, draft_ns=0, chances=(300_000,), sessions=1)
    assert pace_at(4, 10_000, 10_000, drafter(0.3), context=0, sessions=1).frames == 1
    assert forced > 2 * token_ps(4, 1, 10_000, 10_000, draft_ns=0, chances=(300_000,), sessions=1)


def test_a_better_drafter_is_preferred_and_pays_more_the_longer_the_way() -> None:
    good, bad = drafter(0.9), Drafter("bad", 0, ((0, (300_000,)),))
    assert ring_pace(bad, good).drafter == "draft"
    assert ring_pace(good).millitok_s > 5 * ring_pace().millitok_s


def test_many_sessions_are_bound_by_the_bottleneck() -> None:
    assert ring_pace(sessions=4).token_ps == CIRCUIT * 1000 // 4
    assert ring_pace(sessions=100).token_ps == BOTTLENECK * 1000
    # Drafts that fail cost the others their turn: with a bad drafter many sessions are better off without.
    busy = best_pace(lambda w: CIRCUIT, lambda w: BOTTLENECK * (3 + w) // 4, [drafter(0.2)], sessions=100)
    assert busy.drafter == ""


def test_no_more_frames_are_sent_than_a_session_may_have_under_way() -> None:
    assert pace_at(1, 10**12, 1, drafter(1.0), context=0, sessions=1).frames == MAX_FRAMES


def made_up_rings() -> list[tuple[StageCost, ...]]:
    dice = np.random.default_rng(7)
    rings = []
    for _ in range(24):
        count = int(dice.integers(1, 6))
        uplink = int(dice.choice((0, 5_000_000, 50_000_000)))
        ring = []
        for place in range(count):
            layer_us, hop_us = int(dice.integers(100, 900)), int(dice.choice((200, 3000, 20_000, 60_000)))
            wire = (hop_us, 8192, uplink, 200_000) if count > 1 else (0,)
            times = ((1, layer_us * 1000), (16, layer_us * 2500))
            ring.append(StageCost(int(dice.integers(1, 12)), times, 80_000 * (place == count - 1), *wire))
        rings.append(tuple(ring))
    return rings


def test_the_closed_form_agrees_with_a_simulation_of_every_frame() -> None:
    dice = np.random.default_rng(8)
    errors = []
    for number, ring in enumerate(made_up_rings()):
        alpha, draft_ns = (0.3, 0.6, 0.8, 0.95)[number % 4], (0, 200_000, 2_000_000)[number % 3]
        guess = Drafter("draft", draft_ns, ((0, (int(alpha * 1e6), int(alpha * 0.9e6))),))
        for width in (1, 2, 5, 8):
            pace = pace_at(
                width, circuit_ns(ring, width), bottleneck_ns(ring, width), guess, context=0, sessions=1
            )
            session = SimulatedSession(width, pace.frames, draft_ns, guess.chances_at(0))
            simulated = 1000 * simulated_token_ns(ring, session, 3000, dice)
            errors.append(abs(pace.token_ps - simulated) / simulated)
    assert statistics.median(errors) < 0.02
    assert max(errors) < 0.15


@settings(deadline=None)
@given(
    st.integers(1, 16),
    st.integers(1, 10**9),
    st.integers(1, 10**8),
    st.integers(0, 10**7),
    st.lists(st.integers(0, 999_999), min_size=1, max_size=4).map(tuple),
)
def test_no_other_number_of_frames_is_better(
    width: int, circuit: int, bottleneck: int, draft_ns: int, chances: tuple[int, ...]
) -> None:
    circuit = max(circuit, bottleneck)
    guess = Drafter("draft", draft_ns, ((0, chances),))
    pace = pace_at(width, circuit, bottleneck, guess, context=0, sessions=1)
    others = (
        token_ps(width, frames, circuit, bottleneck, draft_ns=draft_ns, chances=chances, sessions=1)
        for frames in range(1, MAX_FRAMES + 1)
    )
    assert pace.token_ps <= min(others) + 1  # rounded down


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**8), st.integers(0, 10**8), st.integers(1, 8), st.booleans())
def test_a_slower_ring_is_never_worth_more(
    circuit: int, bottleneck: int, more: int, width: int, together: bool
) -> None:
    """The search leans on it."""
    circuit = max(circuit, bottleneck)
    worth = Worth(Objective("aggregate" if together else "tok_s", drafters=(drafter(0.8, 100_000),)), 6)
    assert worth.value(width, circuit, bottleneck) <= worth.value(width, circuit + more, bottleneck)
    assert worth.value(width, circuit, bottleneck) <= worth.value(width, circuit, bottleneck + more)
