"""`swarmd bench plan`: is the planner's ring the best one, how long does it take to find, and what does it make hosts load?"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ring.announcement import Announcement
from ring.drafting import Drafter
from ring.objective import Objective
from ring.pace import pace_at
from ring.planner import NoPlan, PlanRequest, RingPlan, compute_ring
from ring.throughput import StageCost, bottleneck_ns, circuit_ns
from swarmd.bench.plan_brute_force import brute_force, worth_of
from swarmd.bench.plan_churn import replay_churn
from swarmd.bench.plan_pipeline import SimulatedSession, simulated_token_ns
from swarmd.bench.plan_pools import DRAFTER, KINDS, made_up_pool
from swarmd.bench.report import Check, Report, ResultTable

Tell = Callable[[str], None]

SMALL_POOLS = 300
_LAYERS_FOR_BRUTE_FORCE = {1: 8, 2: 8, 3: 8, 4: 8, 5: 7, 6: 6, 7: 5, 8: 4}  # by the number of hosts
_OBJECTIVES = (
    Objective(horizon_s=0),
    Objective(horizon_s=0, drafters=(DRAFTER,)),
    Objective("latency", horizon_s=0),
    Objective("aggregate", horizon_s=0, drafters=(DRAFTER,)),
)
# (hosts, memory as a multiple of what the model needs, kinds of pools, limit in seconds of one core, solver's seconds)
_LARGE = (
    (16, 6.0, tuple(KINDS), 1.0, 8.0),
    (100, 8.0, tuple(KINDS), 5.0, 4.0),
    (1000, 60.0, ("uniform", "clustered"), 10.0, 20.0),
)
_GAP_LIMITS = {
    16: 0.15,
    100: 0.6,
    1000: 2.0,
}  # in the median; a weak bound and a missed ring look the same, so these only keep the search from getting worse
_LAYERS = 80


def bench_plan(tell: Tell) -> Report:
    """Return what the planner does in small and large pools, in churn, and how true its model of speed is."""
    checks: list[Check] = []
    tell(f"{SMALL_POOLS} small pools against brute force")
    checks += small_pools(SMALL_POOLS)
    rows: list[tuple[str, ...]] = []
    for hosts, tightness, kinds, limit, seconds in _LARGE:
        tell(f"pools of {hosts} hosts")
        found, lines = large_pools(hosts, tightness, kinds, limit, seconds)
        checks += found
        rows += lines
    tell("the closed form against a simulation of every frame")
    checks += pace_error(24)
    tell("200 events of churn")
    checks += churn(200)
    table = ResultTable(
        "large pools", ("hosts", "kind", "stages", "circuit ms", "bound ms", "gap", "core s"), tuple(rows)
    )
    return Report(
        "plan", checks, (table,), {"layers": _LAYERS, "objective of large pools": "tok_s, no drafter"}
    )


def small_pool(number: int) -> PlanRequest:
    """Return one of the small pools: all kinds, 1 to 8 hosts, all objectives, tight and ample memory."""
    kind, count = list(KINDS)[number % len(KINDS)], 1 + number // len(KINDS) % 8
    objective = _OBJECTIVES[number // 3 % len(_OBJECTIVES)]
    pool = made_up_pool(
        kind, number, count, _LAYERS_FOR_BRUTE_FORCE[count], (1.1, 1.5, 2.5, 6)[number // 40 % 4]
    )
    return replace(pool, objective=objective, sessions=6 if objective.kind == "aggregate" else 1)


def small_pools(count: int) -> list[Check]:
    """Compare the planner with brute force; and plans with those of the same hosts in another order and with noise."""
    gaps, infeasible, changed = [], 0, 0
    for number in range(count):
        request = small_pool(number)
        best, plan = brute_force(request), _planned(request)
        if best is not None and plan is None:
            infeasible += 1
        elif best is not None and plan is not None:
            gaps.append(worth_of(request, plan) / best - 1)
        noisy = _planned(replace(request, hosts=tuple(map(_with_noise, reversed(request.hosts)))))
        exact = _planned(replace(request, hosts=tuple(map(_magnified, request.hosts))))
        changed += noisy != exact
    return [
        Check(
            f"largest gap to brute force in {count} pools of up to 8 hosts", max(gaps, default=math.nan), 0.0
        ),
        Check(f"pools of {count} with a ring by brute force and none by the planner", infeasible, 0),
        Check(
            f"plans of {count} that noise in the seventh digit or the hosts' order changes",
            changed,
            count // 100,
        ),
    ]


def large_pools(
    hosts: int, tightness: float, kinds: tuple[str, ...], limit_s: float, solver_s: float
) -> tuple[list[Check], list[tuple[str, ...]]]:
    """Plan in large pools; returns checks of time and of the gap to a bound, and a row for each pool."""
    from swarmd.bench.plan_bound import least_circuit_ns  # scipy is needed here only

    times: list[float] = []
    gaps: list[float] = []
    rows: list[tuple[str, ...]] = []
    for kind in kinds:
        request = made_up_pool(kind, 1, hosts, _LAYERS, tightness)
        began = time.process_time()
        plan = compute_ring(request)
        times.append(time.process_time() - began)
        bound = least_circuit_ns(request, solver_s)
        gaps.append(plan.circuit_ns / bound - 1)
        rows.append(
            (
                *(str(hosts), kind, str(len(plan.stages)), f"{plan.circuit_ns / 1e6:.1f}"),
                *(f"{bound / 1e6:.1f}", f"{gaps[-1]:.1%}", f"{times[-1]:.2f}"),
            )
        )
    checks = [
        Check(f"longest time to plan with {hosts} hosts", max(times), limit_s, unit="s of one core"),
        Check(
            f"median gap to the solver's bound with {hosts} hosts",
            statistics.median(gaps),
            _GAP_LIMITS[hosts],
        ),
    ]
    return checks, rows


def pace_error(rings: int) -> list[Check]:
    """Compare what a pace is said to yield with a simulation."""
    dice = np.random.default_rng(7)
    errors = []
    for number in range(rings):
        ring = _made_up_ring(dice)
        chances = ((300_000,), (600_000, 550_000), (800_000, 750_000), (950_000, 900_000))[number % 4]
        drafter = Drafter("made-up", (0, 200_000, 2_000_000)[number % 3], ((0, chances),))
        for width in (1, 2, 5, 8):
            times = circuit_ns(ring, width), bottleneck_ns(ring, width)
            pace = pace_at(width, *times, drafter, context=0, sessions=1)
            session = SimulatedSession(width, pace.frames, drafter.token_ns, chances)
            simulated = 1000 * simulated_token_ns(ring, session, 2000, dice)
            errors.append(abs(pace.token_ps - simulated) / simulated)
    return [
        Check("median error of the closed form of a session's pace", statistics.median(errors), 0.02),
        Check("largest error of the closed form of a session's pace", max(errors), 0.15),
    ]


def churn(events: int) -> list[Check]:
    """Replay churn with and without counting what is loaded."""
    calm, restless = replay_churn(1, events), replay_churn(1, events, sticky=False)
    return [
        Check(
            "bytes moved in churn, against a planner that forgets",
            calm.moved_bytes / restless.moved_bytes,
            0.4,
        ),
        Check(
            "bytes loaded after deaths, against the dead hosts' layers",
            calm.after_death_bytes / calm.lost_bytes,
            1.5,
        ),
        Check("events of churn after which the ring changed more than once", calm.restless, 0),
    ]


def _made_up_ring(dice: np.random.Generator) -> tuple[StageCost, ...]:
    count, uplink = int(dice.integers(1, 6)), int(dice.choice((0, 5_000_000, 50_000_000)))
    stages = []
    for place in range(count):
        layer_us, hop_us = int(dice.integers(100, 900)), int(dice.choice((200, 3000, 20_000, 60_000)))
        edge = (hop_us, 8192, uplink, 200_000) if count > 1 else (0,)
        times = ((1, layer_us * 1000), (16, layer_us * 2500))
        tail_ns = 80_000 * (place == count - 1)
        stages.append(StageCost(int(dice.integers(1, 12)), times, tail_ns, *edge))
    return tuple(stages)


def _planned(request: PlanRequest) -> RingPlan | None:
    try:
        return compute_ring(request)
    except NoPlan:
        return None


def _magnified(host: Announcement, off: int = 0) -> Announcement:
    """Return a host whose times are so long that they have more than seven digits, each `off` by so many of the seventh."""

    def changed(value: int) -> int:
        return value * 10**6 + off * (value * 10**6 // 10**7)

    return replace(
        host,
        layer_ns=tuple((width, changed(ns)) for width, ns in host.layer_ns),
        rtt_us=tuple((peer, changed(us)) for peer, us in host.rtt_us),
    )


def _with_noise(host: Announcement) -> Announcement:
    return _magnified(host, 1)
