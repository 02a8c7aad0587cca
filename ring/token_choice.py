"""The choice of a token from logits: a function of the logits, the tokens before, the position and the seed, and of nothing else.

Logits are penalized, biased and divided by the temperature; top-k, top-p and min-p leave the likeliest tokens; of those
the one with the highest sum of scaled logit and noise is chosen. With Gumbel noise that is an exact sample of the softmax (Gumbel
1954; Maddison, Tarlow, Minka 2014, "A* Sampling"). The noise of a token at a position comes from a counter-based
generator (Philox, Salmon et al. 2011), so whatever order positions are tried in, and however often, the choice is the same: a
draft that the model would have chosen at that position with this seed stands, and no output shows that there was a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ring.sampling import Sampling

Logits = NDArray[np.float32]
_Scores = NDArray[np.float64]


class ChoiceImpossible(ValueError):
    """Logits hold no number to choose by, or the tokens before are not the model's. Look at the log of the stage."""


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """What it takes to choose the tokens after those of one frame.

    Attributes:
        rule: how.
        first: the first row of the frame that the rule is for; what is chosen before it, in the prompt, counts for nothing.
        position: index in the session of the token that this row's choice becomes.
        ids: the session's tokens up to the end of the frame if the rule penalizes, else ().
        prompt_tokens: how many of them are the prompt's.

    """

    rule: Sampling
    first: int
    position: int
    ids: tuple[int, ...]
    prompt_tokens: int

    def of(self, logits: Logits) -> tuple[int, ...]:
        """Return the tokens chosen after the frame's from `first` on. logits: theirs. Raises ChoiceImpossible."""
        return choose(
            self.rule, logits, position=self.position, ids=self.ids, prompt_tokens=self.prompt_tokens
        )


def choose(
    rule: Sampling, logits: Logits, *, position: int, ids: Sequence[int] = (), prompt_tokens: int = 0
) -> tuple[int, ...]:
    """Return the token chosen after each of some consecutive tokens of a session.

    Args:
        rule: its seed is taken for 0 if it is None.
        logits: [rows, vocabulary] float32.
        position: index in the session of the token that the first row's choice becomes.
        ids: all tokens of the session from its first to the one before the last row's choice; only looked at if the rule penalizes.
        prompt_tokens: how many of them are the prompt's.

    Raises:
        ChoiceImpossible: a row has NaN, or nothing finite, or too few columns for the ids.

    """
    return tuple(
        _chosen(rule, row, position + index, ids[: position + index], prompt_tokens)
        for index, row in enumerate(logits)
    )


def _chosen(rule: Sampling, row: Logits, position: int, before: Sequence[int], prompt_tokens: int) -> int:
    scores = row.astype(np.float64)
    if np.isnan(scores).any() or not np.isfinite(scores.max()):
        raise ChoiceImpossible(f"the logits for position {position} hold NaN, or nothing finite")
    if rule.penalizes:
        _penalize(rule, scores, before, prompt_tokens)
    for token, bias in rule.logit_bias:
        if token < len(scores):
            scores[token] += bias
    if rule.temperature == 0:
        return int(scores.argmax())
    scores /= rule.temperature
    scores -= scores.max()
    if 0 < rule.top_k < len(scores):
        scores[~_likeliest(scores, rule.top_k)] = -np.inf
    noisy = scores + _gumbel(rule.seed or 0, position, len(scores))
    if rule.min_p > 0:
        noisy[scores < np.log(rule.min_p)] = -np.inf
    return _first_within(scores, noisy, rule.top_p)


def _penalize(rule: Sampling, scores: _Scores, before: Sequence[int], prompt_tokens: int) -> None:
    seen = np.unique(np.asarray(before, np.int64))
    if len(seen) and not 0 <= seen[0] <= seen[-1] < len(scores):
        raise ChoiceImpossible(f"token {seen[-1]} is not in [0, {len(scores)}) of this model")
    held = scores[seen]
    scores[seen] = np.where(held > 0, held / rule.repetition_penalty, held * rule.repetition_penalty)
    said, times = np.unique(np.asarray(before[prompt_tokens:], np.int64), return_counts=True)
    scores[said] -= rule.presence_penalty + rule.frequency_penalty * times


def _likeliest(scores: _Scores, count: int) -> NDArray[np.bool_]:
    """Return which are the `count` highest scores; of equal ones the lowest ids."""
    least = np.partition(scores, -count)[-count]
    kept: NDArray[np.bool_] = scores > least
    equal = np.flatnonzero(scores == least)
    kept[equal[: count - int(kept.sum())]] = True
    return kept


def _gumbel(seed: int, position: int, count: int) -> _Scores:
    """Return the noise of every token at a position: standard Gumbel, from 53 bits each."""
    bits = np.random.Philox(key=np.array([seed, position], np.uint64)).random_raw(count)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _first_within(scores: _Scores, noisy: _Scores, top_p: float) -> int:
    """Return the token with the highest noisy score among the likeliest that together have the probability `top_p`.

    A token is among them if those likelier than it (of equal ones, with a lower id) together have less. So one candidate
    after the other is asked, each time without all that are no likelier than the last: no sorting of the vocabulary.
    """
    if top_p == 1:
        return int(noisy.argmax())
    weights = np.exp(scores)
    due = top_p * float(weights.sum())
    ids = np.arange(len(scores))
    while True:
        token = int(noisy.argmax())
        likelier = (scores > scores[token]) | ((scores == scores[token]) & (ids < token))
        if float(weights[likelier].sum()) < due:
            return token
        noisy[~likelier] = -np.inf
