"""Tiny models written as GGUF, as llama.cpp's convert_hf_to_gguf.py writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from runtimes_ring import TALE_PATH
from transformers import AutoConfig, AutoModelForCausalLM

ARCHS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
VOCABULARY = 2048  # tale's, whose tokenizer the models get
LAYERS = 3
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}


def tiny_model(family: str, **changes: Any) -> Any:
    """Return a random float32 model that has tale's vocabulary."""
    extra = _MOE if family == "qwen3_moe" else {}
    config = AutoConfig.for_model(family, **{**_COMMON, **extra, **changes})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases begin as ones and zeros, which would hide a mix-up
                parameter.add_(torch.randn(parameter.shape) * 0.1)
            else:
                parameter.copy_(torch.randn(parameter.shape) * 0.15)
    return model


class TinyGguf:
    """A GGUF being written. `metadata` and `tensors` may be changed before `write`."""

    def __init__(self, model: Any, *, cut: str = "gpt-2") -> None:
        config = model.config
        self.arch = ARCHS[config.model_type]
        self.metadata: dict[str, Any] = {
            "context_length": config.max_position_embeddings,
            "block_count": config.num_hidden_layers,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "attention.key_length": config.hidden_size // config.num_attention_heads,
            "attention.value_length": config.hidden_size // config.num_attention_heads,
            "rope.freq_base": float(config.rope_parameters["rope_theta"]),
            "vocab_size": config.vocab_size,
        }
        if self.arch == "qwen3moe":
            self.metadata |= {
                "expert_count": config.num_experts,
                "expert_used_count": config.num_experts_per_tok,
                "expert_feed_forward_length": config.moe_intermediate_size,
            }
        self.metadata = {f"{self.arch}.{key}": value for key, value in self.metadata.items()}
        self.metadata |= _tokenizer_metadata(cut)
        self.tensors = _stored(model, self.arch)

    def write(
        self, path: Path, *, quantization: str = "F32", parts: int = 0, architecture: str | None = None
    ) -> Path:
        """Write the file, or several of `parts` tensors each; returns the first one's path."""
        writer = gguf.GGUFWriter(path, architecture or self.arch, split_max_tensors=parts)
        for key, value in self.metadata.items():
            _add(writer, key, value)
        kind = gguf.GGMLQuantizationType[quantization]
        for name, values in self.tensors.items():
            matrix = values.ndim > 1 and quantization != "F32"
            data = gguf.quantize(values, kind) if matrix else values
            writer.add_tensor(name, data, raw_dtype=kind if matrix else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if not parts else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _stored(model: Any, arch: str) -> dict[str, np.ndarray[Any, Any]]:
    number = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    stored: dict[str, np.ndarray[Any, Any]] = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name.endswith(".gate_up_proj"):
            half = values.shape[1] // 2
            base = name.removesuffix("gate_up_proj")
            stored[names.get_name(base + "gate_proj") + ".weight"] = values[:, :half].copy()
            stored[names.get_name(base + "up_proj") + ".weight"] = values[:, half:].copy()
            continue
        base, _, suffix = (
            name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "weight")
        )
        if arch == "llama" and base.endswith(("q_proj", "k_proj")):
            heads = (
                model.config.num_attention_heads
                if base.endswith("q_proj")
                else model.config.num_key_value_heads
            )
            values = _permuted(values, heads)
        stored[f"{names.get_name(base)}.{suffix}"] = values.copy()
    return stored


def _permuted(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    paired = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)


def _tokenizer_metadata(cut: str) -> dict[str, Any]:
    tokenizer = json.loads((TALE_PATH / "tokenizer.json").read_text("utf-8"))
    settings = json.loads((TALE_PATH / "tokenizer_config.json").read_text("utf-8"))
    vocabulary = dict(tokenizer["model"]["vocab"])
    specials = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary | specials, key=lambda token: (vocabulary | specials)[token])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in specials else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": specials["<s>"],
        "tokenizer.ggml.eos_token_id": specials["</s>"],
        "tokenizer.ggml.eot_token_id": specials["<|user|>"],
        "tokenizer.ggml.padding_token_id": specials["<pad>"],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": settings["chat_template"],
    }
