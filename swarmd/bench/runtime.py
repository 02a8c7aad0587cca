"""`swarmd bench runtime`: what running a block costs beside transformers' own forward and the bare matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runtimes.bench.forward import SIDES, ForwardCase, ForwardFigures, describe_machine, measure_forward
from swarmd.bench.catalogue import Tell
from swarmd.bench.report import Check, Report, ResultTable

MOST_OVER_TRANSFORMERS = 1.05
MOST_DIFFERENCE = 0.02  # of the largest element: two roundings of bfloat16
WIDTHS = (1, 5)  # one token, and a frame of K + 1
_SECONDS = 6.0  # for each case and width

CASES = {
    "hidden 576": ForwardCase(576, 1536, 9, 3, layers=24, lo=8, hi=12),
    "hidden 1024": ForwardCase(1024, 2816, 16, 8, layers=24, lo=8, hi=12),
    "hidden 2048": ForwardCase(2048, 5632, 32, 8, layers=24, lo=8, hi=12),
    "3 of 80 layers, hidden 1024": ForwardCase(1024, 2816, 16, 8, layers=80, lo=40, hi=43),
}

Measured = Sequence[tuple[str, ForwardFigures]]


def bench_runtime(tell: Tell) -> Report:
    """Measure all cases at all widths."""
    measured: list[tuple[str, ForwardFigures]] = []
    for name, case in CASES.items():
        tell(f"{name}, context {case.context}, frames of {' and '.join(map(str, WIDTHS))} tokens")
        measured += [(name, figures) for figures in measure_forward(case, WIDTHS, seconds=_SECONDS)]
    return runtime_report(measured, describe_machine())


def runtime_report(measured: Measured, machine: str) -> Report:
    """Hold what was measured against what is promised."""
    checks: list[Check] = []
    for name, figures in measured:
        at = f"{name}, width {figures.width}"
        checks += [
            Check(f"{at}: block over transformers", figures.over_transformers, MOST_OVER_TRANSFORMERS),
            Check(
                f"{at}: overhead per layer over the bare matmuls",
                figures.overhead_us,
                figures.transformers_overhead_us * MOST_OVER_TRANSFORMERS,
                unit="µs",
            ),
            Check(f"{at}: difference from transformers' result", figures.difference, MOST_DIFFERENCE),
        ]
    return Report(
        "runtime",
        checks,
        (_times(measured), _parts(measured)),
        {"machine": machine, "measured": [{"case": name, **asdict(figures)} for name, figures in measured]},
    )


def _times(measured: Measured) -> ResultTable:
    rows = [
        (
            name,
            str(figures.width),
            *(f"{figures.layer_us[side]:.0f}" for side in SIDES),
            f"{figures.over_transformers:.3f}",
            f"{figures.wire_over_transformers:.3f}",
            f"{figures.over_matmuls:.2f}",
        )
        for name, figures in measured
    ]
    ratios = ("block / transformers", "wire to wire / transformers", "block / matmuls")
    return ResultTable("µs per layer, medians", ("case", "width", *SIDES, *ratios), tuple(rows))


def _parts(measured: Measured) -> ResultTable:
    parts = tuple(measured[0][1].parts_us) if measured else ()
    rows = [
        (name, str(figures.width), *(f"{figures.parts_us[part]:.0f}" for part in parts))
        for name, figures in measured
    ]
    return ResultTable("where the block's time goes, µs per layer", ("case", "width", *parts), tuple(rows))
