"""What the engine says is held, after loads that end badly."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from runtimes.base import BlockLimits, LoadProgress, MemoryExceeded, ModelSource
from swarmd.engine import Engine

TALE = ModelSource("tale", Path(__file__).parents[2] / "registry" / "bundled" / "tale", 8, "LlamaForCausalLM")
LIMITS = BlockLimits(memory=1 << 30, context=64, sessions=1)


def ignore(_: LoadProgress) -> None:
    """Take no notice of progress."""


@pytest.mark.trio
async def test_what_survives_a_load_that_was_called_off_or_refused_is_what_is_held() -> None:
    engine = Engine(TALE, "hf", name="auto", threads=1, dtype="auto", numerics="auto")
    await engine.start()
    held = await engine.load(0, 4, LIMITS, ignore)

    with trio.CancelScope() as scope:
        await engine.load(0, 6, LIMITS, lambda _: scope.cancel())
    assert scope.cancelled_caught
    assert engine.held == held
    with pytest.raises(MemoryExceeded):
        await engine.load(0, 8, BlockLimits(1 << 20, 64, 1), ignore)
    assert engine.held == held
    assert await engine.load(0, 4, LIMITS, ignore) is engine.held
    assert (await engine.load(2, 4, LIMITS, ignore)).bytes_read == 0

    with trio.CancelScope() as scope:
        await engine.load(4, 8, LIMITS, lambda _: scope.cancel())
    assert scope.cancelled_caught
    assert engine.held is None, "a block elsewhere has made way before the next was read"
