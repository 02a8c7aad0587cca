"""The planner: optimal in small pools, feasible in large ones, the same for everybody, and able to say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_pools import connected, host, meshed, naive_optimum, peer, random_pool, request, shape_of

from ring import search
from ring.announcement import Announcement
from ring.planner import NoPlan, PlanRequest, RingPlan, compute_ring, stage_costs
from ring.quantize import quantized, rounded
from ring.search import EXACT_HOSTS
from ring.throughput import bottleneck_ns, circuit_ns


def optimum(wanted: PlanRequest) -> int | None:
    try:
        return compute_ring(wanted).circuit_ns
    except NoPlan:
        return None


def plan_or_reason(wanted: PlanRequest) -> RingPlan | str:
    try:
        return compute_ring(wanted)
    except NoPlan as error:
        return str(error)


def names(plan: RingPlan, *candidates: str) -> list[tuple[str, int, int]]:
    known = {peer(name): name for name in candidates}
    return [(known[stage.peer], stage.lo, stage.hi) for stage in plan.stages]


def refuse_broken_rules(wanted: PlanRequest, plan: RingPlan) -> None:
    """Assert all that holds for every plan, from the request alone."""
    hosts = {member.peer: quantized(member) for member in wanted.hosts}
    assert [stage.lo for stage in plan.stages] == [0, *(stage.hi for stage in plan.stages[:-1])]
    assert plan.stages[-1].hi == wanted.shape.layer_count
    assert len({stage.peer for stage in plan.stages}) == len(plan.stages)
    for place, stage in enumerate(plan.stages):
        need = wanted.shape.block_memory(stage.lo, stage.hi, context=wanted.context, sessions=wanted.sessions)
        limit = hosts[stage.peer].memory_limit
        assert stage.lo < stage.hi
        assert (stage.memory_bytes, stage.memory_limit) == (need.total, limit)
        assert need.total <= limit
        following = plan.stages[(place + 1) % len(plan.stages)].peer
        if following != stage.peer:
            both = dict(hosts[stage.peer].rtt_us)[following], dict(hosts[following].rtt_us)[stage.peer]
            assert stage.hop_us == (rounded(max(both)) + 1) // 2
    blocks = [(stage.peer, stage.hi - stage.lo) for stage in plan.stages]
    costs = stage_costs(blocks, hosts.values(), wanted.shape)
    assert plan.circuit_ns == circuit_ns(costs, plan.frame_width)
    assert plan.bottleneck_ns == bottleneck_ns(costs, plan.frame_width)
    terms = (
        stage.compute_ns + 1000 * stage.hop_us + stage.wire_ns + stage.overhead_ns for stage in plan.stages
    )
    assert plan.circuit_ns == sum(terms)
    left_out = [left for left, _ in plan.left_out]
    assert left_out == sorted(hosts.keys() - {stage.peer for stage in plan.stages})


@pytest.mark.parametrize("count", range(1, 6))
def test_no_ring_that_brute_force_finds_is_faster(count: int) -> None:
    feasible = 0
    for seed in range(80 if count < 5 else 40):
        wanted = random_pool(1000 * count + seed, count)
        best = naive_optimum(wanted)
        feasible += best is not None
        assert optimum(wanted) == best, f"pool {seed}"
    assert feasible >= 10


def test_the_search_for_large_pools_is_mostly_optimal_in_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [random_pool(seed, 5 + seed % 3) for seed in range(200)]
    best = [optimum(wanted) for wanted in pools]
    monkeypatch.setattr(search, "EXACT_HOSTS", 4)
    found = [optimum(wanted) for wanted in pools]
    assert all(f is None for b, f in zip(best, found, strict=True) if b is None)
    pairs = [(b, f) for b, f in zip(best, found, strict=True) if b is not None]
    assert len(pairs) > 50
    assert all(f is None or b <= f for b, f in pairs)
    assert sum(b == f for b, f in pairs) >= 0.95 * len(pairs)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.randoms(use_true_random=False))
def test_every_plan_keeps_the_rules_and_does_not_depend_on_the_order_of_its_inputs(
    seed: int, count: int, dice: Random
) -> None:
    wanted = random_pool(seed, count)
    shuffled = replace(wanted, hosts=tuple(dice.sample(wanted.hosts, count)))
    plan = plan_or_reason(wanted)
    assert plan_or_reason(shuffled) == plan
    if isinstance(plan, RingPlan):
        refuse_broken_rules(wanted, plan)


def region_pool(seed: int, count: int, layers: int, share: float) -> PlanRequest:
    """Return hosts on a plane of regions, each with about `share` of the model's memory."""
    dice = Random(seed)
    shape = shape_of(
        [dice.choice((90, 100, 120)) for _ in range(layers)], head=150, tail=150, workspace=20, kv=1
    )
    total = shape.block_memory(0, layers, context=8, sessions=1).total
    hosts = [
        host(f"{seed}:{index}", int(total * share * dice.uniform(0.7, 1.5)), dice.choice((100, 300, 900)))
        for index in range(count)
    ]
    places = [(dice.randrange(3) * 1000 + dice.random(), dice.random()) for _ in hosts]
    rtts = {}
    for (i, a), (j, b) in permutations(enumerate(hosts), 2):
        (x, y), (v, w) = places[i], places[j]
        rtts[a.peer, b.peer] = int(200 + 30 * ((x - v) ** 2 + (y - w) ** 2) ** 0.5)
    return request(connected(hosts, rtts), shape)


