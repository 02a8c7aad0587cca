"""One frame on one block: from the wire onto the device, through the layers, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtimes.base import FrameInput, FrameMalformed, FrameOutput
from runtimes.hf.block import Block
from runtimes.hf.cache import BlockCache
from runtimes.hf.tensors import LayerOutput


@dataclass(frozen=True, slots=True)
class DeviceFrame:
    """A checked frame on the device: `ids` [1, w] at the head, else `state`."""

    ids: torch.Tensor | None
    state: LayerOutput | None
    width: int


def parse(block: Block, frame: FrameInput) -> DeviceFrame:
    """Check a frame against the block. Raises FrameMalformed, naming the session."""
    try:
        if block.takes is None:
            return _parse_tokens(block, frame.tokens)
        width = block.takes.width(frame.activation)
        return DeviceFrame(None, block.takes.parse(frame.activation or (), width, block.device), width)
    except FrameMalformed as error:
        raise FrameMalformed(f"session {frame.session!r}: {error}") from error


def compute(block: Block, frame: DeviceFrame, cache: BlockCache, position: int) -> FrameOutput:
    """Rewind the cache to `position` and run the frame."""
    cache.rewind(position)
    output = block.forward(frame.ids, frame.state, frame.width, cache)
    if block.tail:
        return FrameOutput(None, block.choose(output))
    return FrameOutput(block.gives.activation(output), None)


def _parse_tokens(block: Block, tokens: tuple[int, ...] | None) -> DeviceFrame:
    if not tokens or not all(0 <= token < block.vocab_size for token in tokens):
        raise FrameMalformed(f"the head needs token ids from 0 to {block.vocab_size - 1}")
    return DeviceFrame(torch.tensor([tokens], dtype=torch.long, device=block.device), None, len(tokens))
