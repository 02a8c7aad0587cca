"""A block's forward pass against transformers' own for the same layers, and against the bare matmuls in them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

from runtimes.base import BlockLimits, FrameInput, LoadProgress, ModelSource
from runtimes.bench.interleave import Rounds, Side, interleave
from runtimes.bench.models import llama_config, write_block
from runtimes.bench.operations import time_operations
from runtimes.hf import HfRuntime
from runtimes.hf.block import Block, first_tensor
from runtimes.hf.cache import BlockCache
from runtimes.hf.device import choose_device, describe, synchronize

OURS, THEIRS, WIRE, MATMULS = "block", "transformers", "wire to wire", "matmuls"
SIDES = (MATMULS, THEIRS, OURS, WIRE)
"""What is timed: bare products of matrices, transformers' own forward, a block's, and a runtime's from bytes to bytes."""


@dataclass(frozen=True, slots=True)
class ForwardCase:
    """What is measured: layers [lo, hi) in the middle of a Llama of `layers` layers, random weights.

    hidden: its width; intermediate: that of the feed-forward part; heads, kv_heads: of 64; context: tokens held.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    lo: int
    hi: int
    context: int = 512

    def config(self) -> LlamaConfig:
        """Return transformers' configuration of the whole model."""
        return llama_config(self.hidden, self.intermediate, self.heads, self.kv_heads, self.layers)


@dataclass(frozen=True, slots=True)
class ForwardFigures:
    """What was measured at one frame width.

    Attributes:
        width: of the frames in tokens.
        rounds: how many rounds.
        layer_us: side → microseconds per layer, medians.
        over_transformers: the block's forward over transformers' own.
        wire_over_transformers: the same for the whole way from received bytes to bytes to send.
        over_matmuls: the block's forward over the bare matmuls of its layers.
        difference: largest difference of an element of the two results, over the largest element.
        parts_us: where the block's time goes, microseconds per layer.

    """

    width: int
    rounds: int
    layer_us: dict[str, float]
    over_transformers: float
    wire_over_transformers: float
    over_matmuls: float
    difference: float
    parts_us: dict[str, float]

    @property
    def overhead_us(self) -> float:
        """What the block takes beside the bare matmuls, per layer."""
        return self.layer_us[OURS] - self.layer_us[MATMULS]

    @property
    def transformers_overhead_us(self) -> float:
        """The same of transformers' own forward."""
        return self.layer_us[THEIRS] - self.layer_us[MATMULS]


def describe_machine() -> str:
    """Return the device and the clock, for people."""
    device = choose_device()
    clock = "CPU time of the thread" if bench_clock(device) is time.thread_time_ns else "wall clock"
    return f"{describe(device)}, {clock}, torch {torch.__version__}"


def measure_forward(
    case: ForwardCase, widths: tuple[int, ...], *, seconds: float, threads: int = 1
) -> list[ForwardFigures]:
    """Measure a case in bfloat16.

    Args:
        case: the layers.
        widths: of the frames.
        seconds: to spend on each width, about.
        threads: CPU threads, process-wide. One alone can be timed by its own CPU time, whatever else the machine does.

    """
    with _loaded(case, threads) as bench, torch.inference_mode():
        return [bench.measure(width, seconds) for width in widths]


@contextmanager
def _loaded(case: ForwardCase, threads: int) -> Iterator[_ForwardBench]:
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as directory:
        path = Path(directory)
        write_block(path, case.config(), case.lo, case.hi)
        source = ModelSource("bench", path, case.layers, "LlamaForCausalLM")
        runtime = HfRuntime(threads=threads, dtype="bfloat16")
        limits = BlockLimits(runtime.memory_free(), case.context + 64, 1)
        runtime.load(source, case.lo, case.hi, limits, _ignore)
        try:
            yield _ForwardBench(case, runtime)
        finally:
            runtime.unload()


