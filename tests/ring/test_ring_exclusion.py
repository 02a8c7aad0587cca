from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

import ring.exclusion
from ring.exclusion import ExclusionList, ExclusionTimings
from ring.identity import peer_id_of

PEERS = sorted(peer_id_of(bytes(SigningKey(bytes([n]) * 32).verify_key)) for n in range(3))
A, B, C = PEERS
TIMINGS = ExclusionTimings()


@pytest.fixture
def exclusions() -> ExclusionList:
    return ExclusionList(TIMINGS)


def test_a_refusal_keeps_a_host_out_for_a_while_and_says_why(exclusions: ExclusionList) -> None:
    exclusions.refused(B, 1, "no memory", 0)
    exclusions.refused(A, 1, "no disk", 1)
    assert exclusions.excluded(4.9) == ((A, "no disk"), (B, "no memory"))
    assert exclusions.next_end(4.9) == 5
    assert exclusions.excluded(5) == ((A, "no disk"),)
    assert exclusions.excluded(6) == ()
    assert exclusions.next_end(6) is None


@given(st.integers(1, 20))
def test_each_further_refusal_doubles_the_time_up_to_the_bound(refusals: int) -> None:
    exclusions = ExclusionList(TIMINGS)
    for count in range(refusals):
        exclusions.refused(A, 1, "again", count)
    assert exclusions.next_end(refusals) == refusals - 1 + min(5 * 2 ** (refusals - 1), 300)


def test_a_restart_clears_the_name_and_an_older_incarnation_does_not(exclusions: ExclusionList) -> None:
    exclusions.refused(A, 2, "no", 0)
    exclusions.seen(A, 1)
    exclusions.seen(A, 2)
    assert exclusions.excluded(1) == ((A, "no"),)
    exclusions.seen(A, 3)
    assert exclusions.excluded(1) == ()
    exclusions.refused(A, 3, "no", 1)
    exclusions.refused(A, 4, "no", 1)
    assert exclusions.next_end(1) == 6


def test_a_plan_that_succeeds_clears_the_name(exclusions: ExclusionList) -> None:
    exclusions.refused(A, 1, "no", 0)
    exclusions.served(A)
    exclusions.served(B)
    assert exclusions.excluded(1) == ()
    exclusions.refused(A, 1, "no", 1)
    assert exclusions.next_end(1) == 6


def test_what_is_remembered_is_bounded(exclusions: ExclusionList, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring.exclusion, "MAX_EXCLUDED", 2)
    exclusions.refused(B, 1, "first", 0)
    exclusions.refused(A, 1, "second", 1)
    exclusions.refused(C, 1, "third", 2)
    assert exclusions.excluded(3) == tuple(sorted(((A, "second"), (C, "third"))))
