"""One frame on one block: from the wire onto the device, through the layers, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from runtimes.base import FrameInput, FrameMalformed, FrameOutput
from runtimes.hf.block import NARROW, Block
from runtimes.hf.cache import BlockCache
from runtimes.hf.tensors import LayerOutput


@dataclass(frozen=True, slots=True)
class DeviceFrame:
    """A checked frame on the device: `ids` [1, w] where the block takes them, `state` behind the head."""

    ids: torch.Tensor | None
    state: LayerOutput | None
    width: int
    logits_from: int | None


def parse(block: Block, frame: FrameInput) -> DeviceFrame:
    """Check a frame against the block. Raises FrameMalformed, naming the session."""
    try:
        ids = _parse_tokens(block, frame.tokens) if block.takes_ids else None
        if block.takes is None:
            return DeviceFrame(ids, None, 0 if ids is None else ids.shape[1], frame.logits_from)
        width = block.takes.width(frame.activation)
        if ids is not None and ids.shape[1] != width:
            raise FrameMalformed(
                f"the frame has {ids.shape[1]} token ids and an activation of {width} tokens"
            )
        state = block.takes.parse(frame.activation or (), width, block.device)
        return DeviceFrame(ids, state, width, frame.logits_from)
    except FrameMalformed as error:
        raise FrameMalformed(f"session {frame.session!r}: {error}") from error


def compute(block: Block, frames: Sequence[tuple[DeviceFrame, BlockCache, int]]) -> list[FrameOutput]:
    """Compute frames, each with its session's cache and position, of which no two belong to one session.

    Narrow ones that follow something go through the layers together, if the block can do that; the others alone.
    """
    for _, cache, position in frames:
        block.rewind(cache, position)
    narrow = [i for i, (frame, cache, _) in enumerate(frames) if cache.length > 0 and frame.width <= NARROW]
    outputs: dict[int, Any] = {}
    if block.packs and len(narrow) > 1:
        given = [(frames[i][0].ids, frames[i][0].state, frames[i][0].width, frames[i][1]) for i in narrow]
        outputs = dict(zip(narrow, block.run_packed(given), strict=True))
    for index, (frame, cache, _) in enumerate(frames):
        if index not in outputs:
            outputs[index] = block.forward(frame.ids, frame.state, frame.width, cache)
    return [_output(block, outputs[index], frame) for index, (frame, _, _) in enumerate(frames)]


def _output(block: Block, output: Any, frame: DeviceFrame) -> FrameOutput:
    if block.tail:
        start = frame.logits_from
        logits = None if start is None else block.logits(output, start).cpu().numpy()
        return FrameOutput(None, block.choose(output), logits)
    return FrameOutput(block.gives.activation(output), None)


def _parse_tokens(block: Block, tokens: tuple[int, ...] | None) -> torch.Tensor:
    if not tokens or not all(0 <= token < block.vocab_size for token in tokens):
        raise FrameMalformed(f"this block needs token ids from 0 to {block.vocab_size - 1}")
    return torch.tensor([tokens], dtype=torch.long, device=block.device)
