"""One model in three blocks against the same model whole: what docs/models.md reports and the tests assert."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from runtimes_ring import ignore
from transformers import AutoModelForCausalLM, DynamicCache

from runtimes.base import BlockLimits, FrameInput, FrameOutput, ModelSource
from runtimes.hf import HfRuntime
from runtimes.hf.tail import Tail

PROMPT, STEPS = 24, 24
LIMITS = BlockLimits(memory=1 << 30, context=64, sessions=2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was seen.

    Attributes:
        cuts: the borders of the blocks.
        same: whether all tokens of all runs are those of the whole model.
        logit_difference: largest difference of a logit from the whole model's; largest_logit: largest of all.
        read_share: largest share of bytes read to bytes held, of the three blocks.
        weights_share: estimated weights over those held: exactly 1.
        cache_share: estimated cache of a full session over what it held, smallest and largest of the blocks.
        token_wise: whether a block computes token by token.

    """

    cuts: tuple[int, ...]
    same: bool
    logit_difference: float
    largest_logit: float
    read_share: float
    weights_share: tuple[float, float]
    cache_share: tuple[float, float]
    token_wise: bool


def check(source: ModelSource) -> Outcome:
    """Prefill, 24 greedy steps in frames of several widths, two rewinds, two sessions side by side."""
    prompts = [_prompt(1), _prompt(2)]
    expected = [_whole(source, prompt) for prompt in prompts]
    ring = _Ring(source)
    seen: list[tuple[list[int], torch.Tensor]] = []

    # Both sessions step by step, side by side.
    ring.open("a", "b")
    made: dict[str, list[int]] = {"a": [], "b": []}
    rows: dict[str, list[torch.Tensor]] = {"a": [], "b": []}
    for session, prompt in zip("ab", prompts, strict=True):
        _advance(ring, session, 0, prompt, made, rows)
    for _ in range(STEPS):
        for session in "ab":
            _advance(ring, session, PROMPT + len(made[session]) - 1, made[session][-1:], made, rows)
    seen += [(made[session], torch.stack(rows[session])) for session in "ab"]
    cache_share = ring.cache_share("a")

    # The first again from 0: the prompt in two frames, frames of several widths that guess wrong at their end.
    tokens, logits = expected[0]
    text = [*prompts[0], *tokens]
    ring.send("a", 0, text[:10])
    got, rows_of = ring.send("a", 10, text[10:PROMPT])
    out, lines, position = [got[-1]], [rows_of[-1]], PROMPT
    for step in range(STEPS):
        left = PROMPT + STEPS - position
        if left <= 0:
            break
        right, width = 1 + step % 3, min(4 - step % 2, left)
        right = min(right, width)
        wrong = [(token + 5) % 300 + 3 for token in text[position + right : position + width]]
        got, rows_of = ring.send("a", position, [*text[position : position + right], *wrong])
        out += got[:right]
        lines += rows_of[:right]
        position += right
    seen.append((out, torch.stack(lines)))

    # Two rewinds far behind what is held, one to a frame's beginning and one into a frame.
    for back in (PROMPT, PROMPT + STEPS - 3):
        got, rows_of = ring.send("a", back, text[back : PROMPT + STEPS])
        seen.append((list(got), rows_of))

    whole = [
        *expected,
        expected[0],
        *(
            (tokens[back - PROMPT + 1 :], logits[back - PROMPT + 1 :])
            for back in (PROMPT, PROMPT + STEPS - 3)
        ),
    ]
    same = all(got == want for (got, _), (want, _) in zip(seen, whole, strict=True))
    difference = max(
        float((rows - want).abs().max()) for (_, rows), (_, want) in zip(seen, whole, strict=True)
    )
    return Outcome(
        ring.cuts,
        same,
        difference,
        float(logits.abs().max()),
        max(i.bytes_read / max(1, i.weight_bytes) for i in ring.inventories),
        _ends([i.memory.weights / i.weight_bytes for i in ring.inventories]),
        cache_share,
        ring.token_wise,
    )