@pytest.mark.parametrize(("count", "share"), [(EXACT_HOSTS + 1, 0.3), (16, 0.12), (32, 0.1), (48, 0.5)])
def test_a_large_pool_gets_a_ring_that_keeps_the_rules_whatever_the_order(count: int, share: float) -> None:
    wanted = region_pool(3, count, 40, share)
    plan = compute_ring(wanted)
    refuse_broken_rules(wanted, plan)
    assert compute_ring(replace(wanted, hosts=wanted.hosts[::-1])) == plan


def test_a_large_pool_with_regions_keeps_its_ring_in_one_region_where_that_is_enough() -> None:
    wanted = region_pool(5, 30, 40, 0.3)
    plan = compute_ring(wanted)
    assert max(stage.hop_us for stage in plan.stages) < 1000


def test_a_large_pool_whose_only_ring_runs_through_all_hosts_is_planned() -> None:
    count = 12
    hosts = [host(f"circle {index}", 500, 10) for index in range(count)]
    beside = {}
    for index, here in enumerate(hosts):
        there = hosts[(index + 5) % count]
        beside[here.peer, there.peer] = beside[there.peer, here.peer] = 1000
    plan = compute_ring(request(connected(hosts, beside), shape_of([100] * 60)))
    assert sorted(stage.peer for stage in plan.stages) == sorted(member.peer for member in hosts)


def test_a_slow_fat_host_loses_to_a_fast_lean_pair() -> None:
    hosts = [host("fat", 10_000, 900), host("lean a", 400, 20), host("lean b", 400, 20)]
    plan = compute_ring(request(meshed(hosts, 500), shape_of([100] * 6)))
    assert {stage.peer for stage in plan.stages} == {peer("lean a"), peer("lean b")}
    assert dict(plan.left_out) == {peer("fat"): "the ring is faster without it"}


def test_solo_wins_where_hops_cost_more_than_they_gain_and_says_so() -> None:
    hosts = [host("big", 10_000, 30), host("other", 10_000, 20), host("small", 300, 10)]
    plan = compute_ring(request(meshed(hosts, 50_000), shape_of([100] * 6)))
    assert names(plan, "big", "other", "small") == [("other", 0, 6)]
    assert plan.circuit_ns == 6 * 20_000
    assert plan.stages[0].hop_us == 0
    assert dict(plan.left_out) == {peer("big"): "solo is faster", peer("small"): "solo is faster"}


def test_head_and_tail_reserves_decide_who_is_head() -> None:
    # Either may hold three layers, but only "roomy" has room for the embedding beside them.
    hosts = [host("roomy", 480, 10), host("tight", 330, 10)]
    pool = meshed(hosts, 100)
    plan = compute_ring(request(pool, shape_of([100] * 6, head=180, tail=30)))
    assert names(plan, "roomy", "tight") == [("roomy", 0, 3), ("tight", 3, 6)]
    plan = compute_ring(request(pool, shape_of([100] * 6, head=30, tail=180)))
    assert names(plan, "roomy", "tight") == [("tight", 0, 3), ("roomy", 3, 6)]


def test_a_tied_embedding_is_held_once_by_a_host_alone_and_at_both_ends_of_a_ring() -> None:
    shape = shape_of([100] * 4, head=200, tail=200, shared=200)
    alone = compute_ring(request([host("one", 600, 10)], shape))
    assert alone.stages[0].memory_bytes == 600
    pair = compute_ring(request(meshed([host("a", 400, 10), host("b", 400, 10)], 100), shape))
    assert [stage.memory_bytes for stage in pair.stages] == [400, 400]


