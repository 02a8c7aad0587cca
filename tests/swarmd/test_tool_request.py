"""Requests of outside tools: read, refused by field, planned."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring.perf import PerfBook
from ring.planner import NoPlan, compute_ring
from swarmd.tool_plan import in_tools_words, plan_request, take_telemetry
from swarmd.tool_request import ToolRequestBad, read_request, read_telemetry

SIZES = {"total_layers": 32, "gb_per_layer": 0.5, "kv_gb_per_layer": 0.1}


def node(node_id: str, vram_gb: Any = 24, rtt_ms: Any = 20, **more: Any) -> dict[str, Any]:
    return {"node_id": node_id, "vram_gb": vram_gb, "rtt_ms": rtt_ms, **more}


def asked(*nodes: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"nodes": nodes, **SIZES, **more}).encode()


def planned(data: bytes, book: PerfBook | None = None) -> dict[str, Any]:
    request, assumed = plan_request(read_request(data), book or PerfBook())
    return in_tools_words(compute_ring(request), assumed)


def test_a_model_is_split_over_nodes_that_cannot_hold_it_alone() -> None:
    answer = planned(asked(node("a", 12), node("b", 12, 30)))
    assert answer["coordinator"] == answer["ring_order"][0]
    assert sorted(answer["ring_order"]) == ["a", "b"]
    assert answer["stages"][0]["lo"] == 0
    assert sum(stage["n_layers"] for stage in answer["stages"]) == 32
    assert all(stage["n_layers"] <= 20 for stage in answer["stages"]), "12 GB hold 20 layers of 0.6"
    compute = 32 * 0.7 * 0.5e9 / 436_224_000
    assert answer["est_round_ms"] == pytest.approx(compute + 50, rel=0.01), (
        "each hop costs half of 20 + 30 ms"
    )
    assert answer["est_tok_s"] == pytest.approx(1000 / answer["est_round_ms"], rel=0.01)
    assert [text.split()[0] for text in answer["assumed"]] == ["a", "b"]


def test_what_does_not_fit_says_what_is_missing() -> None:
    with pytest.raises(NoPlan, match="total memory is short by"):
        planned(asked(node("a", 5), node("b", 5)))


def test_a_slow_fat_card_loses_to_a_fast_lean_pair_once_that_is_known() -> None:
    fat, lean = node("fat", 24, 5), [node("lean-1", 12, 5), node("lean-2", 12, 5)]
    book = PerfBook()
    assert planned(asked(fat, *lean), book)["ring_order"] == ["fat"], (
        "alike by the prior: solo saves the hops"
    )
    told = {"nodes": [{"node_id": "fat", "ms_per_layer": 3.0}]}
    take_telemetry(read_telemetry(json.dumps(told).encode()), book)
    answer = planned(asked(fat, *lean), book)
    assert sorted(answer["ring_order"]) == ["lean-1", "lean-2"]
    assert answer["left_out"] == [{"node_id": "fat", "reason": "the ring is faster without it"}]


def test_speed_is_given_or_learned_or_of_a_class_in_this_order() -> None:
    book = PerfBook()
    take_telemetry(read_telemetry(b'{"nodes": [{"node_id": "b", "ms_per_layer": 0.9}]}'), book)
    nodes = [node("a", ms_per_layer=0.2, gpu="H100"), node("b", gpu="H100"), node("c", gpu="H100"), node("d")]
    request, assumed = plan_request(read_request(asked(*nodes)), book)
    scale = 0.5e9 / 436_224_000
    assert [host.layer_ns[0][1] for host in request.hosts] == [
        200_000,
        900_000,
        pytest.approx(180_000 * scale, abs=2),
        pytest.approx(700_000 * scale, abs=2),
    ]
    assert assumed == [
        "c computes like an H100: it was never measured",
        "d computes like a 3090: it was never measured",
    ]
    other, _ = plan_request(read_request(asked(*nodes, model="another")), book)
    assert other.hosts[1].layer_ns != request.hosts[1].layer_ns, "speeds are learned by model"


def test_round_trips_are_given_or_learned_and_one_end_suffices() -> None:
    book = PerfBook()
    told = {"nodes": [{"node_id": "c", "rtt_ms": {"d": 7}}, {"node_id": "e", "rtt_ms": 4, "uplink_mbps": 8}]}
    take_telemetry(read_telemetry(json.dumps(told).encode()), book)
    nodes = [
        node("a", rtt_ms={"b": 3, "z": 1}),
        node("b", rtt_ms={}),
        *({"node_id": n, "vram_gb": 1} for n in "cde"),
    ]
    request, _ = plan_request(read_request(asked(*nodes)), book)
    edges = {host.peer: dict(host.rtt_us) for host in request.hosts}
    assert edges == {
        "a": {"b": 3000},
        "b": {"a": 3000},
        "c": {"d": 7000},
        "d": {"c": 7000, "e": 4000},
        "e": {"d": 4000},
    }
    assert [host.uplink for host in request.hosts] == [0, 0, 0, 0, 1_000_000]


def test_telemetry_never_touches_what_is_known_of_hosts() -> None:
    book = PerfBook()
    book.saw_uplink("a", 5)
    take_telemetry(read_telemetry(b'{"nodes": [{"node_id": "a", "uplink_mbps": 900}]}'), book)
    assert book.uplink("a") == 5


BAD = [
    (b"", "", "not JSON"),
    (b"\xff", "", "not JSON"),
    (b"[" * 100_000, "", "not JSON"),
    (b"[]", "", "JSON object"),
    (b"{}", "nodes", "is missing"),
    (asked(), "nodes", "at least 1"),
    (asked(*(node(str(n)) for n in range(129))), "nodes", "at most 128"),
    (asked(node("a"), node("b"), node("a")), "nodes[2].node_id", "'a' stands twice"),
    (asked(node("")), "nodes[0].node_id", "at least 1"),
    (asked(node("a\x1b")), "nodes[0].node_id", "printable"),
    (asked(node("a"), node("b", vram_gb=-1)), "nodes[1].vram_gb", "not -1"),
    (asked({"node_id": "a"}), "nodes[0].vram_gb", "is missing"),
    (asked(node("a", vram_gb="24")), "nodes[0].vram_gb", "not '24'"),
    (asked(node("a", vram_gb=True)), "nodes[0].vram_gb", "not True"),
    (asked(node("a", rtt_ms="5")), "nodes[0].rtt_ms", "not '5'"),
    (asked(node("a", rtt_ms={"b": -2})), "nodes[0].rtt_ms.b", "not -2"),
    (asked(node("a", rtt_ms={"": 2})), "nodes[0].rtt_ms.", "at least 1"),
    (asked(node("a", ms_per_layer=0)), "nodes[0].ms_per_layer", "greater than 0"),
    (asked(node("a", vram=3)), "nodes[0].vram", "not a field"),
    (asked(node("a"), total_layers=0), "total_layers", "greater than or equal to 1"),
    (asked(node("a"), total_layers=1.5), "total_layers", "not 1.5"),
    (asked(node("a"), gb_per_layer=0), "gb_per_layer", "greater than 0"),
    (asked(node("a"), objective="fastest"), "objective", "'tok_s', 'latency' or 'aggregate'"),
    (asked(node("a"), sessions=10**30), "sessions", "4096"),
    (b'{"nodes": NaN}', "", "NaN"),
    (b'{"nodes": 1e999}', "nodes", "not inf"),
    (b'{"nodes": [], "nodes": []}', "", "stands twice"),
    (asked(node("a"))[:-1] + b', "model": "\\ud800"}', "", ""),
]


@pytest.mark.parametrize(("data", "field", "reason"), BAD)
def test_a_wrong_field_is_named(data: bytes, field: str, reason: str) -> None:
    with pytest.raises(ToolRequestBad) as caught:
        read_request(data)
    assert caught.value.field == field
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


words = st.text("ab\0é\u2028", max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["node_id", "vram_gb", "rtt_ms", "x"]) | words, inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    st.binary(max_size=80)
    | st.dictionaries(st.sampled_from(["nodes", *SIZES, "objective"]), json_values).map(
        lambda document: json.dumps(document).encode()
    )
)
def test_whatever_comes_is_read_or_refused_by_name(data: bytes) -> None:
    for read in (read_request, read_telemetry):
        try:
            read(data)
        except ToolRequestBad as error:
            assert str(error)  # noqa: PT017 - either outcome is fine


numbers = st.floats(0.001, 1000)
nodes = st.lists(
    st.fixed_dictionaries(
        {"vram_gb": st.floats(0, 100)},
        optional={
            "rtt_ms": numbers | st.dictionaries(st.sampled_from(["n0", "n1", "n2", "x"]), numbers),
            "ms_per_layer": numbers,
            "gpu": st.sampled_from(["", "H100", "RTX 3090"]),
            "uplink_mbps": numbers,
        },
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=50)
@given(nodes, st.integers(1, 12), st.sampled_from(["tok_s", "latency", "aggregate"]), st.integers(1, 3))
def test_every_sound_request_gets_a_ring_that_fits_or_a_reason(
    given_nodes: list[dict[str, Any]], layers: int, objective: str, sessions: int
) -> None:
    named = [{"node_id": f"n{place}", **fields} for place, fields in enumerate(given_nodes)]
    sizes = {"total_layers": layers, "gb_per_layer": 2.0, "kv_gb_per_layer": 0.5}
    data = json.dumps({"nodes": named, **sizes, "objective": objective, "sessions": sessions}).encode()
    try:
        answer = planned(data)
    except NoPlan as error:
        assert str(error)  # noqa: PT017 - either outcome is fine
        return
    stages = answer["stages"]
    assert (stages[0]["lo"], stages[-1]["hi"]) == (0, layers)
    assert all(one["hi"] == other["lo"] for one, other in pairwise(stages))
    for stage in stages:
        vram = named[int(stage["node_id"][1:])]["vram_gb"]
        assert stage["n_layers"] * (2.0 + 0.5 * sessions) <= vram + 1e-6
    assert len(stages) + len(answer["left_out"]) == len(named)
