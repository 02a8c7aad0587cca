"""What every runtime checks before it reads a byte: the registry's word, the block's bounds and its memory."""

from __future__ import annotations

from registry.shape import BlockMemory, ModelShape
from runtimes.base import BlockLimits, CheckpointError, ContextExceeded, MemoryExceeded, ModelSource


def check_identity(source: ModelSource, *, layers: int, architectures: tuple[str, ...]) -> None:
    """Refuse a checkpoint that is not the model of the signed registry.

    Raises:
        CheckpointError: the number of layers or the architecture differ.

    """
    if layers != source.layer_count:
        raise CheckpointError(
            f"{source.path}: the checkpoint has {layers} layers, the registry says {source.layer_count} "
            f"for {source.model_id!r}: fetch the registry's checkpoint"
        )
    if source.arch not in architectures:
        raise CheckpointError(
            f"{source.path}: the checkpoint's architecture is {', '.join(architectures) or 'not named'}, the registry "
            f"says {source.arch!r} for {source.model_id!r}: fetch the registry's checkpoint"
        )


def check_context(source: ModelSource, limits: BlockLimits, most: int | None) -> None:
    """Refuse to promise more positions than the model was made for; `most` is None if it does not say.

    Raises:
        ContextExceeded: limits.context is larger.

    """
    if most is not None and limits.context > most:
        raise ContextExceeded(
            f"model.context is {limits.context}, but {source.model_id} was made for {most} positions: lower it"
        )


def admit(shape: ModelShape, lo: int, hi: int, limits: BlockLimits) -> BlockMemory:
    """Return the memory of the block, if it may be loaded.

    Raises:
        CheckpointError: [lo, hi) is no block of the model.
        MemoryExceeded: the block does not fit; the text names the bytes and the largest block from `lo` that would.

    """
    try:
        memory = shape.block_memory(lo, hi, context=limits.context, sessions=limits.sessions)
    except ValueError as error:
        raise CheckpointError(f"{shape.model_id}: {error}") from error
    if memory.total > limits.memory:
        fitting = _largest_fitting(shape, lo, hi, limits)
        advice = (
            f"the largest block from layer {lo} that fits is [{lo}, {fitting})"
            if fitting > lo
            else "not one layer fits"
        )
        raise MemoryExceeded(
            f"layers [{lo}, {hi}) of {shape.model_id} need {memory.total:,} bytes ({memory.weights:,} weights, "
            f"{memory.kv:,} KV cache for {limits.sessions} × {limits.context} tokens, {memory.workspace:,} workspace), "
            f"allowed are {limits.memory:,}: {advice}"
        )
    return memory


def _largest_fitting(shape: ModelShape, lo: int, hi: int, limits: BlockLimits) -> int:
    for end in range(hi - 1, lo, -1):
        if (
            shape.may_cut(end)
            and shape.block_memory(lo, end, context=limits.context, sessions=limits.sessions).total
            <= limits.memory
        ):
            return end
    return lo