def _advance(
    ring: _Ring,
    session: str,
    position: int,
    tokens: Sequence[int],
    made: dict[str, list[int]],
    rows: dict[str, list[torch.Tensor]],
) -> None:
    got, logits = ring.send(session, position, tokens)
    made[session].append(got[-1])
    rows[session].append(logits[-1])


class _Ring:
    """Three stages that also say which logits the tail has seen."""

    def __init__(self, source: ModelSource) -> None:
        shape = HfRuntime(dtype="float32").shape(source)
        count = shape.layer_count
        legal = [border for border in range(1, count) if shape.may_cut(border)]
        first = min(legal, key=lambda border: abs(border - count // 3))
        second = min((b for b in legal if b != first), key=lambda b: abs(b - max(first + 1, 2 * count // 3)))
        self.cuts = (0, *sorted((first, second)), count)
        self.stages = [HfRuntime(dtype="float32") for _ in pairwise(self.cuts)]
        self.inventories = [
            stage.load(source, lo, hi, LIMITS, ignore)
            for stage, (lo, hi) in zip(self.stages, pairwise(self.cuts), strict=True)
        ]
        self._estimates = [
            shape.block_memory(lo, hi, context=LIMITS.context, sessions=1).kv
            - min(LIMITS.context, shape.replay_tokens) * (shape.hidden_bytes + 8)
            for lo, hi in pairwise(self.cuts)
        ]

    @property
    def token_wise(self) -> bool:
        return any(_loaded(stage).block.token_wise for stage in self.stages)

    def open(self, *sessions: str) -> None:
        for stage in self.stages:
            for session in sessions:
                stage.open_session(session)

    def send(
        self, session: str, position: int, tokens: Sequence[int]
    ) -> tuple[tuple[int, ...], torch.Tensor]:
        """Send a frame around; returns the tokens chosen and the logits [w, vocabulary] they were chosen from."""
        output = FrameOutput(None, None)
        with _listening() as logits:
            for stage in self.stages:
                first = stage is self.stages[0]
                ids = tuple(tokens) if first or stage.needs_tokens_everywhere else None
                [output] = stage.forward([FrameInput(session, position, ids, output.activation)])
        assert output.tokens is not None
        return output.tokens, torch.cat(logits)

    def cache_share(self, session: str) -> tuple[float, float]:
        """Return what was estimated for a session over what it holds, of the blocks that keep anything."""
        held = [_bytes_held(_loaded(stage).sessions[session]) for stage in self.stages]
        return _ends([e / h for e, h in zip(self._estimates, held, strict=True) if h])


def _loaded(stage: HfRuntime) -> Any:
    return stage._loaded


def _ends(values: list[float]) -> tuple[float, float]:
    return (min(values), max(values)) if values else (1.0, 1.0)


def _bytes_held(cache: Any) -> int:
    """Return the bytes of all storages that a session's layers and its snapshots hold."""
    storages: dict[int, int] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for entry in value.values():
                look(entry)

    for layer in cache.layers:
        look(vars(layer))
    if cache.trail is not None:
        for step in cache.trail._steps:
            for snapshot in step.snapshot:
                look(snapshot)
    storages.pop(0, None)
    return sum(storages.values())


@contextmanager
def _listening() -> Iterator[list[torch.Tensor]]:
    """Collect the logits that tails compute."""
    heard: list[torch.Tensor] = []
    original = Tail.logits

    def logits(self: Tail, *args: Any) -> torch.Tensor:
        heard.append(original(self, *args))
        return heard[-1]

    with patch.object(Tail, "logits", logits):
        yield heard


def _prompt(seed: int) -> list[int]:
    ids: list[int] = torch.randint(3, 380, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


@torch.inference_mode()
def _whole(source: ModelSource, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return the tokens that transformers chooses greedily, and the logits of each."""
    model: Any = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32).eval()
    keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache = DynamicCache(config=model.config)
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    given = prompt
    for _ in range(STEPS + 1):
        start = PROMPT + len(tokens) - 1 if tokens else 0
        positions = torch.arange(start, start + len(given))[None]
        out = model(
            input_ids=torch.tensor([given]), position_ids=positions, use_cache=True, **{keyword: cache}
        )
        rows.append(out.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()))
        given = tokens[-1:]
    return tokens, torch.stack(rows)
