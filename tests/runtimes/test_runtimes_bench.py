"""The measuring behind `swarmd bench`: tiny real runs, of which no figure is judged that depends on time."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from runtimes.bench.forward import SIDES, ForwardCase, ForwardFigures, measure_forward
from runtimes.bench.interleave import Side, interleave
from runtimes.bench.load import LoadFigures, measure_load
from runtimes.bench.operations import PARTS
from swarmd.bench.load import load_report
from swarmd.bench.runtime import runtime_report

TINY = ForwardCase(hidden=128, intermediate=256, heads=2, kv_heads=1, layers=6, lo=2, hi=4, context=32)


def test_sides_take_turns_and_the_first_rounds_do_not_count() -> None:
    ran: list[str] = []
    ticks = count(step=10)
    rounds = interleave(
        {
            "a": Side(lambda: ran.append("a"), lambda: ran.append("prepare")),
            "b": Side(lambda: ran.append("b")),
        },
        seconds=0,
        least=3,
        most=9,
        clock=lambda: next(ticks),
    )
    assert len(rounds) == 3
    assert ran[:6] == ["prepare", "a", "b", "b", "prepare", "a"]
    assert ran.count("a") == ran.count("b") == 5
    assert (rounds.median_ns("a"), rounds.ratio("a", "b")) == (10, 1.0)


@pytest.fixture(scope="module")
def figures() -> list[ForwardFigures]:
    return measure_forward(TINY, (1, 5), seconds=0)


def test_a_block_computes_what_transformers_computes(figures: list[ForwardFigures]) -> None:
    assert [one.width for one in figures] == [1, 5]
    assert all(one.difference < 0.02 for one in figures)


def test_every_side_and_every_part_is_timed(figures: list[ForwardFigures]) -> None:
    for one in figures:
        assert one.rounds >= 15
        assert set(one.layer_us) == set(SIDES)
        assert min(one.layer_us.values()) > 0
        assert set(one.parts_us) == {*PARTS, "python"}
        assert min(one.parts_us[part] for part in PARTS) > 0


def test_a_slow_block_misses_its_limit(figures: list[ForwardFigures]) -> None:
    fast = replace(figures[0], over_transformers=1.0, layer_us=dict.fromkeys(SIDES, 1.0))
    report = runtime_report([("tiny", fast)], "a machine")
    assert report.ok
    assert report.facts["measured"][0]["case"] == "tiny"
    slow = replace(fast, over_transformers=1.06)
    assert [check.name for check in runtime_report([("tiny", slow)], "").checks if not check.ok] == [
        "tiny, width 1: block over transformers"
    ]


def test_a_load_is_measured_in_a_process_of_its_own() -> None:
    seen = measure_load(hidden=256, intermediate=512, layers=4, lo=1, hi=2)
    layer = 2 * (256 * 256 * 2 + 256 * 64 * 2 + 3 * 256 * 512 + 2 * 256)
    assert layer <= seen.block <= layer + 1024  # rotary tables
    assert seen.checkpoint > 4 * layer
    assert seen.block <= seen.read <= seen.block * 1.02 + (64 << 10)
    assert seen.peak >= seen.baseline > 0
    assert seen.estimate > seen.block


def test_a_load_that_reads_or_takes_too_much_misses_its_limit() -> None:
    good = LoadFigures(checkpoint=400, block=100, estimate=120, read=101, baseline=50, peak=150, seconds=1.0)
    assert load_report(good).ok
    for bad in (replace(good, read=103), replace(good, peak=166), replace(good, read=-1)):
        assert not load_report(bad).ok