def test_the_slow_choice_of_tokens_moves_the_tail() -> None:
    hosts = [host("choosy", 350, 10, tail_us=5000), host("swift", 350, 10, tail_us=1)]
    plan = compute_ring(request(meshed(hosts, 100), shape_of([100] * 6)))
    assert plan.stages[-1].peer == peer("swift")


def test_layers_of_unequal_size_are_split_where_they_fit() -> None:
    hosts = [host("wide", 500, 10), host("narrow", 210, 10)]
    plan = compute_ring(request(meshed(hosts, 100), shape_of([100, 100, 250, 250])))
    assert names(plan, "wide", "narrow") == [("narrow", 0, 2), ("wide", 2, 4)]


def test_layers_go_evenly_to_equal_hosts() -> None:
    plan = compute_ring(request(meshed([host("a", 600, 10), host("b", 600, 10)], 100), shape_of([100] * 8)))
    assert [stage.hi - stage.lo for stage in plan.stages] == [4, 4]


def test_equal_hosts_give_the_first_peers_in_their_order() -> None:
    hosts = meshed([host(f"equal {index}", 450, 10) for index in range(6)], 300)
    first = sorted(member.peer for member in hosts)[:3]
    for pool in (hosts, hosts[::-1]):
        plan = compute_ring(request(pool, shape_of([100] * 12)))
        assert [stage.peer for stage in plan.stages] == first


def test_of_equally_fast_rings_the_one_with_fewer_stages_is_chosen() -> None:
    hosts = meshed([host(f"level {index}", 10_000, 10) for index in range(3)], 0)
    plan = compute_ring(request(hosts, shape_of([100] * 6)))
    assert [stage.peer for stage in plan.stages] == [min(member.peer for member in hosts)]


def test_a_model_of_fewer_layers_than_hosts_uses_as_many_as_it_needs() -> None:
    hosts = meshed([host(f"many {index}", 110, 10) for index in range(5)], 300)
    plan = compute_ring(request(hosts, shape_of([100] * 3)))
    assert [(stage.lo, stage.hi) for stage in plan.stages] == [(0, 1), (1, 2), (2, 3)]


def test_a_disconnected_host_is_never_used_however_fast() -> None:
    hosts = [host("island", 10_000, 1), host("a", 400, 500), host("b", 400, 500)]
    edges = dict.fromkeys(permutations((peer("a"), peer("b")), 2), 100)
    pool = connected(hosts, edges)
    plan = compute_ring(request(pool, shape_of([100] * 6)))
    assert names(plan, "island", "a", "b") == [("island", 0, 6)]
    small = (replace(pool[0], memory_limit=500), *pool[1:])
    plan = compute_ring(request(small, shape_of([100] * 6)))
    assert peer("island") not in {stage.peer for stage in plan.stages}
    assert dict(plan.left_out)[peer("island")] == "no measured edge to any host of the ring"


def test_an_edge_that_only_one_end_has_measured_is_not_used() -> None:
    hosts = [host("a", 400, 10), host("b", 400, 10), host("deaf", 500, 1)]
    edges = dict.fromkeys(permutations([member.peer for member in hosts], 2), 100)
    one_sided = {pair: rtt for pair, rtt in edges.items() if pair[0] != peer("deaf")}
    plan = compute_ring(request(connected(hosts, one_sided), shape_of([100] * 6)))
    assert {stage.peer for stage in plan.stages} == {peer("a"), peer("b")}


def test_the_larger_of_both_measurements_of_an_edge_counts() -> None:
    hosts = [host("a", 400, 10), host("b", 400, 10)]
    plan = compute_ring(
        request(
            connected(hosts, {(peer("a"), peer("b")): 100, (peer("b"), peer("a")): 9010}), shape_of([100] * 6)
        )
    )
    assert [stage.hop_us for stage in plan.stages] == [4505, 4505]


