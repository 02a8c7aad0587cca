"""ReferenceRuntime: serves blocks of reference models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low
from typing import ClassVar

import numpy as np

from registry.shape import BlockMemory, ModelShape
from runtimes.admission import admit, check_context, check_identity
from runtimes.base import (
    Activation,
    BlockLimits,
    FrameInput,
    FrameMalformed,
    FrameOutput,
    Inventory,
    LoadProgress,
    ModelSource,
    NothingLoaded,
    Probe,
    SessionUnknown,
    Tensor,
    UnsupportedModel,
)
from runtimes.memory import cpu_memory_free, cpu_memory_total
from runtimes.reference.model import (
    ARCHITECTURE,
    Integers,
    ReferenceBlock,
    ReferenceCache,
    ReferenceConfig,
    choose,
    derive,
    logits,
    tensor_shapes,
)
from runtimes.sessions import SessionTable

_PREFILL_WIDTH = 512
_PROBE_RUNS = 5


@dataclass(slots=True)
class _Loaded:
    block: ReferenceBlock
    inventory: Inventory
    sessions: SessionTable[ReferenceCache] = field(repr=False)


class ReferenceRuntime:
    """Serves reference models on the CPU, in one thread.

    Args:
        threads: most threads to use; one is used.
        dtype: "auto" or "int64".
        numerics: makes no difference: integers add up the same way in any order.

    Raises:
        UnsupportedModel: another dtype is asked for.

    """

    name: ClassVar[str] = "reference"

    def __init__(self, *, threads: int = 0, dtype: str = "auto", numerics: str = "auto") -> None:
        if dtype not in ("auto", "int64"):
            raise UnsupportedModel(
                f'dtype is {dtype!r}; the reference runtime computes in int64 only (or "auto")'
            )
        self.needs_tokens_everywhere = False
        self._loaded: _Loaded | None = None

    def device(self) -> str:
        """Return the device for people."""
        return "cpu (reference)"

    def numerics(self) -> str:
        """Return that a loaded block is exact."""
        return "exact (integers)" if self._loaded else ""

    def memory_total(self) -> int:
        """Return the bytes that this process may have."""
        return cpu_memory_total()

    def memory_free(self) -> int:
        """Return the bytes that this process may still use."""
        return cpu_memory_free()

    def shape(self, source: ModelSource) -> ModelShape:
        """Return the model's sizes."""
        config = self._config(source)
        token = 8 * config.hidden
        layer = _bytes(tensor_shapes(config, 0, config.layers), "layers.0.")
        wide = min(_PREFILL_WIDTH, config.context)
        return ModelShape(
            model_id=source.model_id,
            layer_bytes=(layer,) * config.layers,
            kv_token_bytes=(token,) * config.layers,
            state_bytes=(0,) * config.layers,
            head_bytes=config.vocab * token,
            tail_bytes=(config.vocab + 1) * token,
            shared_end_bytes=0,
            hidden_bytes=token,
            workspace_bytes=8 * wide * (4 * config.context + 6 * config.hidden + config.vocab),
        )

    def probe(self, source: ModelSource, widths: Sequence[int]) -> Probe:
        """Measure a middle layer and the tail."""
        config = self._config(source)
        layer = config.layers // 2
        shapes = tensor_shapes(config, layer, layer + 1) | tensor_shapes(
            config, config.layers - 1, config.layers
        )
        block = ReferenceBlock(
            config, layer, layer + 1, {name: derive(config, name, shape) for name, shape in shapes.items()}
        )

        def run(width: int) -> None:
            cache = ReferenceCache({layer: np.empty((width, config.hidden), np.int64)})
            block.step(np.ones((width, config.hidden), np.int64), 0, cache)

        one = np.ones((1, config.hidden), np.int64)
        layer_ns = tuple((width, _median_ns(partial(run, width))) for width in sorted(set(widths)))
        return Probe(layer_ns, _median_ns(lambda: choose(block.tensors, one)))

    def load(
        self,
        source: ModelSource,
        lo: int,
        hi: int,
        limits: BlockLimits,
        progress: Callable[[LoadProgress], None],
    ) -> Inventory:
        """Derive the tensors of layers [lo, hi)."""
        config = self._config(source)
        check_context(source, limits, config.context)
        memory = admit(self.shape(source), lo, hi, limits)
        self.unload()
        tensors: dict[str, Integers] = {}
        done = 0
        for name, shape in tensor_shapes(config, lo, hi).items():
            progress(LoadProgress(done, memory.weights, name))
            tensors[name] = derive(config, name, shape)
            done += tensors[name].nbytes
        progress(LoadProgress(done, memory.weights, "ready"))
        held = {name: tensor.nbytes for name, tensor in tensors.items()}
        layers = tuple(sorted({int(name.split(".")[1]) for name in held if name.startswith("layers.")}))
        inventory = Inventory(source.model_id, lo, hi, layers, held, done, memory)

        def make() -> ReferenceCache:
            return ReferenceCache(
                {layer: np.empty((limits.context, config.hidden), np.int64) for layer in range(lo, hi)}
            )

        self._loaded = _Loaded(ReferenceBlock(config, lo, hi, tensors), inventory, SessionTable(limits, make))
        return inventory

    def inventory(self) -> Inventory:
        """Return what is held."""
        return (
            self._loaded.inventory if self._loaded else Inventory("", 0, 0, (), {}, 0, BlockMemory(0, 0, 0))
        )

    def unload(self) -> None:
        """Drop the block and all sessions."""
        self._loaded = None

    def open_session(self, session: str) -> None:
        """Make room for a session."""
        if self._loaded is None:
            raise NothingLoaded(f"session {session!r} cannot be opened: no block is loaded")
        self._loaded.sessions.open(session)

    def close_session(self, session: str) -> None:
        """Free a session."""
        if self._loaded:
            self._loaded.sessions.close(session)

    def sessions(self) -> dict[str, int]:
        """Return the open sessions and their lengths."""
        return self._loaded.sessions.lengths() if self._loaded else {}

    def forward(self, frames: Sequence[FrameInput]) -> list[FrameOutput]:
        """Compute frames one after the other."""
        if not frames:
            return []
        if self._loaded is None:
            raise SessionUnknown(
                f"session {frames[0].session!r} is not open on this host: no block is loaded"
            )
        block, sessions = self._loaded.block, self._loaded.sessions
        inputs = [_hidden_of(block, frame) for frame in frames]
        sessions.check(frames, [len(hidden) for hidden in inputs])
        return [
            _output(block, block.step(hidden, frame.position, sessions[frame.session]), frame.logits_from)
            for frame, hidden in zip(frames, inputs, strict=True)
        ]

    def _config(self, source: ModelSource) -> ReferenceConfig:
        config = ReferenceConfig.read(source.path)
        check_identity(source, layers=config.layers, architectures=(ARCHITECTURE,))
        return config


