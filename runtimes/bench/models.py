"""Checkpoints made for a measurement: random Llamas in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig


def llama_config(
    hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int, *, vocabulary: int = 512
) -> LlamaConfig:
    """Return transformers' configuration of a Llama with heads of 64."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=8192,
        dtype="bfloat16",
    )


def write_block(path: Path, config: LlamaConfig, lo: int, hi: int) -> None:
    """Write layers [lo, hi) only, with weights as an untrained model has them; a runtime that loads these misses nothing.

    Args:
        path: a directory that exists.
        config: of the whole model.
        lo: first layer.
        hi: one past the last.

    """
    part = LlamaConfig(**{**config.to_dict(), "num_hidden_layers": hi - lo})
    layers = AutoModelForCausalLM.from_config(part, dtype=torch.bfloat16).model.layers
    tensors = {
        f"model.layers.{lo + index}.{name}": tensor
        for index, layer in enumerate(layers)
        for name, tensor in layer.state_dict().items()
    }
    save_file(tensors, path / "model.safetensors")
    config.save_pretrained(path)


def write_checkpoint(path: Path, config: LlamaConfig, shards: int) -> None:
    """Write the whole model in so many files, one file's tensors in memory at a time; the weights are mere noise.

    Args:
        path: a directory that exists.
        config: of the model.
        shards: how many weight files.

    """
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    files: dict[str, str] = {}
    for index, names in enumerate(_runs(list(shapes), shards)):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        save_file({name: _noise(shapes[name].shape) for name in names}, path / file)
        files |= dict.fromkeys(names, file)
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files}), "utf-8"
    )
    config.save_pretrained(path)


def _runs(names: list[str], count: int) -> Iterator[list[str]]:
    for index in range(count):
        yield names[index * len(names) // count : (index + 1) * len(names) // count]


def _noise(shape: torch.Size) -> Any:
    """Return small numbers: a strip of random ones, over and over, which is quicker than as many random ones."""
    strip = (torch.randn(1 << 16, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    return strip.repeat(shape.numel() // strip.numel() + 1)[: shape.numel()].reshape(shape).clone()