def test_two_half_connected_clusters_are_not_bridged_by_a_ring_that_cannot_close() -> None:
    west, east = ("w1", "w2"), ("e1", "e2", "e3")
    pairs = [*permutations(west, 2), *permutations(east, 2), ("w1", "e1"), ("e1", "w1")]
    edges = {(peer(a), peer(b)): 100 for a, b in pairs}
    hosts = [host(name, 250, 10 if name in west else 400) for name in (*west, *east)]
    plan = compute_ring(request(connected(hosts, edges), shape_of([100] * 6)))
    assert {stage.peer for stage in plan.stages} == {peer(name) for name in east}
    # Three layers a host are enough for w1 and w2, and also for w1 and e1, who have measured each other.
    hosts = [replace(member, memory_limit=310) for member in hosts]
    plan = compute_ring(request(connected(hosts, edges), shape_of([100] * 6)))
    assert {stage.peer for stage in plan.stages} == {peer(name) for name in west}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda odd: replace(odd, state="leaving"), "leaving"),
        (lambda odd: replace(odd, layer_ns=(), model=""), "not measured yet"),
        (lambda odd: replace(odd, model="other"), "measured for the model other, not for made-up"),
        (lambda odd: replace(odd, memory_limit=99), "its memory holds no layer"),
    ],
)
def test_a_host_that_cannot_serve_says_why(
    change: Callable[[Announcement], Announcement], reason: str
) -> None:
    *pair, odd = meshed([host("a", 400, 10), host("b", 400, 10), host("odd", 400, 1)], 100)
    plan = compute_ring(request([*pair, change(odd)], shape_of([100] * 6)))
    assert {stage.peer for stage in plan.stages} == {peer("a"), peer("b")}
    assert dict(plan.left_out) == {peer("odd"): reason}


def test_an_excluded_host_is_not_used_and_its_reason_is_passed_on() -> None:
    hosts = meshed([host("a", 400, 10), host("b", 400, 10), host("ill", 900, 1)], 100)
    excluded = ((peer("ill"), "out of memory"), (peer("gone"), "whatever"))
    plan = compute_ring(request(hosts, shape_of([100] * 6), excluded=excluded))
    assert dict(plan.left_out) == {peer("ill"): "excluded: out of memory"}


def explained(
    *hosts: Announcement, layers: tuple[int, ...] = (100,) * 6, head: int = 0, workspace: int = 0
) -> str:
    shape = shape_of(layers, head=head, tail=40, workspace=workspace)
    with pytest.raises(NoPlan) as error:
        compute_ring(request(hosts, shape))
    assert error.value.code == "no_plan"
    return str(error.value)


def test_missing_memory_is_told_in_bytes() -> None:
    text = explained(*meshed([host("a", 300, 10), host("b", 260, 10)], 100), head=50, workspace=10)
    assert text.startswith(
        "total memory is short by 150 bytes: made-up needs 690 bytes beside the workspace (10 bytes on every host),"
        " and 2 hosts offer 540 bytes"
    )


def test_a_layer_larger_than_any_host_is_named() -> None:
    text = explained(*meshed([host("a", 200, 10), host("b", 260, 10)], 100), layers=(100, 300, 100))
    assert text.startswith("layer 1 alone needs 300 bytes, and the largest host offers 260 bytes")
    text = explained(host("a", 120, 10), head=50)
    assert text.startswith("layer 0 with the embedding alone needs 150 bytes")


def test_hosts_without_measured_edges_are_named() -> None:
    text = explained(host("a", 400, 10), host("b", 400, 10))
    first, second = sorted((peer("a"), peer("b")))
    assert "2 hosts have the memory, but no ring was found along edges that both ends have measured" in text
    assert f"missing are {first} – {second}:" in text


def test_layers_that_cannot_be_split_as_the_memory_is_are_told() -> None:
    text = explained(*meshed([host("a", 380, 10), host("b", 380, 10)], 100), layers=(130, 130, 130, 130, 130))
    assert text.startswith("no split into whole layers was found that fits into the memory of 2 hosts")


def test_a_swarm_without_measured_hosts_says_what_each_waits_for() -> None:
    fresh = replace(host("a", 400, 10), layer_ns=(), model="")
    gone = replace(host("b", 400, 10), state="leaving")
    assert explained(fresh, gone) == "none of 2 hosts can serve made-up: 1 × leaving, 1 × not measured yet"
    assert explained() == "there is no host to serve made-up: start `swarmd join` on one"


def test_a_request_that_names_a_host_twice_is_refused() -> None:
    twice = (host("a", 400, 10), host("a", 500, 10))
    with pytest.raises(ValueError, match="hosts names a peer twice"):
        request(twice, shape_of([100]))
    with pytest.raises(ValueError, match="excluded names a peer twice"):
        request(twice[:1], shape_of([100]), excluded=((peer("a"), ""), (peer("a"), "")))
