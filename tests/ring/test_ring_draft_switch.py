"""A drafter is used while it pays, as measured, and tried again after a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ring.draft_switch import DraftSwitch


def decode(
    switch: DraftSwitch, answers: int, *, right: int, drafted_s: float, confidence: float
) -> list[bool]:
    """Decode with plain frames that take a second; return for each answer whether its frame was drafted."""
    kinds: list[bool] = []
    for _ in range(answers):
        kinds.append(switch.on)
        tokens, seconds = (1 + right, drafted_s) if switch.on else (1, 1.0)
        switch.answered(switch.on, tokens, seconds, confidence)
    return kinds


def test_a_drafter_that_is_right_stays_on_though_its_frames_take_longer() -> None:
    assert all(decode(DraftSwitch(), 100, right=4, drafted_s=3.0, confidence=0.9))


def test_a_drafter_that_is_wrong_is_nearly_never_used_where_its_frames_take_longer() -> None:
    kinds = decode(DraftSwitch(), 1000, right=0, drafted_s=3.0, confidence=0.0)
    assert kinds[:8] == [True] * 8
    assert 8 < sum(kinds) < 100
    assert sum(3 if kind else 1 for kind in kinds[-500:]) < 1.1 * 500


def test_a_wrong_drafter_that_costs_nothing_stays_on_once_plain_frames_are_measured() -> None:
    kinds = decode(DraftSwitch(), 200, right=0, drafted_s=1.0, confidence=0.0)
    assert kinds.count(False) == 8


def test_a_drafter_that_pays_again_is_found_out_and_kept() -> None:
    switch = DraftSwitch()
    decode(switch, 60, right=0, drafted_s=3.0, confidence=0.0)
    kinds = decode(switch, 200, right=4, drafted_s=3.0, confidence=0.9)
    assert all(kinds[-100:])


def test_a_doubtful_drafter_that_becomes_right_need_not_wait_for_the_end_of_its_rest() -> None:
    switch = DraftSwitch()
    while switch.on or switch._rest < 128:
        decode(switch, 1, right=0, drafted_s=3.0, confidence=0.0)
    decode(switch, 1, right=4, drafted_s=3.0, confidence=0.75)
    assert switch.on


def test_a_drafter_that_is_right_but_too_slow_is_not_tried_for_being_right() -> None:
    kinds = decode(DraftSwitch(), 1000, right=1, drafted_s=9.0, confidence=0.9)
    kinds += decode(switch := DraftSwitch(), 20, right=0, drafted_s=3.0, confidence=0.0)
    assert all(kinds[:1000]), "without a measurement of plain frames there is nothing to compare with"
    kinds = decode(switch, 1000, right=1, drafted_s=9.0, confidence=0.9)
    assert sum(kinds[-500:]) < 20


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.floats(0, 10), st.floats(0, 1)), max_size=300))
def test_no_measurements_keep_it_off_for_ever(answers: list[tuple[bool, int, float, float]]) -> None:
    switch = DraftSwitch()
    for answer in answers:
        switch.answered(*answer)
    for _ in range(512):
        if switch.on:
            break
        switch.answered(False, 1, 1.0, 0.5)
    assert switch.on
