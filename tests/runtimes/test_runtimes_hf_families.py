"""Families of every kind that the recipe must cope with: in three stages against the whole, in float32."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runtimes_families import FAMILIES, LAYERS, config_of, make_checkpoint
from runtimes_ring import Ring, ignore
from transformers import AutoModelForCausalLM

from runtimes.base import BlockLimits, ModelSource, UnsupportedModel
from runtimes.hf import HfRuntime

LIMITS = BlockLimits(memory=1 << 30, context=64, sessions=1)
COUNT = 8


def whole_tokens(source: ModelSource, prompt: list[int]) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(source.path, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=COUNT, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_three_stages_is_the_whole_in_any_frames(family: str, tmp_path: Path) -> None:
    source = make_checkpoint(family, tmp_path)
    prompt = torch.randint(3, 380, (24,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = whole_tokens(source, prompt)
    ring = Ring(partial(HfRuntime, dtype="float32"), source, tuple(range(LAYERS + 1)), LIMITS)
    ring.open("s")
    assert ring.generate("s", prompt, COUNT) == expected

    text = prompt + expected
    for start, end in ((0, 7), (7, 8), (8, 24)):
        last = ring.send("s", start, text[start:end])[-1]
    assert last == expected[0]
    ring.send("s", 12, [5, 6, 7, 9])  # a wrong guess, far behind what is held
    assert list(ring.send("s", 12, text[12:-1])[-COUNT:]) == expected

    for index, inventory in enumerate(ring.inventories):
        assert inventory.layers == (index,)
        assert inventory.weight_bytes == inventory.memory.weights
        assert inventory.bytes_read <= inventory.weight_bytes * 1.02


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("mamba2", {"hidden_size": 64, "num_heads": 8, "head_dim": 16}, "LinearAttentionLayer"),
        ("gemma3n_text", {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_a_model_that_would_come_out_wrong_is_refused_by_name(
    family: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = config_of(family, architectures=["Any"], **changes)
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=why):
        HfRuntime().load(ModelSource(family, tmp_path, LAYERS, "Any"), 0, 1, LIMITS, ignore)


def test_a_model_without_weights_can_be_sized_and_probed(tmp_path: Path) -> None:
    config = config_of("llama", architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    source = ModelSource("sketch", tmp_path, LAYERS, "LlamaForCausalLM")
    runtime = HfRuntime(dtype="bfloat16")
    shape = runtime.shape(source)
    layer = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)
    assert shape.layer_bytes == (layer,) * LAYERS
    assert shape.kv_token_bytes == (2 * 2 * 2 * 16,) * LAYERS
    assert (shape.head_bytes, shape.tail_bytes) == (2 * 384 * 64, 2 * 385 * 64)
    assert shape.hidden_bytes == 2 * 64
    assert runtime.probe(source, [2]).layer_ns[0][0] == 2


def test_a_tied_embedding_is_counted_once_where_both_ends_are_one_host(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path)
    runtime = HfRuntime()
    shape = runtime.shape(source)
    assert shape.shared_end_bytes == shape.head_bytes == 4 * 384 * 64
    inventory = runtime.load(source, 0, LAYERS, LIMITS, ignore)
    assert inventory.weight_bytes == inventory.memory.weights
