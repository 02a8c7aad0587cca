"""Learning: what a host does at work replaces what it promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring.identity import PeerId
from runtimes.base import Probe
from swarmd.activity import Activity
from swarmd.facts import OwnFacts
from swarmd.learning import Learning
from swarmd.perf_store import PerfStore

PEER = PeerId("12D3KooWA")
PROBE = Probe(((1, 1000), (5, 2000), (64, 10_000)), 500)


@pytest.fixture
def store(tmp_path: Path) -> PerfStore:
    return PerfStore(tmp_path / "perf.sqlite", Activity(lambda: 0.0))


def learning(store: PerfStore, facts: OwnFacts, *, device: str = "cpu") -> Learning:
    learned = Learning(PEER, store, facts)
    learned.probed(PROBE, model="m", dtype="bfloat16", device=device)
    return learned


def work(learned: Learning, frames: int, **frame: int) -> None:
    for _ in range(frames):
        learned.computed(**{"layers": 4, "width": 1, "tail": False, "ns": 4000, **frame})  # type: ignore[arg-type]


def test_the_probe_is_the_first_word(store: PerfStore) -> None:
    facts = OwnFacts()
    learning(store, facts)
    assert (facts.model, facts.layer_ns, facts.tail_ns) == ("m", PROBE.layer_ns, 500)


def test_frames_as_fast_as_promised_change_nothing_that_is_announced(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    seen = facts.changes.count
    work(learned, 1000, ns=4100)
    assert facts.changes.count == seen
    assert facts.layer_ns == PROBE.layer_ns


def test_a_host_that_is_slower_at_work_says_so(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    work(learned, 16 * 40, ns=12_000)
    assert dict(facts.layer_ns)[1] == pytest.approx(3000, rel=0.1)
    assert dict(facts.layer_ns)[64] == 10_000, "frames of one token say nothing of a prompt's"
    assert store.book.layer_ns(PEER, "m bfloat16 cpu")[0][1] == pytest.approx(3000, rel=0.02)


def test_a_single_slow_frame_says_nothing(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    for _ in range(20):
        work(learned, 15)
        work(learned, 1, ns=10_000_000)
    assert facts.layer_ns == PROBE.layer_ns


def test_at_the_tail_the_choice_takes_its_share(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    work(learned, 16 * 40, tail=True, ns=2 * 4500)
    assert dict(facts.layer_ns)[1] == pytest.approx(2000, rel=0.1)
    assert facts.tail_ns == pytest.approx(1000, rel=0.1)


def test_frames_of_any_width_count_for_the_nearest_that_was_probed(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    for width in range(40, 100):  # 64 is among them
        per_layer = 20_000 * width // 64
        work(learned, 32, width=width, ns=4 * per_layer)
    assert dict(facts.layer_ns)[64] == pytest.approx(20_000, rel=0.15)
    assert [width for width, _ in facts.layer_ns] == [1, 5, 64]


def test_a_restart_remembers_and_another_device_begins_anew(store: PerfStore) -> None:
    work(learning(store, OwnFacts()), 16 * 40, ns=12_000)
    again, other = OwnFacts(), OwnFacts()
    learning(store, again)
    learning(store, other, device="cuda")
    assert 2500 < dict(again.layer_ns)[1] < 3000, "the probe of an idle host is one sample among others"
    assert other.layer_ns == PROBE.layer_ns


def test_what_a_hop_costs_is_announced(store: PerfStore) -> None:
    facts = OwnFacts()
    learned = learning(store, facts)
    for _ in range(16):
        learned.handed_on(123_456)
    assert facts.overhead_ns == 120_000