class _ForwardBench:
    """One loaded block, and transformers' own model of the same layers with the same weights in the same memory."""

    def __init__(self, case: ForwardCase, runtime: HfRuntime) -> None:
        block = runtime.block
        if block is None or block.takes is None:
            raise AssertionError("the layers are not loaded, or begin the model")
        self._case, self._runtime, self._block = case, runtime, block
        self._count = case.hi - case.lo
        self._decoder = _transformers_own(case, block)
        self._weights = [
            module.weight
            for layer in block.skeleton.layers[case.lo : case.hi]
            for module in layer.modules()
            if isinstance(module, nn.Linear)
        ]
        self._clock = bench_clock(block.device)
        generator = torch.Generator().manual_seed(1)
        self._state: Any = block.takes.random(case.context + 64, generator, block.device)

    def measure(self, width: int, seconds: float) -> ForwardFigures:
        case, block = self._case, self._block
        prefix, frame = self._state[:, : case.context], self._state[:, case.context : case.context + width]
        theirs = DynamicCache(config=self._decoder.config)
        self._run_theirs(prefix, theirs)
        ours = block.new_cache(case.context + width)
        block.forward(None, prefix, case.context, ours)
        expected, got = self._run_theirs(frame, theirs), first_tensor(block.forward(None, frame, width, ours))
        difference = float((expected - got).abs().max() / expected.abs().max())
        self._open_session(prefix)
        given = FrameInput("s", case.context, None, block.gives.activation(frame))
        inputs = {weight.shape[1]: torch.randn(width, weight.shape[1]).to(weight) for weight in self._weights}
        sides = {
            THEIRS: Side(
                lambda: self._run_theirs(frame, theirs),
                lambda: theirs.crop(case.context - theirs.get_seq_length()),
            ),
            OURS: Side(lambda: self._run_ours(frame, width, ours), lambda: block.rewind(ours, case.context)),
            WIRE: Side(lambda: self._runtime.forward([given])),
            MATMULS: Side(lambda: self._run_matmuls(inputs)),
        }
        rounds = interleave(sides, seconds=seconds, least=15, most=400, clock=self._clock)
        return self._figures(width, rounds, difference, self._parts(frame, width, ours, rounds))

    def _figures(
        self, width: int, rounds: Rounds, difference: float, parts: dict[str, float]
    ) -> ForwardFigures:
        return ForwardFigures(
            width=width,
            rounds=len(rounds),
            layer_us={side: rounds.median_ns(side) / 1e3 / self._count for side in SIDES},
            over_transformers=rounds.ratio(OURS, THEIRS),
            wire_over_transformers=rounds.ratio(WIRE, THEIRS),
            over_matmuls=rounds.ratio(OURS, MATMULS),
            difference=difference,
            parts_us=parts,
        )

    def _parts(self, frame: torch.Tensor, width: int, cache: BlockCache, rounds: Rounds) -> dict[str, float]:
        def once() -> None:
            self._block.rewind(cache, self._case.context)
            self._run_ours(frame, width, cache)

        parts = {part: ns / 1e3 / self._count for part, ns in time_operations(once, self._clock).items()}
        parts["python"] = max(0.0, rounds.median_ns(OURS) / 1e3 / self._count - sum(parts.values()))
        return parts

    def _open_session(self, prefix: torch.Tensor) -> None:
        self._runtime.close_session("s")
        self._runtime.open_session("s")
        self._runtime.forward([FrameInput("s", 0, None, self._block.gives.activation(prefix))])

    def _run_ours(self, frame: torch.Tensor, width: int, cache: BlockCache) -> None:
        self._block.forward(None, frame, width, cache)
        synchronize(self._block.device)

    def _run_theirs(self, frame: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        output: torch.Tensor = self._decoder(
            inputs_embeds=frame, cache=cache, use_cache=True
        ).last_hidden_state
        synchronize(self._block.device)
        return output

    def _run_matmuls(self, inputs: dict[int, torch.Tensor]) -> None:
        for weight in self._weights:
            linear(inputs[weight.shape[1]], weight)
        synchronize(self._block.device)


def bench_clock(device: torch.device) -> Callable[[], int]:
    """Return the clock to measure with: of this thread's CPU time where that is all there is, else of the wall."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time_ns if alone else time.perf_counter_ns


def _transformers_own(case: ForwardCase, block: Block) -> Any:
    """Return transformers' decoder of as many layers as the block has, with the block's weights and no final norm."""
    config = case.config()
    config.num_hidden_layers = case.hi - case.lo
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for index, layer in enumerate(model.model.layers):
        layer.load_state_dict(block.skeleton.layers[case.lo + index].state_dict(), assign=True)
    decoder = model.model
    decoder.norm = nn.Identity()
    decoder.rotary_emb = type(decoder.rotary_emb)(config=config).to(block.device)
    decoder.config.pad_token_id = None
    return decoder


def _ignore(_: LoadProgress) -> None:
    """Progress interests nobody here."""
