"""Tiny configurations of causal LM families, and random checkpoints of them with layers that matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from runtimes.base import ModelSource

LAYERS = 6
VOCABULARY = 384
_HIDDEN = 64

_IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BASE = {
    **_IDS,
    "hidden_size": _HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
_MOE = {
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "top_k": 2,
}
_DENSE_FIRST = {"n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 2}
_WINDOW = {"sliding_window": 8}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 3, **_WINDOW}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_LATENT_MOE = {**_MOE, **_LATENT, **_DENSE_FIRST}
_SPARSE = {"index_topk": 8, "index_head_dim": 16}
_LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_OLD = {**_IDS, "n_embd": _HIDDEN, "n_layer": LAYERS, "n_head": 4, "n_positions": 512}


def _base(*without: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**_BASE, **changes}.items() if name not in without}


_NO_HEAD_DIM = "head_dim"

# name → (model type, configuration); the name is the model type unless there are several of one.
CATALOGUE: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("apertus", _base()),
    "arcee": ("arcee", _base()),
    "axk1": ("axk1", _base(**_LATENT_MOE)),
    "bailing_hybrid": (
        "bailing_hybrid",
        _base(**{**_LATENT_MOE, "head_dim": 16, "q_lora_rank": None}, layer_group_size=3),
    ),
    "bamba": ("bamba", _base(**_MAMBA, attn_layer_indices=[2, 5])),
    "bloom": ("bloom", {**_IDS, "hidden_size": _HIDDEN, "n_layer": LAYERS, "n_head": 4}),
    "cohere": ("cohere", _base(_NO_HEAD_DIM)),
    "cohere2": ("cohere2", _base(**_ALTERNATING)),
    "deepseek_v2": ("deepseek_v2", _base(**_LATENT_MOE)),
    "deepseek_v3": ("deepseek_v3", _base(**_LATENT_MOE)),
    "deepseek_v32": ("deepseek_v32", _base(**_LATENT_MOE, **_SPARSE, index_n_heads=16)),
    "deepseek_v32, ties": ("deepseek_v32", _base(**_LATENT_MOE, **_SPARSE, index_n_heads=2)),
    "deepseek_v4": (
        "deepseek_v4",
        _base(
            "num_key_value_heads",
            **_MOE,
            **_WINDOW,
            compress_rates={"heavily_compressed_attention": 16, "compressed_sparse_attention": 4},
        ),
    ),
    "diffllama": ("diffllama", _base()),
    "dots1": ("dots1", _base(**_MOE, **_DENSE_FIRST, **_ALTERNATING)),
    "ernie4_5": ("ernie4_5", _base()),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        _base(**_MOE, moe_num_experts=8, moe_k=2, moe_layer_start_index=1),
    ),
    "exaone4": ("exaone4", _base(**_ALTERNATING)),
    "falcon": (
        "falcon",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "alibi": False,
            "bias": False,
        },
    ),
    "falcon, alibi": (
        "falcon",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "new_decoder_architecture": False,
            "multi_query": False,
            "alibi": True,
            "bias": True,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        _base(
            mamba_d_ssm=64,
            mamba_n_heads=4,
            mamba_d_head=16,
            mamba_d_state=16,
            mamba_n_groups=1,
            mamba_chunk_size=8,
        ),
    ),
    "gemma": ("gemma", _base()),
    "gemma2": ("gemma2", _base(**_ALTERNATING, query_pre_attn_scalar=16)),
    "gemma3, text of a vision model": (
        "gemma3",
        {
            "text_config": _base(**_ALTERNATING, query_pre_attn_scalar=16),
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 383,
            "boi_token_index": 381,
            "eoi_token_index": 382,
        },
    ),
    "gemma3_text": ("gemma3_text", _base(**_ALTERNATING, query_pre_attn_scalar=16)),
    "gemma3n_text": (
        "gemma3n_text",
        _base(
            **_ALTERNATING,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY,
            num_kv_shared_layers=2,
            laurel_rank=8,
            altup_num_inputs=2,
            activation_sparsity_pattern=[0.0] * LAYERS,
        ),
    ),
    "gemma4_text": (
        "gemma4_text",
        _base(
            **_ALTERNATING,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY,
            num_kv_shared_layers=2,
            global_head_dim=16,
        ),
    ),
    "gemma4_text, dense": (
        "gemma4_text",
        _base(**_ALTERNATING, hidden_size_per_layer_input=0, num_kv_shared_layers=0, global_head_dim=32),
    ),
    "glm": ("glm", _base()),
    "glm4": ("glm4", _base()),
    "glm4_moe": ("glm4_moe", _base(**_MOE, **_DENSE_FIRST, use_qk_norm=True)),
    "glm4_moe_lite": ("glm4_moe_lite", _base(**_LATENT_MOE)),
    "glm_moe_dsa": ("glm_moe_dsa", _base(**_LATENT_MOE, **_SPARSE, index_n_heads=16)),
    "glm_moe_dsa, ties": ("glm_moe_dsa", _base(**_LATENT_MOE, **_SPARSE, index_n_heads=2)),
    "gpt2": ("gpt2", {**_OLD, "n_inner": 128}),
    "gpt_bigcode": ("gpt_bigcode", {**_OLD, "n_inner": 128}),
    "gpt_neo": (
        "gpt_neo",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "num_layers": LAYERS,
            "num_heads": 4,
            "intermediate_size": 128,
            "max_position_embeddings": 512,
            "attention_types": [[["global", "local"], 3]],
            "window_size": 8,
        },
    ),
    "gpt_neox": ("gpt_neox", _base(_NO_HEAD_DIM, "num_key_value_heads")),
    "gpt_oss": ("gpt_oss", _base(**_ALTERNATING, **_MOE)),
    "gptj": ("gptj", {**_OLD, "rotary_dim": 8}),
    "granite": (
        "granite",
        _base(
            _NO_HEAD_DIM,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            logits_scaling=2.0,
            attention_multiplier=0.2,
        ),
    ),
    "granitemoe": ("granitemoe", _base(_NO_HEAD_DIM, **_MOE, embedding_multiplier=3.0)),
    "granitemoehybrid": (
        "granitemoehybrid",
        _base(
            _NO_HEAD_DIM,
            **_MOE,
            **_MAMBA,
            shared_intermediate_size=64,
            layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
        ),
    ),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _base()),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", _base(**_MOE)),
    "internlm3": ("internlm3", _base()),
    "jamba": (
        "jamba",
        _base(
            **_MOE,
            mamba_d_state=8,
            mamba_dt_rank=8,
            attn_layer_offset=1,
            attn_layer_period=3,
            use_mamba_kernels=False,
        ),
    ),
    "kimi_linear": (
        "kimi_linear",
        _base(
            **{**_LATENT_MOE, "q_lora_rank": None},
            linear_head_dim=16,
            linear_num_heads=4,
            layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
        ),
    ),
    "lfm2": (
        "lfm2",
        _base(
            _NO_HEAD_DIM,
            layer_types=["conv", "full_attention"] * 3,
            conv_L_cache=3,
            block_ff_dim=128,
            block_multiple_of=16,
        ),
    ),
    "lfm2_moe": (
        "lfm2_moe",
        _base(
            _NO_HEAD_DIM,
            **_MOE,
            layer_types=["conv", "full_attention"] * 3,
            conv_L_cache=3,
            num_dense_layers=1,
        ),
    ),
    "llama": ("llama", _base()),
    "llama4_text": (
        "llama4_text",
        _base(**_MOE, intermediate_size_mlp=128, attention_chunk_size=8, no_rope_layers=[1, 1, 1, 0, 1, 1]),
    ),
    "longcat_flash": (
        "longcat_flash",
        {
            **_base("num_key_value_heads", _NO_HEAD_DIM),
            **{
                name: value
                for name, value in _LATENT.items()
                if "head" not in name or "qk" in name or "v_" in name
            },
            "head_dim": 8,
            "ffn_hidden_size": 128,
            "expert_ffn_hidden_size": 32,
            "n_routed_experts": 8,
            "zero_expert_num": 2,
            "moe_topk": 2,
            "num_layers": LAYERS,
            "num_hidden_layers": 2 * LAYERS,
        },
    ),
    "mamba2": (
        "mamba2",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "mimo_v2_flash": ("mimo_v2_flash", _base(**_MOE, n_group=1, topk_group=1)),
    "minicpm3": ("minicpm3", _base(**_LATENT)),
    "minimax": (
        "minimax",
        _base(**_MOE, layer_types=["linear_attention", "full_attention"] * 3, block_size=4),
    ),
    "minimax_m2": ("minimax_m2", _base(**_MOE, rotary_dim=8)),
    "mistral": ("mistral", _base(**_WINDOW)),
    "mixtral": ("mixtral", _base(**_MOE)),
    "mpt": ("mpt", {**_IDS, "d_model": _HIDDEN, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 512}),
    "nemotron": ("nemotron", _base(_NO_HEAD_DIM)),
    "nemotron_h": (
        "nemotron_h",
        _base(
            **_MOE,
            n_groups=1,
            mamba_num_heads=8,
            mamba_head_dim=16,
            ssm_state_size=16,
            chunk_size=8,
            use_mamba_kernels=False,
            layers_block_type=["linear_attention", "moe", "full_attention"] * 2,
        ),
    ),
    "olmo2": ("olmo2", _base(_NO_HEAD_DIM)),
    "olmo3": ("olmo3", _base(_NO_HEAD_DIM, **_ALTERNATING)),
    "olmoe": ("olmoe", _base(_NO_HEAD_DIM, **_MOE)),
    "opt": (
        "opt",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "ffn_dim": 128,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
        },
    ),
    "opt, projected": (
        "opt",
        {
            **_IDS,
            "hidden_size": _HIDDEN,
            "word_embed_proj_dim": 32,
            "ffn_dim": 128,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
        },
    ),
    "phi": ("phi", _base(_NO_HEAD_DIM)),
    "phi3": ("phi3", _base(_NO_HEAD_DIM, **_WINDOW)),
    "phimoe": ("phimoe", _base(_NO_HEAD_DIM, **_MOE)),
    "qwen2": ("qwen2", _base(_NO_HEAD_DIM)),
    "qwen2, sliding": (
        "qwen2",
        _base(_NO_HEAD_DIM, use_sliding_window=True, max_window_layers=2, **_WINDOW),
    ),
    "qwen2_moe": ("qwen2_moe", _base(_NO_HEAD_DIM, **_MOE, shared_expert_intermediate_size=32)),
    "qwen3": ("qwen3", _base(tie_word_embeddings=True)),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text",
        _base(**_MOE, **_LINEAR, shared_expert_intermediate_size=32),
    ),
    "qwen3_5_text": ("qwen3_5_text", _base(**_LINEAR)),
    "qwen3_moe": ("qwen3_moe", _base(**_MOE, mlp_only_layers=[1])),
    "qwen3_next": ("qwen3_next", _base(**_MOE, **_LINEAR, shared_expert_intermediate_size=32)),
    "seed_oss": ("seed_oss", _base()),
    "smollm3": ("smollm3", _base(_NO_HEAD_DIM)),
    "stablelm": ("stablelm", _base(_NO_HEAD_DIM)),
    "starcoder2": ("starcoder2", _base(_NO_HEAD_DIM, **_WINDOW)),
    "zamba2": (
        "zamba2",
        _base(
            mamba_d_state=16,
            mamba_ngroups=1,
            n_mamba_heads=8,
            mamba_headdim=16,
            num_mem_blocks=1,
            use_mem_rope=True,
            adapter_rank=8,
            chunk_size=8,
            layers_block_type=["mamba", "hybrid", "mamba"] * 2,
        ),
    ),
}

# One of each kind, for the tests that run every time.
DIFFERENT_IN_KIND = (
    "bloom",  # tuples between layers, positions as biases
    "deepseek_v3",  # latent attention, experts behind dense layers
    "deepseek_v32",  # an indexer beside keys and values
    "deepseek_v4",  # compressed past, several streams, layers that look at the token ids
    "diffllama",  # parameters that are made outside the meta device
    "falcon_h1",  # a recurrent state and keys in every layer
    "gemma3, text of a vision model",
    "gemma3n_text",  # per-layer inputs, shared keys and values, four states stacked before the tokens
    "gpt_oss",  # sinks, fused experts, sliding and full attention
    "jamba",  # chunks that ignore the state: token by token
    "mamba2",  # no attention at all
    "opt, projected",  # learned positions, projections around the layers
    "qwen3",  # tied ends
    "qwen3_next",  # linear and full attention
    "zamba2",  # layers that share weights
)


def config_of(name: str) -> Any:
    """Return a configuration of the catalogue."""
    model_type, fields = CATALOGUE[name]
    return AutoConfig.for_model(model_type, **fields)


def make_checkpoint(config: Any, path: Path, layers: int = LAYERS) -> ModelSource:
    """Write a random float32 checkpoint in several files; returns where it is.

    The weights are larger than at the start of a training, where layers change next to nothing.
    """
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    embedding = 0.04 if model.all_tied_weights_keys else 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                scale = embedding if "embed" in name or "wte" in name else 0.7 / parameter.shape[-1] ** 0.5
                parameter.copy_(noise * scale)
            elif parameter.ndim == 1 and "A_log" not in name and "dt" not in name:
                parameter.add_(noise * 0.1)
    model.save_pretrained(path, max_shard_size="150KB")
    return ModelSource("tiny", path, layers, type(model).__name__)
