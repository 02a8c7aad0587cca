"""Sampling: how the next token is to be chosen from the model's logits, and how that stands in messages.

The names and meanings are those of the OpenAI API and of transformers' GenerationConfig. ring/token_choice.py has the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from ring.fields import FieldError, as_list, as_map
from ring.ids import MAX_COUNT, as_count

MAX_BIASES: Final = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose a token. The defaults are greedy decoding.

    Attributes:
        temperature: what logits are divided by, 0 to 100; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens; 0 for all.
        top_p: only the likeliest tokens that together have this probability, above 0 to 1.
        min_p: only tokens at least so likely, relative to the likeliest, 0 to 1.
        repetition_penalty: what the positive logits of tokens in prompt and output are divided by, and the negative ones
            multiplied with; above 0 to 100.
        presence_penalty: taken off the logits of tokens in the output, -100 to 100.
        frequency_penalty: taken off once for every time that a token is in the output, -100 to 100.
        seed: of the noise; the same seed gives the same tokens. None lets the coordinator choose one.
        logit_bias: (token id, what is added to its logit, -100 to 100), each id once.

    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on the tokens before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def greedy(self) -> bool:
        """Whether the choice is always the token with the highest logit, as the model gives it."""
        return self.temperature == 0 and not self.penalizes and not self.logit_bias

    def to_map(self) -> dict[str, object]:
        """Return it as it crosses the wire; what has its default is left out."""
        given: dict[str, object] = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        if self.logit_bias:
            given["logit_bias"] = [list(bias) for bias in self.logit_bias]
        return given


GREEDY: Final = Sampling()


def as_sampling(name: str, value: object) -> Sampling:
    """Return the sampling that a map holds; unknown keys are ignored.

    Raises:
        FieldError: a value is not what Sampling says; the text names it.

    """
    raw = as_map(name, value)
    seed = raw.get("seed")
    return Sampling(
        temperature=_as_number(raw, name, "temperature", 0, 0, 100),
        top_k=as_count(f"{name}.top_k", raw.get("top_k", 0)),
        top_p=_as_number(raw, name, "top_p", 1, 0, 1, above=True),
        min_p=_as_number(raw, name, "min_p", 0, 0, 1),
        repetition_penalty=_as_number(raw, name, "repetition_penalty", 1, 0, 100, above=True),
        presence_penalty=_as_number(raw, name, "presence_penalty", 0, -100, 100),
        frequency_penalty=_as_number(raw, name, "frequency_penalty", 0, -100, 100),
        seed=None if seed is None else as_count(f"{name}.seed", seed),
        logit_bias=_as_biases(f"{name}.logit_bias", raw.get("logit_bias", [])),
    )


def _as_number(
    raw: Mapping[str, object],
    name: str,
    key: str,
    default: float,
    low: float,
    high: float,
    *,
    above: bool = False,
) -> float:
    return _number(f"{name}.{key}", raw.get(key, default), low, high, above=above)


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """Return `value` if it is a number from low (or above it) to high."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high or (above and value == low):  # type: ignore[operator]  # fits first
        start = f"above {low:g}" if above else f"from {low:g}"
        raise FieldError(f"{name} is {str(value)[:60]}, but must be a number {start} to {high:g}")
    return float(value)  # type: ignore[arg-type]  # as above


def _as_biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    found: dict[int, float] = {}
    for index, entry in enumerate(as_list(name, value, MAX_BIASES)):
        parts = as_list(f"{name}[{index}]", entry, 2)
        if len(parts) != 2:
            raise FieldError(f"{name}[{index}] has {len(parts)} entries, but must be [token id, bias]")
        token = as_count(f"{name}[{index}]", parts[0], 0, MAX_COUNT)
        if token in found:
            raise FieldError(f"{name} names token {token} twice")
        found[token] = _number(f"{name}[{index}]", parts[1], -100, 100)
    return tuple(sorted(found.items()))
