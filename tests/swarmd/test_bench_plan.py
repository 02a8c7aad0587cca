"""`swarmd bench plan`: small runs of what it measures, and the solver's bound beside the optimum."""

from __future__ import annotations

from dataclasses import replace

from ring.objective import Objective
from swarmd.bench.catalogue import BENCHES
from swarmd.bench.plan import churn, large_pools, pace_error, small_pools
from swarmd.bench.plan_bound import least_circuit_ns
from swarmd.bench.plan_brute_force import brute_force
from swarmd.bench.plan_pools import KINDS, made_up_pool


def test_small_pools_have_no_gap() -> None:
    checks = small_pools(15)
    assert [check.value for check in checks] == [0, 0, 0]
    assert all(check.ok for check in checks)


def test_large_pools_are_timed_and_compared_with_a_bound() -> None:
    checks, rows = large_pools(16, 6.0, ("uniform",), 60.0, 2.0)
    assert [len(row) for row in rows] == [7]
    assert checks[0].value > 0
    assert checks[1].value >= 0  # how close the bound comes depends on the solver's time


def test_the_pace_is_simulated_and_churn_replayed() -> None:
    assert all(check.ok for check in pace_error(2))
    moved, _, restless = churn(40)
    assert moved.ok
    assert restless.ok


def test_the_solvers_bound_is_never_above_the_optimum_and_mostly_at_it() -> None:
    close = compared = 0
    for number, kind in enumerate(list(KINDS) * 2):
        pool = made_up_pool(kind, number, 5, 6, 3.0)
        best = brute_force(replace(pool, objective=Objective("latency")))
        if best is not None:
            bound = least_circuit_ns(pool, 5.0)
            assert bound <= best / 1000 * (1 + 1e-6)
            close += bound > 0.9 * best / 1000
            compared += 1
    assert compared >= 6
    assert close >= compared // 2


def test_the_bench_is_listed() -> None:
    assert "plan" in BENCHES
