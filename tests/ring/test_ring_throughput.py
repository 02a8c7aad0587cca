"""The model of speed: layer times between and beyond what was measured, circuits, tokens per second, prefill."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring.throughput import (
    FRAME_HEADER_BYTES,
    PREFILL_WIDTH,
    LayerTimes,
    StageCost,
    bottleneck_ns,
    circuit_ns,
    layer_ns_at,
    one_way_us,
    prefill_frames,
    prefill_ns,
)

MEASURED: LayerTimes = ((2, 1000), (4, 1400), (16, 5000))

measurements = st.dictionaries(st.integers(1, 4096), st.integers(1, 10**12), min_size=1, max_size=6).map(
    lambda times: tuple(sorted(times.items()))
)
rising = measurements.map(
    lambda times: tuple(zip([width for width, _ in times], sorted(ns for _, ns in times), strict=True))
)


@pytest.mark.parametrize(("width", "expected"), [(2, 1000), (3, 1200), (4, 1400), (5, 1700), (16, 5000)])
def test_a_layer_time_is_linear_between_measured_widths(width: int, expected: int) -> None:
    assert layer_ns_at(MEASURED, width) == expected


def test_a_layer_time_prolongs_the_nearest_segment() -> None:
    assert layer_ns_at(MEASURED, 1) == 800
    assert layer_ns_at(MEASURED, 20) == 5000 + 4 * 300


def test_a_narrow_frame_costs_at_least_its_share_and_at_most_all_of_the_narrowest_measured() -> None:
    assert layer_ns_at(((8, 100), (9, 1000)), 1) == 13
    assert layer_ns_at(((8, 1000), (9, 100)), 1) == 1000


def test_a_wide_frame_is_never_faster_than_the_widest_measured() -> None:
    assert layer_ns_at(((1, 1000), (4, 700)), 64) == 700


def test_with_one_measurement_a_wider_frame_costs_its_share_and_a_narrower_one_as_much() -> None:
    assert layer_ns_at(((4, 1000),), 8) == 2000
    assert layer_ns_at(((4, 1000),), 1) == 1000


@pytest.mark.parametrize(("times", "width"), [((), 1), (MEASURED, 0)])
def test_a_layer_time_without_ground_is_refused(times: LayerTimes, width: int) -> None:
    with pytest.raises(ValueError, match="no time for width"):
        layer_ns_at(times, width)


@settings(deadline=None)
@given(measurements)
def test_measured_widths_keep_their_measured_times(times: LayerTimes) -> None:
    assert all(layer_ns_at(times, width) == ns for width, ns in times)


@settings(deadline=None)
@given(rising)
def test_a_wider_frame_never_costs_less_where_measurements_rise(times: LayerTimes) -> None:
    costs = [layer_ns_at(times, width) for width in range(1, 200)]
    assert all(narrow <= wide for narrow, wide in pairwise(costs))
    assert costs[0] >= 1


def test_an_edge_is_half_of_what_its_more_pessimistic_end_measured() -> None:
    assert one_way_us(100, 80) == one_way_us(80, 100) == 50
    assert one_way_us(101, 3) == 51


RING = (
    StageCost(layers=3, layer_ns=((1, 1000), (11, 2000)), tail_ns=0, hop_us=5),
    StageCost(layers=2, layer_ns=((1, 4000),), tail_ns=700, hop_us=7),
)


def test_a_circuit_is_all_computing_and_all_hops() -> None:
    assert circuit_ns(RING) == 3 * 1000 + 5000 + 2 * 4000 + 700 + 7000
    assert circuit_ns(RING, 11) == 3 * 2000 + 5000 + 2 * 44000 + 11 * 700 + 7000


def test_the_bottleneck_is_the_slowest_stage_or_uplink() -> None:
    assert bottleneck_ns(RING) == RING[1].compute_ns(1)
    assert bottleneck_ns(RING, 11) == 2 * 44000 + 11 * 700
    congested = replace(RING[0], token_bytes=1000, uplink=10_000_000)
    assert congested.wire_ns(1) == (FRAME_HEADER_BYTES + 1000) * 100
    assert bottleneck_ns((congested, RING[1])) == congested.wire_ns(1)


def test_a_hop_takes_its_bytes_and_its_overhead_along() -> None:
    sending = replace(RING[0], token_bytes=1000, uplink=10_000_000, overhead_ns=77)
    assert sending.hop_ns(3) == 5_000 + (FRAME_HEADER_BYTES + 3000) * 100 + 77
    assert circuit_ns((sending, RING[1])) == circuit_ns(RING) + sending.wire_ns(1) + 77


def test_an_unmeasured_uplink_costs_nothing() -> None:
    assert replace(RING[0], token_bytes=1000).wire_ns(5) == 0


def test_a_prompt_of_one_frame_takes_one_circuit() -> None:
    assert prefill_frames(11) == (11, 1)
    assert prefill_ns(1000, 300, 1) == 1000


def test_further_frames_of_a_prompt_cost_what_the_slowest_part_needs() -> None:
    assert prefill_frames(2 * PREFILL_WIDTH + 1) == (PREFILL_WIDTH, 3)
    assert prefill_ns(1000, 300, 3) == 1600


def test_a_prompt_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        prefill_frames(0)
