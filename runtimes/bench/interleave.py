"""Timing several ways of doing one thing, turn by turn, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Side:
    """One way of doing it. `prepare` is called before each run and not timed."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


class Rounds:
    """Times in nanoseconds of each side, round by round."""

    def __init__(self, times: Mapping[str, list[int]]) -> None:
        self._times = times

    def __len__(self) -> int:
        """Return how many rounds there were."""
        return len(next(iter(self._times.values())))

    def median_ns(self, side: str) -> float:
        """Return a side's median time."""
        return median(self._times[side])

    def ratio(self, side: str, baseline: str) -> float:
        """Return the median, over the rounds, of a side's time over the baseline's in the same round."""
        return median(
            ours / theirs for ours, theirs in zip(self._times[side], self._times[baseline], strict=True)
        )


def interleave(
    sides: Mapping[str, Side],
    *,
    seconds: float,
    least: int,
    most: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Rounds:
    """Run all sides in turn, every other round backwards, after two rounds that do not count.

    Args:
        sides: name → what to run.
        seconds: when they are spent no further round begins …
        least: … but so many there are at least,
        most: and so many at most.
        clock: nanoseconds; `time.thread_time_ns` leaves out what other processes take of the CPU, and is right only for
            what computes in the calling thread alone.

    """
    times: dict[str, list[int]] = {name: [] for name in sides}
    order = list(sides)
    began = time.monotonic()
    for count in range(-2, most):
        if count >= least and time.monotonic() - began > seconds:
            break
        for name in order:
            sides[name].prepare()
            start = clock()
            sides[name].run()
            took = clock() - start
            if count >= 0:
                times[name].append(took)
        order.reverse()
    return Rounds(times)
