"""From GGUF's metadata to a transformers configuration. What we do not understand is refused, never ignored."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from runtimes.base import CheckpointError, UnsupportedModel
from runtimes.importer.gguf_file import GgufFile

# GGUF's architecture → transformers' model type.
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}

# GGUF key, without the architecture → field of the configuration.
_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_EXPERT_FIELDS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# Read elsewhere in this module, or said by the tensors themselves.
_UNDERSTOOD = {
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
_ROPE_THETA = 10_000.0  # what GGUF means where rope.freq_base is absent
_ROPE_FREQS = "rope_freqs.weight"
# Llama 3.1's rescaled rotary frequencies, in all models of its line; only the factor differs, and GGUF holds the result.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_of(file: GgufFile, dtype: torch.dtype) -> Any:
    """Return the configuration of a GGUF model.

    Raises:
        UnsupportedModel: the architecture is none of MODEL_TYPES, or the metadata says what we do not understand.
        CheckpointError: the metadata lacks a value or contradicts itself.

    """
    arch = file.require("general.architecture")
    if arch not in MODEL_TYPES:
        raise UnsupportedModel(
            f"{file.path}: models of GGUF architecture {arch!r} cannot be imported; {', '.join(MODEL_TYPES)} can"
        )
    fields = {**_FIELDS, **(_EXPERT_FIELDS if arch == "qwen3moe" else {})}
    _refuse_unknown(file, arch, set(fields))
    values = {name: file.get(f"{arch}.{key}") for key, name in fields.items()}
    values["num_key_value_heads"] = values["num_key_value_heads"] or values["num_attention_heads"]
    theta = values.pop("rope_theta") or _ROPE_THETA
    for key, name in fields.items():
        _check_value(file, f"{arch}.{key}", values.get(name, theta))
    if values["num_hidden_layers"] > len(file.names):
        raise CheckpointError(
            f"{file.path}: the metadata {arch}.block_count is {values['num_hidden_layers']}, but there are only "
            f"{len(file.names)} tensors: fetch the file again"
        )
    head_dim = _head_dim(file, arch, values)
    if arch == "qwen3moe":
        values["norm_topk_prob"] = True  # llama.cpp's qwen3moe always normalizes; no metadata says so
    if "token_embd.weight" not in file.names:
        raise CheckpointError(
            f"{file.path} lacks tensor token_embd.weight: the file is incomplete, fetch it again"
        )
    rope = _rope(file, arch, theta, head_dim)
    if arch != "qwen2":  # which always has biases, and no field for them
        values["attention_bias"] = "blk.0.attn_q.bias" in file.names
    try:
        return AutoConfig.for_model(
            MODEL_TYPES[arch],
            **values,
            head_dim=head_dim,
            vocab_size=file.shape("token_embd.weight")[0],
            tie_word_embeddings="output.weight" not in file.names,
            rope_parameters={"rope_theta": theta, **rope},
            bos_token_id=file.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=file.get("tokenizer.ggml.eos_token_id"),
            pad_token_id=file.get("tokenizer.ggml.padding_token_id"),
            architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[MODEL_TYPES[arch]]],
            dtype=dtype,
        )
    except Exception as error:  # each configuration class checks its fields in its own way
        raise CheckpointError(
            f"{file.path}: its metadata contradicts itself: {_first_line(error)}"
        ) from error


def understood_tensors(file: GgufFile) -> frozenset[str]:
    """Return the names of tensors that became part of the configuration."""
    return frozenset({_ROPE_FREQS}) & file.names


def _refuse_unknown(file: GgufFile, arch: str, known: set[str]) -> None:
    """Refuse a key that would change what the model computes; an expert count of 0 is no news."""
    for key in sorted(file.keys):
        prefix, _, rest = key.partition(".")
        if prefix == arch and rest not in known | _UNDERSTOOD and file.get(key) not in (0, 0.0, False):
            raise UnsupportedModel(
                f"{file.path}: the metadata {key} = {file.get(key)!r} has no counterpart in transformers' "
                f"{MODEL_TYPES[arch]} that we know: this model cannot be imported"
            )


def _check_value(file: GgufFile, key: str, value: object) -> None:
    if value is None:
        file.require(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        kind = "differs from layer to layer" if isinstance(value, list) else "is no positive number"
        raise UnsupportedModel(
            f"{file.path}: the metadata {key} = {str(value)[:80]} {kind}: this model cannot be imported"
        )


def _head_dim(file: GgufFile, arch: str, values: dict[str, Any]) -> int:
    """Return the size of an attention head. Rotary embeddings cover all of it in every architecture here."""
    derived = int(values["hidden_size"]) // int(values["num_attention_heads"])
    key, value = (file.get(f"{arch}.attention.{name}_length", derived) for name in ("key", "value"))
    rotary = file.get(f"{arch}.rope.dimension_count", key)
    if not key == value == rotary:
        raise UnsupportedModel(
            f"{file.path}: attention heads with keys of {key}, values of {value} and rotary embeddings over {rotary} "
            "numbers cannot be imported; the three must be equal"
        )
    return int(key)


def _rope(file: GgufFile, arch: str, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the rest of rope_parameters."""
    kind, factor = file.get(f"{arch}.rope.scaling.type", "none"), file.get(f"{arch}.rope.scaling.factor", 1.0)
    original = file.get(f"{arch}.rope.scaling.original_context_length")
    if _ROPE_FREQS in file.names:
        return _llama3_rope(file, theta, head_dim)
    if kind == "none":
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and original:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(
        f"{file.path}: the metadata {arch}.rope.scaling.type = {kind!r} cannot be imported; none, linear and yarn can"
    )


def _llama3_rope(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Return the parameters whose frequencies, relative to the plain ones, are those in the file.

    Formula: transformers.modeling_rope_utils, llama3; convert_hf_to_gguf.py of llama.cpp stores its quotients.
    """
    stored = file.read(_ROPE_FREQS, torch.float32).flatten()
    factor = round(float(stored.max()), 4)
    wavelength = 2 * torch.pi * theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = (_LLAMA3["original_max_position_embeddings"] / wavelength - low) / (high - low)
    expected = 1 / ((1 - smooth.clamp(0, 1)) / factor + smooth.clamp(0, 1))
    if stored.shape != expected.shape or not torch.allclose(stored.double(), expected, rtol=1e-4):
        raise UnsupportedModel(
            f"{file.path}: its rotary frequencies ({_ROPE_FREQS}) are not those of Llama 3: this model cannot be imported"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
