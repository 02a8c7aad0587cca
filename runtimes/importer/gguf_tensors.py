"""GGUF's tensors under transformers' names and in transformers' layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

import gguf
import torch
from transformers import AutoModelForCausalLM

from runtimes.base import CheckpointError, UnsupportedModel
from runtimes.importer.gguf_config import understood_tensors
from runtimes.importer.gguf_file import GgufFile
from runtimes.importer.tensors import OutgoingTensor

# transformers fuses the experts in memory; checkpoints hold them one by one, GGUF all experts of a layer in one tensor.
_FUSED = re.compile(r"(?P<experts>.+\.mlp\.experts)\.(?P<kind>gate_up_proj|down_proj)")
_EXPERT_PARTS = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}


def outgoing_tensors(file: GgufFile, config: Any) -> list[OutgoingTensor]:
    """Return all tensors of the checkpoint, in the order of the layers.

    Raises:
        CheckpointError: a tensor is missing or of another shape than the metadata says.
        UnsupportedModel: the file holds a tensor that the model has no place for.

    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    except (ValueError, RuntimeError, ZeroDivisionError, TypeError) as error:
        raise CheckpointError(f"{file.path}: no model can be built from its metadata: {error}") from error
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[file.require("general.architecture")]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    used = set(understood_tensors(file))
    outgoing: list[OutgoingTensor] = []
    for name, parameter in model.named_parameters():  # a tied parameter comes once
        for stored, tensor in _sources(file, config, names, name, tuple(parameter.shape)):
            used.add(stored)
            outgoing.append(tensor)
    if unused := sorted(file.names - used):
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise UnsupportedModel(
            f"{file.path}: transformers' {type(model).__name__} has no place for tensor {unused[0]}{more}: "
            "this model cannot be imported"
        )
    return outgoing


def _sources(
    file: GgufFile, config: Any, names: Any, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, OutgoingTensor]]:
    """Yield (name in the file, tensor of the checkpoint) of all that make up a parameter."""
    if match := _FUSED.fullmatch(name):
        parts = _EXPERT_PARTS[match["kind"]]
        each = (shape[1] // len(parts), shape[2])
        for part in parts:
            stored = _stored_name(file, names, f"{match['experts']}.{part}_proj", ".weight")
            _check_shape(file, stored, (shape[0], *each))
            for expert in range(shape[0]):
                wanted = f"{match['experts']}.{expert}.{part}_proj.weight"
                yield stored, _outgoing(file, config, stored, wanted, each, expert)
        return
    base, dot, suffix = name.rpartition(".")
    stored = _stored_name(file, names, base, dot + suffix)
    _check_shape(file, stored, shape)
    yield stored, _outgoing(file, config, stored, name, shape, None)


def _stored_name(file: GgufFile, names: Any, base: str, suffix: str) -> str:
    stored = names.get_name(base)
    if stored is None or stored + suffix not in file.names:
        raise CheckpointError(
            f"{file.path} lacks tensor {(stored or base) + suffix}: the file is incomplete, fetch it again"
        )
    return str(stored) + suffix


def _check_shape(file: GgufFile, stored: str, shape: tuple[int, ...]) -> None:
    if file.shape(stored) != shape:
        raise CheckpointError(
            f"{file.path}: tensor {stored} has shape {list(file.shape(stored))}, the metadata says {list(shape)}"
        )


def _outgoing(
    file: GgufFile, config: Any, stored: str, name: str, shape: tuple[int, ...], index: int | None
) -> OutgoingTensor:
    dtype: torch.dtype = config.dtype
    heads = _rotated_heads(config, stored)

    def read() -> torch.Tensor:
        tensor = file.read(stored, dtype, index)
        return tensor if heads is None else _unpermute(tensor, heads)

    return OutgoingTensor(name, prod(shape) * dtype.itemsize, read)


def _rotated_heads(config: Any, stored: str) -> int | None:
    """Return how many heads llama.cpp has permuted a tensor by, or None: only llama's queries and keys are."""
    if config.model_type != "llama":
        return None
    if ".attn_q." in stored:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".attn_k." in stored else None


def _unpermute(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py: pairs of a rotation lie side by side there."""
    half = tensor.shape[0] // heads // 2
    paired = tensor.reshape(heads, half, 2, *tensor.shape[1:])
    return paired.swapaxes(1, 2).reshape(tensor.shape).contiguous()
