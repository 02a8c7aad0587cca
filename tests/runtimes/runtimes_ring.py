"""A ring of runtimes in one process: what the tests drive frames around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from runtimes.base import (
    BlockLimits,
    FrameInput,
    FrameOutput,
    Inventory,
    LoadProgress,
    ModelRuntime,
    ModelSource,
)

TALE_PATH = Path(__file__).parents[2] / "registry" / "bundled" / "tale"
TALE = ModelSource("tale", TALE_PATH, 8, "LlamaForCausalLM")
GENEROUS = BlockLimits(memory=1 << 30, context=256, sessions=4)


def ignore(_: LoadProgress) -> None:
    """Take no notice of progress."""


class Ring:
    """Stages of one model. `cuts` are the borders between their blocks, ends included."""

    def __init__(
        self,
        make: Callable[[], ModelRuntime],
        source: ModelSource,
        cuts: Sequence[int],
        limits: BlockLimits = GENEROUS,
    ) -> None:
        self.stages = [make() for _ in pairwise(cuts)]
        self.inventories: list[Inventory] = [
            stage.load(source, lo, hi, limits, ignore)
            for stage, (lo, hi) in zip(self.stages, pairwise(cuts), strict=True)
        ]

    def open(self, *sessions: str) -> None:
        """Open sessions on all stages."""
        for stage in self.stages:
            for session in sessions:
                stage.open_session(session)

    def send(self, session: str, position: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Send one frame once around; returns the token chosen after each of its tokens."""
        output = FrameOutput(None, None)
        for index, stage in enumerate(self.stages):
            ids = tuple(tokens) if index == 0 else None
            [output] = stage.forward([FrameInput(session, position, ids, output.activation)])
        assert output.tokens is not None
        return output.tokens

    def generate(self, session: str, prompt: Sequence[int], count: int, eos: int | None = None) -> list[int]:
        """Prefill in one frame, then decode greedily token by token, to `eos` at the latest."""
        tokens = [self.send(session, 0, prompt)[-1]]
        while len(tokens) < count and tokens[-1] != eos:
            tokens.append(self.send(session, len(prompt) + len(tokens) - 1, tokens[-1:])[-1])
        return tokens
