"""Tiny random checkpoints of several model families, with layers that matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from runtimes.base import ModelSource

LAYERS = 3
_COMMON = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_OLD = {"vocab_size": 384, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# What each is here for: tied ends; soft caps and sliding windows; embeddings scaled and norms on both sides; learned
# positions; fused experts; tuples between layers and positions as biases; a decoder below the base model.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {**_COMMON, "tie_word_embeddings": True},
    "gemma2": {**_COMMON, **_SLIDING, "query_pre_attn_scalar": 16},
    "gemma3_text": {**_COMMON, **_SLIDING, "query_pre_attn_scalar": 16},
    "gpt2": {**_OLD, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 256, "n_inner": 128},
    "mixtral": {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bloom": {**_OLD, "hidden_size": 64, "n_layer": LAYERS, "n_head": 4},
    "opt": {
        **_OLD,
        "hidden_size": 64,
        "word_embed_proj_dim": 32,
        "ffn_dim": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    },
}


def make_checkpoint(family: str, path: Path, **changes: Any) -> ModelSource:
    """Write a random float32 checkpoint in several files; returns where it is."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_of(family, **changes), dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                embedding = "embed" in name or "wte" in name
                scale = 0.1 if embedding else 1.0 / parameter.shape[-1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(path, max_shard_size="100KB")
    return ModelSource(family, path, LAYERS, type(model).__name__)


def config_of(family: str, **changes: Any) -> Any:
    """Return the family's configuration."""
    return AutoConfig.for_model(family, **{**FAMILIES.get(family, _COMMON), **changes})
