"""Writes docs/models.md: every causal LM that transformers knows, split into three blocks (`make models`)."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from model_catalogue import CATALOGUE, LAYERS, VOCABULARY, config_of, make_checkpoint
from model_check import PROMPT, STEPS, Outcome, check
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from runtimes.base import RuntimeFailure

PAGE = Path(__file__).parents[2] / "docs" / "models.md"

# What makes any configuration small, under the names that configurations use.
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "num_hidden_layers": LAYERS,
    "n_layer": LAYERS,
    "num_layers": LAYERS,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODER = ("is_decoder", "is_causal")  # of types that may be encoders
_DERIVED = ("layer_types", "mlp_layer_types")  # they follow from the rest


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: an outcome, or why there is none."""

    name: str
    outcome: Outcome | None
    reason: str

    @property
    def verdict(self) -> str:
        """`pass`, or `fail` or `not tried` with the reason."""
        seen = self.outcome
        if seen is None:
            return self.reason
        if not seen.same:
            return "fail: other tokens"
        if seen.read_share > 1.02:
            return "fail: reads more than it holds"
        if not 1.0 <= seen.weights_share[0] <= seen.weights_share[1] <= 1.05 or seen.cache_share[0] < 0.95:
            return "fail: estimate of memory"
        return "pass"

    def line(self) -> str:
        """Return the table's line."""
        seen = self.outcome
        if seen is None:
            return f"| {self.name} | | | | | | {self.verdict} |"
        cuts = " ".join(str(border) for border in seen.cuts)
        notes = ", token by token" * seen.token_wise
        return (
            f"| {self.name} | {cuts} | {seen.logit_difference:.0e} of {seen.largest_logit:.1f} | {seen.read_share:.2f} "
            f"| {_span(seen.weights_share)} | {_span(seen.cache_share)} | {self.verdict}{notes} |"
        )


def _span(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def rows(names: list[str]) -> Iterator[Row]:
    """Yield a row for each name of the catalogue, then for each other model type that transformers has."""
    for name in names or CATALOGUE:
        yield _row(name, config_of(name))
    if names:
        return
    known = {model_type for model_type, _ in CATALOGUE.values()}
    for model_type in sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - known):
        try:
            config = _shrunk(model_type)
        except Exception as error:  # noqa: BLE001  # whatever a configuration class may find wrong
            yield Row(model_type, None, f"not tried: no small configuration: {_said(error)}")
            continue
        row = _row(model_type, config)
        if row.outcome is None and not row.reason.startswith("fail: UnsupportedModel"):
            row = Row(model_type, None, row.reason.replace("fail", "not tried: no small configuration", 1))
        yield row


def _row(name: str, config: Any) -> Row:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Row(name, check(make_checkpoint(config, Path(folder), _layers(config))), "")
    except RuntimeFailure as error:
        return Row(name, None, f"fail: {type(error).__name__}: {_said(error)}")
    except Exception as error:  # noqa: BLE001  # the model itself fails, in ways of its own
        return Row(name, None, f"fail: {_said(error)}")


def _layers(config: Any) -> int:
    text = config.get_text_config(decoder=True)
    layers: int = text.num_layers if text.model_type == "longcat_flash" else text.num_hidden_layers
    return layers


def _shrunk(model_type: str) -> Any:
    """Return the class's default configuration with everything small that has a usual name."""
    default = AutoConfig.for_model(model_type)
    text = default.get_text_config(decoder=True)
    if text is not default:
        raise ValueError("it is made of several configurations")
    fields: dict[str, Any] = {
        name: value for name, value in _SMALL.items() if isinstance(getattr(default, name, None), int)
    }
    fields |= {name: True for name in _DECODER if getattr(default, name, None) is not None}
    fields |= {name: None for name in _DERIVED if name in vars(default)}
    return AutoConfig.for_model(model_type, **fields)


def _said(error: Exception) -> str:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return first.replace("|", "/").split("/tmp")[0][:120].strip()  # a path of this run means nothing


def page(lines: list[Row]) -> str:
    """Return the page."""
    named = [row for row in lines if row.name in CATALOGUE]
    others = [row for row in lines if row.name not in CATALOGUE]
    passed = sum(row.verdict == "pass" for row in named)
    others_passed = sum(row.verdict == "pass" for row in others)
    head = (
        "| configuration | blocks | largest difference of a logit | bytes read / held | weights: estimated / held "
        "| cache: estimated / held | |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    return f"""# Models

Which architectures the `hf` runtime serves. Written by `make models` (transformers {transformers.__version__}, torch
{torch.__version__.split("+")[0]}, CPU, float32); the tests run a dozen rows that differ in kind.

Each row is a tiny random checkpoint of {LAYERS} layers, served in three blocks and compared with the same checkpoint in
transformers, unsplit: two sessions side by side with a prompt of {PROMPT} tokens and {STEPS} greedy steps; the prompt again in two
frames, then frames of 1 to 4 tokens whose last guesses are wrong; two rewinds, one far back and one into a frame.
`pass` means that every token was the same. Other columns: the borders of the blocks (some architectures share keys and values between
layers and may not be cut there), the largest difference of a logit and the largest logit, bytes read over bytes held,
and what was estimated for weights and for a session's cache over what they held, of the three blocks.

A cache is estimated for its fullest moment. Compressed pasts (deepseek_v4) empty and fill with every few tokens.

## {passed} of {len(named)} configurations pass

Names are transformers' model types; what follows a comma is a variant.

{head}
{chr(10).join(row.line() for row in named)}

`ties` are indexers with two heads: their scores of random weights are so often equal that rounding decides which
positions are seen, and rounding differs with the width of a frame. With sixteen heads they pass.

## {others_passed} of {len(others)} other model types of this transformers pass with the defaults of their class, made small

A row that was not tried says nothing about the architecture: the defaults do not fit together when they are made small, or the
type needs parts that are not a language model's.

{head}
{chr(10).join(row.line() for row in others)}
"""


def main() -> None:
    """Write the page; with names of configurations, only print their rows."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = sys.argv[1:]
    lines: list[Row] = []
    for row in rows(names):
        print(row.line(), flush=True)
        lines.append(row)
    if not names:
        PAGE.write_text(page(lines), "utf-8")


if __name__ == "__main__":
    main()
