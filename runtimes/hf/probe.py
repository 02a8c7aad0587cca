"""How fast one layer and the tail are on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Any

import torch

from registry.shape import ModelShape
from runtimes.base import LoadProgress, ModelSource, Probe
from runtimes.hf.block import Block
from runtimes.hf.checkpoint import Checkpoint
from runtimes.hf.device import release, synchronize
from runtimes.hf.profile import Profile
from runtimes.hf.skeleton import build_skeleton

_SECONDS = 1.6  # for all runs of all widths together; each width gets at least _LEAST runs
_LEAST, _MOST = 3, 15


def probe_model(
    source: ModelSource,
    shape: ModelShape,
    profile: Profile,
    dtype: str,
    device: torch.device,
    widths: Sequence[int],
) -> Probe:
    """Measure a middle layer at each width, then the tail at width 1.

    The weights are the checkpoint's if it is there and random otherwise; the smallest block with the layer is held.
    """
    wanted = sorted(set(widths))
    budget = _SECONDS / (len(wanted) + 1)
    count = len(profile.outputs)
    middle = _Measured(source, shape, profile, dtype, device, count // 2)
    layer_ns = tuple((width, middle.layer_ns(width, budget)) for width in wanted)
    del middle
    release(device)
    return Probe(layer_ns, _Measured(source, shape, profile, dtype, device, count - 1).tail_ns(budget))


class _Measured:
    """A small block with a stopwatch on one layer itself: masks and tables are paid once per block."""

    def __init__(
        self,
        source: ModelSource,
        shape: ModelShape,
        profile: Profile,
        dtype: str,
        device: torch.device,
        layer: int,
    ) -> None:
        self._device = device
        lo, hi = shape.block_around(layer)
        self._block = Block(build_skeleton(source.path, dtype), profile, lo, hi, device)
        if Checkpoint.exists(source.path):
            self._block.load(source, 0, _ignore)
        else:
            self._block.randomize()
        self._began = self._ended = 0
        module = self._block.skeleton.layers[layer]
        module.register_forward_pre_hook(lambda *_: self._start())
        module.register_forward_hook(lambda *_: self._stop())

    @torch.inference_mode()
    def layer_ns(self, width: int, budget: float) -> int:
        """Return the layer's median time for a frame of `width` tokens."""

        def once() -> int:
            self._run(width)
            return self._ended - self._began

        return _median(once, budget)

    @torch.inference_mode()
    def tail_ns(self, budget: float) -> int:
        """Return the median time from the end of the last layer to one token."""

        def once() -> int:
            self._block.choose(self._run(1))
            return time.perf_counter_ns() - self._ended

        return _median(once, budget)

    def _run(self, width: int) -> Any:
        block = self._block
        ids = torch.zeros(1, width, dtype=torch.long, device=self._device) if block.takes_ids else None
        state = block.takes.ones(width, self._device) if block.takes else None
        return block.forward(ids, state, width, block.new_cache(width))

    def _start(self) -> None:
        synchronize(self._device)
        self._began = time.perf_counter_ns()

    def _stop(self) -> None:
        synchronize(self._device)
        self._ended = time.perf_counter_ns()


def _median(once: Callable[[], int], budget: float) -> int:
    """Run once to warm up, then until the budget in seconds is spent, within bounds."""
    once()
    times: list[int] = []
    deadline = time.monotonic() + budget
    while len(times) < _LEAST or (len(times) < _MOST and time.monotonic() < deadline):
        times.append(once())
    return median_low(times)


def _ignore(_: LoadProgress) -> None:
    """Progress of a probe interests nobody."""