def _hidden_of(block: ReferenceBlock, frame: FrameInput) -> Integers:
    """Return the frame's hidden state [w, hidden]: embedded tokens at the head, else the activation."""
    if block.lo == 0:
        if not frame.tokens or not all(0 <= token < block.config.vocab for token in frame.tokens):
            raise FrameMalformed(
                f"session {frame.session!r}: the head needs token ids from 0 to {block.config.vocab - 1}"
            )
        return block.tensors["embed"][list(frame.tokens)]
    if frame.activation is None or len(frame.activation) != 1 or frame.activation[0] is None:
        raise FrameMalformed(
            f"session {frame.session!r}: layer {block.lo} needs one tensor from the stage before"
        )
    tensor = frame.activation[0]
    width = tensor.shape[1] if len(tensor.shape) == 3 else 0
    if tensor.dtype != "int64" or tensor.shape != (1, width, block.config.hidden):
        raise FrameMalformed(
            f"session {frame.session!r}: the activation is {tensor.dtype} {tensor.shape}; "
            f"layer {block.lo} takes int64 (1, width, {block.config.hidden})"
        )
    if memoryview(tensor.data).nbytes != 8 * width * block.config.hidden:
        raise FrameMalformed(
            f"session {frame.session!r}: the activation's data do not have the size of its shape"
        )
    return np.frombuffer(tensor.data, "<i8").astype(np.int64).reshape(width, block.config.hidden)


def _output(block: ReferenceBlock, hidden: Integers, logits_from: int | None) -> FrameOutput:
    if block.hi == block.config.layers:
        wanted = None if logits_from is None else logits(block.tensors, hidden[logits_from:])
        return FrameOutput(None, choose(block.tensors, hidden), wanted)
    activation: Activation = (
        Tensor("int64", (1, *hidden.shape), hidden.astype("<i8", copy=False).data.cast("B")),
    )
    return FrameOutput(activation, None)


def _bytes(shapes: dict[str, tuple[int, ...]], prefix: str) -> int:
    return sum(8 * int(np.prod(shape)) for name, shape in shapes.items() if name.startswith(prefix))


def _median_ns(run: Callable[[], object]) -> int:
    times = []
    for _ in range(_PROBE_RUNS):
        began = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - began)
    return int(median_low(times))
