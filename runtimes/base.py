"""ModelRuntime: what a plugin must do to serve a block of a model.

A runtime is synchronous and used by one thread at a time; the daemon calls it from a worker thread. It is found
through the entry-point group `swarmd.runtimes` (see runtimes/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from registry.shape import BlockMemory, ModelShape

if TYPE_CHECKING:  # commands look at this module, and start faster without arrays
    import numpy as np
    from numpy.typing import NDArray


class RuntimeFailure(Exception):
    """Base of what a runtime raises. `code` is stable and machine-readable; the text says what to do."""

    code: ClassVar[str] = "runtime_failed"


class CheckpointError(RuntimeFailure):
    """The checkpoint is missing, incomplete or not of the expected shape. Fix or replace the files it names."""

    code = "checkpoint_bad"


class UnsupportedModel(RuntimeFailure):
    """The model cannot be served by this runtime. Choose another runtime (`runtime.name`) or another model."""

    code = "model_unsupported"


class MemoryExceeded(RuntimeFailure):
    """The block or the session would exceed the memory limit. Raise `runtime.memory_limit` or load fewer layers."""

    code = "memory_exceeded"


class SessionUnknown(RuntimeFailure):
    """The session is not open on this host: it was closed, or its stage restarted. Start the session anew."""

    code = "session_unknown"


class ContextExceeded(RuntimeFailure):
    """More context is asked for than was promised or than the model has. Shorten the prompt or set `model.context`."""

    code = "context_exceeded"


class FrameOutOfOrder(RuntimeFailure):
    """A frame starts behind what its session's cache holds. Send the positions in between first."""

    code = "frame_out_of_order"


class FrameMalformed(RuntimeFailure):
    """A frame's tokens or tensors do not fit the model or the block. The sender runs another model or version."""

    code = "frame_malformed"


class NothingLoaded(RuntimeFailure):
    """No block is loaded on this host. Load one before opening sessions."""

    code = "nothing_loaded"


class Tensor(NamedTuple):
    """A tensor as it crosses the wire.

    dtype is torch's name without the prefix ("bfloat16", "float32", "int64" …); data holds the elements in C order,
    little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


# What one stage hands to the next: a layer's raw output. Most architectures give one tensor [1, w, hidden];
# some give several, with gaps.
Activation = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's files are.

    Attributes:
        model_id: the registry row's id.
        path: checkpoint directory (config.json, *.safetensors, tokenizer files).
        layer_count: what the signed registry says; a checkpoint that disagrees is refused.
        arch: `hfArch` of the registry row; a checkpoint that disagrees is refused.

    """

    model_id: str
    path: Path
    layer_count: int
    arch: str


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """What a block has been promised. memory: bytes in all; context: tokens per session; sessions: at once."""

    memory: int
    context: int
    sessions: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. done and total in bytes; what: the tensor or step being worked on."""

    done: int
    total: int
    what: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the process really holds, read off the loaded module and not off the plan.

    Attributes:
        model_id: the model, or "" when nothing is loaded.
        lo, hi: the block.
        layers: indices of all layers of which at least one tensor is held.
        tensors: name → bytes, of every parameter and buffer held.
        bytes_read: bytes of tensor data that the last load has read from the checkpoint.
        memory: the estimate under which the block was admitted.

    """

    model_id: str
    lo: int
    hi: int
    layers: tuple[int, ...]
    tensors: dict[str, int]
    bytes_read: int
    memory: BlockMemory

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(self.tensors.values())


@dataclass(frozen=True, slots=True)
class Probe:
    """Measured speed of one layer of a model on this host. Widths in tokens, times in nanoseconds.

    Attributes:
        layer_ns: (width, median time of one forward through one layer), ascending in width.
        tail_ns: time of final norm + lm_head + choice for one token.

    """

    layer_ns: tuple[tuple[int, int], ...]
    tail_ns: int


