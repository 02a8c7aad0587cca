"""Sampling: the choice is what a plain reading of its rule says, its distribution is the model's, and no draft shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from simulated_ring import LAYERS, VOCAB, SimulatedRing, blocks_of, generate_sampled, spec_of

from ring.drafter import NoDrafter
from ring.fields import FieldError
from ring.generation import verify_done
from ring.ngram import NgramDrafter
from ring.sampling import GREEDY, Sampling, as_sampling
from ring.session_spec import PromptInvalid
from ring.stop_text import StopText
from ring.token_choice import ChoiceImpossible, choose

GOLDEN = (746, 936, 330, 457, 441, 543, 728, 90)

rules = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 2**53 - 1),
    logit_bias=st.sampled_from([(), ((2, 3.5),), ((0, -100.0), (5, 1.0))]),
)
# Few values, so that equals are common.
rows = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=VOCAB, max_size=VOCAB)


def scores_of(rule: Sampling, row: Sequence[float], before: Sequence[int], prompt: int) -> list[float]:
    scores = [float(value) for value in row]
    for token in range(len(scores)):
        if token in before:
            scores[token] *= rule.repetition_penalty if scores[token] <= 0 else 1 / rule.repetition_penalty
        if times := list(before[prompt:]).count(token):
            scores[token] -= rule.presence_penalty + rule.frequency_penalty * times
        scores[token] += dict(rule.logit_bias).get(token, 0)
    return scores


def allowed(rule: Sampling, scores: Sequence[float]) -> list[int]:
    """Ids that may be chosen, likeliest first: by sorting, as the rule reads."""
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if rule.temperature == 0:
        return order[:1]
    order = order[: rule.top_k or None]
    weights = [math.exp((scores[token] - scores[order[0]]) / rule.temperature) for token in order]
    kept: list[int] = []
    total = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and total >= rule.top_p * sum(weights) - 1e-12:
            break
        total += weight
        if weight >= rule.min_p - 1e-12:
            kept.append(token)
    return kept


@settings(deadline=None)
@given(rules, rows, st.lists(st.integers(0, VOCAB - 1), max_size=9), st.integers(0, 3))
def test_the_choice_is_among_the_tokens_that_the_rule_leaves(
    rule: Sampling, row: list[float], ids: list[int], prompt: int
) -> None:
    prompt = min(prompt, len(ids))
    left = allowed(rule, scores_of(rule, row, ids, prompt))
    logits = np.array([row], np.float32)
    [token] = choose(rule, logits, position=len(ids), ids=ids, prompt_tokens=prompt)
    assert token in left
    assert choose(rule, logits, position=len(ids), ids=ids, prompt_tokens=prompt) == (token,)


@pytest.mark.parametrize(
    "rule",
    [
        Sampling(temperature=1.0, seed=11),
        Sampling(temperature=0.7, top_k=5, seed=11),
        Sampling(temperature=1.3, top_p=0.8, seed=11),
        Sampling(temperature=1.5, min_p=0.2, logit_bias=((3, 1.0),), seed=11),
    ],
)
def test_tokens_are_chosen_as_often_as_the_model_says(rule: Sampling) -> None:
    row = [(token * 7 % 11) / 4 for token in range(VOCAB)]
    draws = 20_000
    tokens = choose(rule, np.array([row] * draws, np.float32), position=1)
    scores = scores_of(rule, row, (), 0)
    left = allowed(rule, scores)
    weights = np.array([math.exp(scores[token] / rule.temperature) for token in left])
    counts = [tokens.count(token) for token in left]
    assert sum(counts) == draws
    assert chisquare(counts, weights / weights.sum() * draws).pvalue > 1e-3


def test_noise_is_the_seeds_and_the_positions_for_ever() -> None:
    logits = np.zeros((8, 1000), np.float32)
    assert choose(Sampling(1.0, seed=7), logits, position=3) == GOLDEN
    assert choose(Sampling(1.0, seed=7), logits[:1], position=9) == GOLDEN[6:7]
    assert choose(Sampling(1.0, seed=8), logits, position=3) != GOLDEN


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
def test_logits_without_a_number_are_named(broken: float) -> None:
    with pytest.raises(ChoiceImpossible, match="position 4"):
        choose(Sampling(1.0, seed=1), np.full((1, 5), broken, np.float32), position=4)


def test_ids_that_the_model_does_not_have_are_named() -> None:
    with pytest.raises(ChoiceImpossible, match="token 9"):
        choose(Sampling(presence_penalty=1.0), np.zeros((1, 5), np.float32), position=1, ids=(9,))


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    where=st.lists(st.integers(1, LAYERS - 1), max_size=LAYERS - 1),
    most=st.integers(1, 24),
    rule=rules,
    drafts=st.integers(0, 5),
    window=st.integers(1, 8),
    speculate=st.booleans(),
)
def test_one_seed_gives_the_same_tokens_on_any_ring_with_any_draft(
    prompt: list[int], where: list[int], most: int, rule: Sampling, drafts: int, window: int, speculate: bool
) -> None:
    spec = spec_of(prompt, max_tokens=most, sampling=rule, draft_tokens=drafts, window=window)
    ring = SimulatedRing(blocks_of(where), spec, drafter=NgramDrafter() if speculate else NoDrafter())
    end = ring.run()
    if not rule.greedy:
        assert ring.committed == generate_sampled(prompt, most, rule)
    assert verify_done(prompt, ring.committed, ring.done(end)) == len(ring.stages)


@given(rules)
def test_sampling_survives_its_map(rule: Sampling) -> None:
    assert as_sampling("sampling", rule.to_map()) == rule
    assert as_sampling("sampling", rule.to_map() | {"newer": 1}) == rule
    assert GREEDY.to_map() == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -1),
        ("repetition_penalty", 0),
        ("presence_penalty", 101),
        ("frequency_penalty", math.inf),
        ("seed", -1),
        ("seed", 2**53),
        ("logit_bias", [[1]]),
        ("logit_bias", [[1, 2], [1, 3]]),
        ("logit_bias", [[-1, 2]]),
        ("logit_bias", {"1": 2}),
    ],
)
def test_values_that_make_no_sense_are_named(field: str, value: object) -> None:
    with pytest.raises(FieldError, match=rf"sampling\.{field}"):
        as_sampling("sampling", {field: value})


def test_a_bias_for_a_token_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(PromptInvalid, match=f"logit_bias names token {VOCAB}"):
        spec_of(sampling=Sampling(logit_bias=((VOCAB, 1.0),)))


@given(
    st.text("ab.", max_size=30),
    st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_text_stops_before_the_stop_however_it_comes(text: str, stops: list[str], cuts: list[int]) -> None:
    stop = StopText(stops)
    places = [0, *sorted(cuts), len(text)]
    said = "".join(stop.push(text[a:b]) for a, b in pairwise(places))
    ends = [(text.find(s) + len(s), -len(s)) for s in stops if s in text]
    if ends:
        end, length = min(ends)
        assert (said, stop.stopped) == (text[: end + length], True)
    else:
        assert (said + stop.rest(), stop.stopped) == (text, False)
