"""The search for a ring: the optimum in small pools of every kind and under every objective, whatever noise there is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from planner_pools import host, meshed, peer, request, shape_of

from ring.announcement import Announcement
from ring.objective import Constraints, Objective
from ring.planner import NoPlan, PlanRequest, RingPlan, compute_ring
from ring.worth import Worth
from swarmd.bench.plan_brute_force import brute_force, worth_of
from swarmd.bench.plan_pools import DRAFTER, KINDS, made_up_pool

LAYERS = {1: 8, 2: 8, 3: 8, 4: 8, 5: 7, 6: 6, 7: 5, 8: 4}  # what brute force can take, by the number of hosts
OBJECTIVES = {
    "plain": Objective(horizon_s=0),
    "drafted": Objective(horizon_s=0, drafters=(DRAFTER,)),
    "latency": Objective("latency", horizon_s=0),
    "aggregate": Objective("aggregate", horizon_s=0, drafters=(DRAFTER,)),
}


def pool_of(kind: str, number: int, objective: Objective) -> PlanRequest:
    count = 1 + number % 8
    tightness = (1.1, 1.5, 2.5, 6)[number // 8 % 4]
    wanted = made_up_pool(kind, number, count, LAYERS[count], tightness)
    return replace(wanted, objective=objective, sessions=6 if objective.kind == "aggregate" else 1)


def planned(wanted: PlanRequest) -> RingPlan | None:
    try:
        return compute_ring(wanted)
    except NoPlan:
        return None


def value(wanted: PlanRequest) -> int | None:
    plan = planned(wanted)
    return None if plan is None else worth_of(wanted, plan)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_ring_that_brute_force_finds_is_worth_more(kind: str, name: str) -> None:
    """20 × 15 = 300 pools."""
    place = list(OBJECTIVES).index(name)
    pools = [pool_of(kind, 4 * number + place, OBJECTIVES[name]) for number in range(15)]
    best = [brute_force(wanted) for wanted in pools]
    assert [value(wanted) for wanted in pools] == best
    assert sum(found is not None for found in best) >= 5


def test_the_optimum_is_found_among_the_rings_that_the_constraints_leave() -> None:
    different = 0
    for number in range(40):
        wanted = pool_of("uniform", number, OBJECTIVES["plain"])
        dice = Random(number)
        subnets = [f"/ip4/8.8.{dice.randrange(3)}.{index + 1}/tcp/1" for index in range(len(wanted.hosts))]
        hosts = tuple(
            replace(member, addresses=(address,))
            for member, address in zip(wanted.hosts, subnets, strict=True)
        )
        trusted = tuple(sorted(member.peer for member in hosts if dice.random() < 0.6))
        free = replace(wanted, hosts=hosts)
        bound = replace(free, constraints=Constraints(dice.random() < 0.7, trusted, dice.randint(1, 2)))
        assert value(bound) == brute_force(bound), f"pool {number}"
        different += value(bound) != value(free)
    assert different >= 10


def noisy(hosts: tuple[Announcement, ...], dice: Random) -> tuple[Announcement, ...]:
    """Change every measurement in its seventh digit."""

    def off(value: int) -> int:
        return value + dice.randint(-1, 1) * value // 3_000_000

    return tuple(
        replace(
            member,
            layer_ns=tuple((width, off(ns * 10**6)) for width, ns in member.layer_ns),
            rtt_us=tuple((peer, off(us * 10**6)) for peer, us in member.rtt_us),
            uplink=off(member.uplink * 10**6),
        )
        for member in hosts
    )


def test_noise_in_the_seventh_digit_changes_nothing() -> None:
    for number, kind in enumerate(list(KINDS) * 4):
        wanted = pool_of(kind, 8 * number + 5, OBJECTIVES["drafted"])
        first, second = (planned(replace(wanted, hosts=noisy(wanted.hosts, Random(seed)))) for seed in (1, 2))
        assert first == second


def subnet_hosts(*addresses: str) -> tuple[Announcement, ...]:
    hosts = [
        replace(host(f"h{index}", 350, 10 + index), addresses=(f"/ip4/{address}/tcp/4710",))
        for index, address in enumerate(addresses)
    ]
    return meshed(hosts, 100)


def test_hosts_of_one_subnet_are_not_in_one_ring_where_that_is_asked() -> None:
    wanted = request(subnet_hosts("8.8.8.1", "8.8.8.2", "8.8.9.1"), shape_of([100] * 6))
    assert {stage.peer for stage in compute_ring(wanted).stages} == {peer("h0"), peer("h1")}
    apart = compute_ring(replace(wanted, constraints=Constraints(distinct_subnets=True)))
    assert {stage.peer for stage in apart.stages} == {peer("h0"), peer("h2")}
    assert dict(apart.left_out) == {peer("h1"): f"it is in one subnet with {peer('h0')}"}


def test_hosts_that_are_all_in_one_subnet_are_told_so() -> None:
    wanted = request(subnet_hosts("192.168.0.1", "192.168.0.2"), shape_of([100] * 6))
    with pytest.raises(NoPlan, match=r"not without two of one subnet: .* plan\.distinct_subnets"):
        compute_ring(replace(wanted, constraints=Constraints(distinct_subnets=True)))


def test_only_trusted_hosts_hold_the_ends() -> None:
    hosts = meshed([host("own a", 250, 90), host("own b", 250, 90), host("other", 450, 10)], 100)
    wanted = request(hosts, shape_of([100] * 6))
    own = tuple(sorted((peer("own a"), peer("own b"))))
    plan = compute_ring(replace(wanted, constraints=Constraints(trusted=own)))
    assert (plan.stages[0].peer, plan.stages[-1].peer) in (own, own[::-1])
    assert (plan.stages[1].peer, plan.stages[1].lo, plan.stages[1].hi) == (peer("other"), 1, 5)
    plan = compute_ring(replace(wanted, constraints=Constraints(trusted=own, end_layers=2)))
    assert (plan.stages[1].lo, plan.stages[1].hi) == (2, 4)


def test_ends_that_no_trusted_host_can_hold_are_told() -> None:
    wanted = request(meshed([host("a", 350, 10), host("b", 350, 10)], 100), shape_of([100] * 6, tail=300))
    with pytest.raises(NoPlan, match=r"layer 5 with the lm_head alone"):
        compute_ring(wanted)
    wanted = request(meshed([host("a", 350, 10), host("b", 650, 10)], 100), shape_of([100] * 6, tail=300))
    with pytest.raises(NoPlan, match=r"no host of plan\.trusted can serve the last layers"):
        compute_ring(replace(wanted, constraints=Constraints(trusted=(peer("a"),))))


def test_equal_sums_where_one_order_has_half_the_bottleneck() -> None:
    """Both hosts take 12 layers' time in all; frames in flight wait for the slower of them."""
    hosts = meshed([host("a", 700, 100), host("b", 700, 100)], 20_000)
    wanted = request(hosts, shape_of([100] * 8))
    plan = compute_ring(replace(wanted, objective=OBJECTIVES["drafted"]))
    assert [stage.hi - stage.lo for stage in plan.stages] == [4, 4]
    assert plan.frames_in_flight > 1


