"""HfRuntime: what the daemon sees of the Hugging Face runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers.utils import logging as transformers_logging

from registry.shape import BlockMemory, ModelShape
from runtimes.admission import admit, check_context, check_identity
from runtimes.base import (
    BlockLimits,
    FrameInput,
    FrameOutOfOrder,
    FrameOutput,
    Inventory,
    LoadProgress,
    ModelSource,
    NothingLoaded,
    Probe,
    SessionUnknown,
)
from runtimes.hf.block import Block
from runtimes.hf.cache import BlockCache
from runtimes.hf.device import choose_device, describe, memory_free, memory_total, out_of_memory, release
from runtimes.hf.frames import compute, parse
from runtimes.hf.numerics import Mode, Numerics, choose_numerics
from runtimes.hf.probe import probe_model
from runtimes.hf.profile import Profile, profile_model
from runtimes.hf.shape import model_shape
from runtimes.hf.skeleton import Skeleton, build_skeleton
from runtimes.sessions import SessionTable


@dataclass(frozen=True, slots=True)
class _Loaded:
    source: ModelSource
    block: Block
    inventory: Inventory
    sessions: SessionTable[BlockCache]
    needs_tokens: bool
    numerics: Numerics


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that has been looked at and agrees with the registry."""

    skeleton: Skeleton
    profile: Profile
    shape: ModelShape


