"""Whether the bits of a token's result depend on the frame that it came in: found out on the block itself.

A product of matrices may add up in another order when it has another number of rows. docs/numerics.md tells on which
processors and dtypes it does; here a loaded block is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from runtimes.base import RuntimeFailure
from runtimes.hf.block import Block, first_tensor
from runtimes.hf.cache import BlockCache
from runtimes.hf.tensors import part_of

Mode = Literal["auto", "exact", "fast"]

PREFIX = 21  # tokens in one frame before the ones that are compared
TOKENS = 6
COMPANION = 9  # tokens of another session


@dataclass(frozen=True, slots=True)
class Numerics:
    """How a block computes, and what that promises.

    Attributes:
        exact: the bits of a token's result do not depend on how its session's tokens behind the prompt were cut into
            frames, nor on the sessions computed with it.
        packs: frames of several sessions go through one forward pass.
        why: for people.

    """

    exact: bool
    packs: bool
    why: str

    def __str__(self) -> str:
        """Return it for people, e.g. "exact (…)"."""
        return f"{'exact' if self.exact else 'not exact'} ({self.why})"


@torch.inference_mode()
def choose_numerics(block: Block, mode: Mode) -> Numerics:
    """Check a loaded block, set it up to compute accordingly, and say how.

    Args:
        block: with its weights.
        mode: "exact": whatever it costs; "auto": if rows of a frame are exact as they are; "fast": frames as a whole.

    """
    if block.token_wise:
        return Numerics(True, False, "token by token, as this architecture needs it")
    packs = block.packs = _packs(block)
    if mode == "fast":
        return Numerics(False, packs, "chosen by runtime.numerics")
    block.by_rows = packs and _rows_are_independent(block)
    if block.by_rows:
        return Numerics(True, True, "rows of a frame are independent on this device")
    why = (
        "rows of a product depend on their number here"
        if packs
        else "this architecture is not computed row by row"
    )
    if mode == "exact":
        block.token_wise, block.packs = True, False
        return Numerics(True, False, f"token by token, because {why}")
    return Numerics(False, packs, why)


def _packs(block: Block) -> bool:
    """Return whether the block can go row by row at all: whether that is right, up to rounding."""
    if not block.adopt_rows():
        return False
    try:
        alone, together = _decode(block, [TOKENS], rows=False), _decode(block, [TOKENS], rows=True)
    except (RuntimeFailure, RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError):
        block.forget_rows()
        return False
    tolerance = (1e-3 if block.skeleton.dtype.itemsize > 2 else 5e-2) * float(alone.abs().max())
    if float((alone - together).abs().max()) <= tolerance:
        return True
    block.forget_rows()
    return False


def _rows_are_independent(block: Block) -> bool:
    one_by_one = _decode(block, [1] * TOKENS, rows=True)
    return all(
        torch.equal(one_by_one, _decode(block, widths, rows=True, companion=companion))
        for widths, companion in (([TOKENS], False), ([2, TOKENS - 2], True), ([1] * TOKENS, True))
    )


def _decode(block: Block, widths: Sequence[int], *, rows: bool, companion: bool = False) -> torch.Tensor:
    """Return the results, float32 [TOKENS, …], of some tokens after a prefix, cut into frames of these widths."""
    generator = torch.Generator().manual_seed(1)
    length = PREFIX + TOKENS
    ids = torch.randint(block.vocab_size, (1, length), generator=generator).to(block.device)
    state = None if block.takes is None else block.takes.random(length, generator, block.device)

    def piece(start: int, end: int) -> tuple[Any, Any, int]:
        part = slice(start, end)
        return ids[:, part] if block.takes_ids else None, part_of(state, part), end - start

    cache, other = block.new_cache(length), block.new_cache(length)
    block.run(*piece(0, PREFIX), cache)
    block.run(*piece(0, COMPANION), other)
    outputs: list[torch.Tensor] = []
    for width in widths:
        frame = piece(cache.length, cache.length + width)
        frames: list[tuple[Any, Any, int, BlockCache]] = [(*frame, cache)]
        if companion:
            frames.insert(0, (*piece(other.length, other.length + 3), other))
        made = block.run_packed(frames)[-1] if rows else block.run(*frame, cache)
        outputs.append(block.logits(made) if block.tail else first_tensor(made)[0])
    return torch.cat(outputs).float()