def test_frames_in_flight_make_a_balanced_ring_worth_more_than_a_short_circuit() -> None:
    hosts = meshed([host("fast", 10_000, 1000), host("slow", 10_000, 1500)], 100)
    wanted = request(hosts, shape_of([100] * 8))
    assert [stage.peer for stage in compute_ring(wanted).stages] == [peer("fast")]
    drafted = compute_ring(replace(wanted, objective=OBJECTIVES["drafted"]))
    assert len(drafted.stages) == 2
    assert drafted.bottleneck_ns < drafted.circuit_ns * 2 // 3


def limited(wanted: PlanRequest, seconds: float) -> PlanRequest:
    return replace(wanted, objective=replace(wanted.objective, ttft_limit_us=int(seconds * 1e6)))


def test_a_limit_on_the_time_to_the_first_token_is_kept_wherever_it_can_be() -> None:
    kept = 0
    for number in range(40):
        wanted = pool_of("uplinks", number, Objective(horizon_s=0, prompt_tokens=(200, 2000)[number % 2]))
        plan = planned(wanted)
        if plan is None or len(wanted.hosts) < 3:
            continue
        quickest = brute_force(wanted, Worth(wanted.objective, 1).first_token())
        assert quickest is not None
        assert quickest <= plan.ttft_ns
        for limit_us in (
            plan.ttft_ns // 1000 + 1,
            (plan.ttft_ns + quickest) // 2000 + 1,
            quickest // 1000 + 1,
        ):
            bound = limited(wanted, limit_us / 1e6)
            found = compute_ring(bound)
            assert found.ttft_ns <= bound.objective.ttft_limit_us * 1000
            assert found.circuit_ns >= plan.circuit_ns
            kept += 1
        with pytest.raises(NoPlan, match=r"the quickest needs .* raise plan\.ttft_limit_seconds"):
            compute_ring(limited(wanted, (quickest // 1000 - 1) / 1e6))
    assert kept >= 20


def test_fewer_layers_than_hosts_leave_hosts_out() -> None:
    hosts = meshed([host(f"h{index}", 100, 10) for index in range(6)], 100)
    plan = compute_ring(request(hosts, shape_of([100] * 3)))
    assert [stage.hi - stage.lo for stage in plan.stages] == [1, 1, 1]
    assert len(plan.left_out) == 3


def test_prompts_that_wait_for_an_uplink_put_the_slow_one_at_the_tail() -> None:
    """The tail sends tokens only, not hidden states."""
    hosts = [replace(host(name, 350, 10), uplink=100_000_000) for name in ("a", "b", "c")]
    shape = replace(shape_of([100] * 9), hidden_bytes=16384)
    for slow in range(3):
        pool = [replace(m, uplink=1_000_000 if i == slow else m.uplink) for i, m in enumerate(hosts)]
        wanted = request(meshed(pool, 100), shape)
        wanted = replace(wanted, objective=Objective(prompt_tokens=2048, ttft_limit_us=1_000_000))
        assert compute_ring(wanted).stages[-1].peer == hosts[slow].peer


def test_a_tail_that_became_slow_is_moved_by_planning_anew() -> None:
    hosts = meshed([host("a", 350, 10, tail_us=5), host("b", 350, 10, tail_us=9)], 100)
    wanted = request(hosts, shape_of([100] * 6))
    assert compute_ring(wanted).stages[-1].peer == peer("a")
    slowed = tuple(replace(m, tail_ns=3_000_000) if m.peer == peer("a") else m for m in hosts)
    assert compute_ring(replace(wanted, hosts=slowed)).stages[-1].peer == peer("b")