class HfRuntime:
    """Serves a block of a transformers model on this process's device.

    Args:
        threads: CPU threads for torch, process-wide; 0 keeps torch's own choice.
        dtype: torch's name of the dtype to serve in, or "auto" for the checkpoint's.
        numerics: "exact": bits do not depend on frames and companions, whatever it costs; "fast": they may;
            "auto": exact where it costs next to nothing.

    """

    name: ClassVar[str] = "hf"

    def __init__(self, *, threads: int = 0, dtype: str = "auto", numerics: Mode = "auto") -> None:
        if threads > 0:
            torch.set_num_threads(threads)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self._dtype = dtype
        self._numerics: Mode = numerics
        self._device = choose_device()
        self._loaded: _Loaded | None = None

    @property
    def needs_tokens_everywhere(self) -> bool:
        """Whether every stage of the loaded model needs the frames' token ids."""
        return self._loaded is not None and self._loaded.needs_tokens

    @property
    def block(self) -> Block | None:
        """The loaded block itself, for what looks inside: benches."""
        return self._loaded.block if self._loaded else None

    def numerics(self) -> str:
        """Return what the loaded block's bits depend on, for people; "" without a block."""
        return str(self._loaded.numerics) if self._loaded else ""

    def device(self) -> str:
        """Return the device for people."""
        return describe(self._device)

    def memory_total(self) -> int:
        """Return the bytes that the device has."""
        return memory_total(self._device)

    def memory_free(self) -> int:
        """Return the bytes that this process may still use on the device."""
        return memory_free(self._device)

    def shape(self, source: ModelSource) -> ModelShape:
        """Return the model's sizes, in the dtype in which it is served."""
        return self._look_at(source).shape

    def probe(self, source: ModelSource, widths: Sequence[int]) -> Probe:
        """Measure one layer, and the tail, at the given frame widths; a loaded block is left alone.

        Raises:
            MemoryExceeded: there is no room for one more layer beside what is loaded.

        """
        model = self._look_at(source)
        last = model.shape.layer_count - 1
        limits = BlockLimits(self.memory_free(), max(widths, default=1), 1)
        for layer in {last // 2, last}:
            admit(model.shape, *model.shape.block_around(layer), limits)
        with out_of_memory(f"probing {source.model_id}"):
            return probe_model(source, model.shape, model.profile, self._dtype, self._device, widths)

    def load(
        self,
        source: ModelSource,
        lo: int,
        hi: int,
        limits: BlockLimits,
        progress: Callable[[LoadProgress], None],
    ) -> Inventory:
        """Load layers [lo, hi); see ModelRuntime. Progress is told from the calling thread, tensor by tensor.

        Weights that the block before holds too are kept where they are; the rest of it is freed first, unless the blocks
        overlap and both fit at once: then it stays until the new one is ready, and serves on if that fails.
        """
        model = self._look_at(source)
        check_context(source, limits, model.skeleton.context)
        memory = admit(model.shape, lo, hi, limits)
        block = Block(model.skeleton, model.profile, lo, hi, self._device)
        self._make_way(source, block, memory, limits)
        with out_of_memory(f"loading layers [{lo}, {hi}) of {source.model_id}"):
            block.load(source, memory.weights, progress)
            with torch.inference_mode():
                block.check_chunks()
            numerics = choose_numerics(block, self._numerics)
        progress(LoadProgress(memory.weights, memory.weights, "ready"))
        inventory = Inventory(
            source.model_id, lo, hi, block.layers_held(), block.tensors(), block.bytes_read, memory
        )
        sessions = SessionTable(limits, lambda: block.new_cache(limits.context))
        self._loaded = _Loaded(source, block, inventory, sessions, model.profile.needs_tokens, numerics)
        release(self._device)
        return inventory

    def _make_way(self, source: ModelSource, block: Block, memory: BlockMemory, limits: BlockLimits) -> None:
        """End all sessions, hand on what both blocks need, and drop the old block unless it may stay for now."""
        old, self._loaded = self._loaded, None
        if old is not None and old.source == source:
            old.sessions.close_all()
            block.take_over(old.block)
            beside = old.inventory.weight_bytes - block.kept
            overlap = max(old.block.lo, block.lo) < min(old.block.hi, block.hi)
            if overlap and memory.total + beside <= limits.memory:
                self._loaded = old
        del old
        release(self._device)

    def inventory(self) -> Inventory:
        """Return what is held."""
        return (
            self._loaded.inventory if self._loaded else Inventory("", 0, 0, (), {}, 0, BlockMemory(0, 0, 0))
        )

    def unload(self) -> None:
        """Drop the block and all sessions."""
        self._loaded = None
        release(self._device)

    def open_session(self, session: str) -> None:
        """Make room for a session."""
        if self._loaded is None:
            raise NothingLoaded(f"session {session!r} cannot be opened: no block is loaded")
        self._loaded.sessions.open(session)

    def close_session(self, session: str) -> None:
        """Free a session's KV cache."""
        if self._loaded:
            self._loaded.sessions.close(session)

    def sessions(self) -> dict[str, int]:
        """Return the open sessions and their lengths."""
        return self._loaded.sessions.lengths() if self._loaded else {}

    def forward(self, frames: Sequence[FrameInput]) -> list[FrameOutput]:
        """Compute the frames, those of different sessions together; see ModelRuntime."""
        if not frames:
            return []
        if self._loaded is None:
            raise SessionUnknown(
                f"session {frames[0].session!r} is not open on this host: no block is loaded"
            )
        block, sessions = self._loaded.block, self._loaded.sessions
        with torch.inference_mode(), out_of_memory("computing a frame"):
            parsed = [parse(block, frame) for frame in frames]
            sessions.check(frames, [frame.width for frame in parsed])
            _check_rewinds(frames, sessions)
            outputs: list[FrameOutput] = []
            for turn in _turns(frames):
                outputs += compute(
                    block, [(parsed[i], sessions[frames[i].session], frames[i].position) for i in turn]
                )
            return outputs

    def _look_at(self, source: ModelSource) -> _Model:
        skeleton = build_skeleton(source.path, self._dtype)
        architectures = tuple(skeleton.model.config.architectures or ())
        check_identity(source, layers=len(skeleton.layers), architectures=architectures)
        profile = profile_model(skeleton)
        return _Model(skeleton, profile, model_shape(source.model_id, skeleton, profile))


def _check_rewinds(frames: Sequence[FrameInput], sessions: SessionTable[BlockCache]) -> None:
    """Refuse a rewind that a recurrent state does not allow before the first frame is computed. Raises FrameOutOfOrder."""
    seen: set[str] = set()
    for frame in frames:
        cache = sessions[frame.session]
        if cache.trail is not None and frame.session not in seen:
            seen.add(frame.session)
            try:
                cache.trail.check(frame.position, cache.length)
            except FrameOutOfOrder as error:
                raise FrameOutOfOrder(f"session {frame.session!r}: {error}") from error


def _turns(frames: Sequence[FrameInput]) -> list[list[int]]:
    """Return the frames' indices in runs in which no session occurs twice: what follows in a session comes later."""
    turns: list[list[int]] = [[]]
    seen: set[str] = set()
    for index, frame in enumerate(frames):
        if frame.session in seen:
            turns.append([])
            seen.clear()
        seen.add(frame.session)
        turns[-1].append(index)
    return turns
