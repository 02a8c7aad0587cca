"""The benches there are. Each imports what it measures only when it runs: torch takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmd.bench.report import Report

Tell = Callable[[str], None]
"""Told, for people, what is being measured."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench: what it shows, and how to run it."""

    summary: str
    run: Callable[[Tell], Report]


def _runtime(tell: Tell) -> Report:
    from swarmd.bench.runtime import bench_runtime

    return bench_runtime(tell)


def _load(tell: Tell) -> Report:
    from swarmd.bench.load import bench_load

    return bench_load(tell)


def _plan(tell: Tell) -> Report:
    from swarmd.bench.plan import bench_plan

    return bench_plan(tell)


def _predict(tell: Tell) -> Report:
    from swarmd.bench.predict import bench_predict

    return bench_predict(tell)


BENCHES = {
    "plan": Bench("the planner against brute force, a solver's bound, a simulation and churn", _plan),
    "predict": Bench(
        "tokens per second as predicted against real rings over a WAN of several delays", _predict
    ),
    "runtime": Bench(
        "a block's forward pass against transformers' own and against the bare matmuls", _runtime
    ),
    "load": Bench("what loading a quarter of a checkpoint reads, and takes of memory", _load),
}
