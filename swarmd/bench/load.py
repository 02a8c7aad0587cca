"""`swarmd bench load`: a quarter of a checkpoint of 1 GB, in a process of its own."""

from __future__ import annotations

from dataclasses import asdict

from runtimes.bench.load import LoadFigures, measure_load
from swarmd.bench.catalogue import Tell
from swarmd.bench.report import Check, Report

MOST_MEMORY = 1.15  # of the block's bytes, beside what the process had before
MOST_READ = 1.02  # of the block's bytes


def bench_load(tell: Tell) -> Report:
    """Measure the load of 2 of 8 layers."""
    tell("writing a checkpoint of 1 GB and loading a quarter of it; takes half a minute")
    return load_report(measure_load(hidden=2048, intermediate=8192, layers=8, lo=3, hi=5))


def load_report(figures: LoadFigures) -> Report:
    """Hold what was measured against what is promised."""
    taken = figures.peak - figures.baseline
    return Report(
        "load",
        (
            Check(
                "peak of resident memory over the baseline, to the block's bytes",
                taken / figures.block,
                MOST_MEMORY,
            ),
            Check(
                "peak of resident memory over the baseline, to the estimate", taken / figures.estimate, 1.0
            ),
            Check(
                "bytes read to the block's bytes",
                figures.read / figures.block if figures.read >= 0 else float("nan"),
                MOST_READ,
            ),
        ),
        facts={**asdict(figures), "share_of_checkpoint": figures.block / figures.checkpoint},
    )