@dataclass(frozen=True, slots=True)
class FrameInput:
    """One frame to compute.

    Attributes:
        session: an open session's id.
        position: index in the session of the frame's first token. KV entries at or behind it are discarded
            first (rewind), so a frame may repeat or overwrite what came before; it may not leave a gap.
        tokens: the frame's token ids: at the head always; elsewhere only where the runtime asks for them.
        activation: the previous stage's output; None at the head.
        logits_from: at the tail, the first of the frame's tokens whose logits are wanted; None if none are.

    """

    session: str
    position: int
    tokens: tuple[int, ...] | None
    activation: Activation | None
    logits_from: int | None = None


@dataclass(frozen=True, slots=True)
class FrameOutput:
    """One frame's result: `activation` for the next stage, or at the tail `tokens`.

    tokens[i] is the token that the model chooses to follow the frame's i-th token (greedy). logits are float32 [w − logits_from,
    vocabulary], what the model says of the token to follow each of the frame's tokens from logits_from on, where they are wanted.
    """

    activation: Activation | None
    tokens: tuple[int, ...] | None
    logits: NDArray[np.float32] | None = None


class ModelRuntime(Protocol):
    """Serves one block of one model. Every method may raise RuntimeFailure and nothing else."""

    name: ClassVar[str]

    @property
    def needs_tokens_everywhere(self) -> bool:
        """Whether every stage of the loaded model gets the frames' token ids (gemma3n, deepseek_v4 …)."""
        ...

    def device(self) -> str:
        """Return a short description of the device for people, e.g. "cpu (2 threads)" or "NVIDIA H200"."""
        ...

    def numerics(self) -> str:
        """Return what the bits of the loaded block's results depend on, for people; "" without a block.

        It begins with "exact" if a token's result depends neither on how the tokens behind the prompt were cut into frames
        nor on what other sessions share the call.
        """
        ...

    def memory_total(self) -> int:
        """Return the bytes that the device has, within what this process is allowed (control groups on a CPU)."""
        ...

    def memory_free(self) -> int:
        """Return the bytes that this process may still use on the device (NVML, cgroup or system; never a guess)."""
        ...

    def shape(self, source: ModelSource) -> ModelShape:
        """Return the model's sizes, from its configuration alone (no weights are read)."""
        ...

    def probe(self, source: ModelSource, widths: Sequence[int]) -> Probe:
        """Measure one layer of the model at the given frame widths. Takes seconds, holds one layer at a time."""
        ...

    def load(
        self,
        source: ModelSource,
        lo: int,
        hi: int,
        limits: BlockLimits,
        progress: Callable[[LoadProgress], None],
    ) -> Inventory:
        """Load layers [lo, hi), reading only their own tensors; replaces whatever block was loaded before.

        Layers of the block before that lie in the new one may be kept in place. All sessions end. A load that
        is refused before it begins changes nothing; one that fails later, whatever it raises, leaves the old block whole
        and without sessions, or nothing: `inventory` tells.

        Raises:
            MemoryExceeded: the estimate exceeds limits.memory and nothing has changed; or the device ran out of it.
            CheckpointError: a tensor is missing or has the wrong shape.
            UnsupportedModel: the architecture is unknown to this runtime; nothing has changed.
            ContextExceeded: limits.context is more than the model was made for; nothing has changed.

        """
        ...

    def inventory(self) -> Inventory:
        """Return what is held now."""
        ...

    def unload(self) -> None:
        """Drop the block and all sessions, and give the memory back."""
        ...

    def open_session(self, session: str) -> None:
        """Make room for a session; one that is open already is left as it is.

        Raises:
            MemoryExceeded: `limits.sessions` are open already.
            NothingLoaded: there is no block to open it on.

        """
        ...

    def close_session(self, session: str) -> None:
        """Free a session's KV cache; unknown sessions are ignored."""
        ...

    def sessions(self) -> dict[str, int]:
        """Return the open sessions and how many tokens of KV cache each holds."""
        ...

    def forward(self, frames: Sequence[FrameInput]) -> list[FrameOutput]:
        """Compute frames of one or several sessions; results in the order of `frames`.

        Raises:
            SessionUnknown, ContextExceeded, FrameOutOfOrder, FrameMalformed: named in the text; no frame of the
                call has been computed.
            MemoryExceeded: the device ran out of memory; the session's cache stands where the failed frame began.

        """
        ...
