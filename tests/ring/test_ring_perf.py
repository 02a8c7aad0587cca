"""PerfBook: averages, windows, bounds; device classes; what learning changes in a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring import perf
from ring.device_class import CLASSES, REFERENCE_BYTES, REFERENCE_FLOPS, class_of, prior_layer_ns
from ring.drafting import Drafter
from ring.perf import Estimate, PerfBook, bucket_of, steady

times = st.integers(1, 10**12)


def test_the_first_sample_stands_alone_and_later_ones_are_averaged() -> None:
    book = PerfBook()
    book.saw_layer("a", "m", 1, 1000)
    assert book.layer_ns("a", "m") == ((1, 1000),)
    book.saw_layer("a", "m", 1, 2000)
    book.saw_layer("a", "m", 64, 9000)
    assert book.layer_ns("a", "m") == ((1, 1500), (64, 9000))
    assert book.layer_ns("a", "other") == book.layer_ns("b", "m") == ()


def test_what_is_expected_yields_to_the_first_sample_and_counts_as_one_after_it() -> None:
    book = PerfBook()
    book.expect_layer("a", "m", 1, 1000)
    book.expect_layer("a", "m", 1, 1200)
    book.expect_tail("a", "m", 50)
    assert (book.layer_ns("a", "m"), book.tail_ns("a", "m")) == (((1, 1200),), 50)
    book.saw_layer("a", "m", 1, 4000)
    assert book.layer_ns("a", "m") == ((1, 4000),)
    book.expect_layer("a", "m", 1, 1000)
    assert book.layer_ns("a", "m") == ((1, 2500),)


@given(st.lists(times, min_size=1, max_size=40))
def test_an_average_lies_among_its_samples(samples: list[int]) -> None:
    book = PerfBook()
    for sample in samples:
        book.saw_tail("a", "m", sample)
    assert min(samples) <= book.tail_ns("a", "m") <= max(samples)


@given(times, times)
def test_an_average_forgets_what_was_long_ago(former: int, now: int) -> None:
    book = PerfBook([(("uplink", ("a",)), Estimate(former, 8))])
    for _ in range(300):
        book.saw_uplink("a", now)
    assert book.uplink("a") == now


def test_a_round_trip_is_the_least_of_the_last_samples_and_each_direction_has_its_own() -> None:
    book = PerfBook([(("rtt", ("a", "b")), Estimate(5, 12))])
    assert book.rtt_us("a", "b") == 5
    book.saw_rtt("a", "b", 900)
    assert book.rtt_us("a", "b") == 900, "the first sample of this run replaces what was remembered"
    book.saw_rtt("a", "b", 700)
    book.saw_rtt("a", "b", 950)
    assert (book.rtt_us("a", "b"), book.rtt_us("b", "a")) == (700, 0)
    for _ in range(perf.RTT_WINDOW):
        book.saw_rtt("a", "b", 1100)
    assert book.rtt_us("a", "b") == 1100


def test_acceptance_is_learned_by_depth_and_context() -> None:
    book = PerfBook()
    for accepted in (0, 1, 2, 2):
        book.saw_drafts("m", "ngram", context=100, offered=2, accepted=accepted, token_ns=50)
    book.saw_drafts("m", "ngram", context=5000, offered=3, accepted=1, token_ns=50)
    assert book.acceptance("m", "ngram") == ((0, (750_001, 666_667)), (4096, (1_000_000, 0)))
    Drafter("ngram", book.draft_ns("m", "ngram"), book.acceptance("m", "ngram"))
    assert book.acceptance("m", "other") == ()


@given(st.integers(0, 1 << 24), st.integers(0, 40), st.data())
def test_what_is_learned_of_drafts_is_what_a_drafter_takes(
    context: int, offered: int, data: st.DataObject
) -> None:
    book = PerfBook()
    accepted = data.draw(st.integers(0, offered))
    book.saw_drafts("m", "d", context=context, offered=offered, accepted=accepted, token_ns=7)
    rows = book.acceptance("m", "d")
    assert bool(rows) == bool(offered)
    if rows:
        Drafter("d", 7, rows)
    assert bucket_of(context) <= context


def test_more_accepted_than_offered_is_refused() -> None:
    with pytest.raises(ValueError, match="accepted is 3"):
        PerfBook().saw_drafts("m", "d", context=0, offered=2, accepted=3, token_ns=1)


def test_a_book_forgets_what_was_not_renewed_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "MAX_ESTIMATES", 3)
    book = PerfBook()
    for peer in ("a", "b", "c"):
        book.saw_uplink(peer, 5)
    book.saw_uplink("a", 5)
    book.take_changes()
    book.saw_uplink("d", 5)
    assert book.take_changes() == [(("uplink", ("d",)), Estimate(5, 1)), (("uplink", ("b",)), None)]
    assert len(book) == 3


def test_changes_are_told_once_and_can_be_put_back() -> None:
    book = PerfBook()
    book.saw_uplink("a", 5)
    changes = book.take_changes()
    assert changes == [(("uplink", ("a",)), Estimate(5, 1))]
    assert book.take_changes() == []
    book.put_back(changes)
    assert book.take_changes() == changes


@given(st.integers(100, 10**12), st.integers(-9, 9))
def test_a_figure_that_moves_by_less_than_a_tenth_is_said_unchanged(figure: int, percent: int) -> None:
    said = steady(0, figure)
    assert abs(said - figure) * 20 <= figure + 20
    assert steady(said, said + said * percent // 100) == said


@given(times)
def test_a_figure_that_moves_further_is_said_anew(figure: int) -> None:
    assert steady(figure, 2 * figure) != figure
    assert steady(0, 0) == 0


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("rtx_3090", "3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "3090"),
        ("AMD EPYC 40900", None),
        ("", None),
    ],
)
def test_a_device_is_of_the_class_that_its_name_holds(device: str, name: str | None) -> None:
    known = class_of(device)
    assert (known and known.name) == name


def test_priors_are_the_known_times_of_the_reference_layer_and_scale_with_bytes_and_operations() -> None:
    prior = {
        known.name: dict(prior_layer_ns(known, layer_bytes=REFERENCE_BYTES, layer_flops=REFERENCE_FLOPS))
        for known in CLASSES
    }
    assert {name: ns[1] for name, ns in prior.items()} == {
        "H100": 180_000,
        "A100": 300_000,
        "4090": 420_000,
        "3090": 700_000,
    }
    assert prior["3090"][64] == 700_000, "reading the weights takes longer than their arithmetic"
    assert prior["3090"][512] == 700_000 * 512 // 76, "here it is the other way round"
    half = dict(prior_layer_ns(CLASSES[0], layer_bytes=REFERENCE_BYTES // 2, layer_flops=REFERENCE_FLOPS))
    assert (half[1], half[512]) == (90_000, prior["H100"][512])
