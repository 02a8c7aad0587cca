"""The whole model without weights, and what one look at its forward pass tells about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from runtimes.base import CheckpointError, UnsupportedModel

# Configuration fields of models that this runtime would compute wrongly: each says why.
_REFUSED_FIELDS = {
    "quantization_config": "its weights are quantized",
}
_CONTEXT_FIELDS = ("max_position_embeddings", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model on the meta device, at full length.

    Attributes:
        model: the causal LM.
        layers: its decoder's list of layers; a block replaces the foreign ones in place.
        dtype: dtype of weights and activations.

    """

    model: Any
    layers: nn.ModuleList
    dtype: torch.dtype

    @property
    def decoder(self) -> Any:
        """The part that turns ids or embeddings into the last hidden state."""
        return _decoder(self.model)

    @property
    def cache_keyword(self) -> str:
        """What the decoder's forward calls the cache."""
        return "cache" if "cache" in inspect.signature(self.decoder.forward).parameters else "past_key_values"

    @property
    def context(self) -> int | None:
        """Most positions that the model was made for, if its configuration says so."""
        config = self.model.config.get_text_config(decoder=True)
        named = (getattr(config, name, None) for name in _CONTEXT_FIELDS)
        return next((most for most in named if isinstance(most, int) and most > 0), None)

    def cache_layers(self, lo: int, hi: int) -> set[int]:
        """Return the indices under which layers [lo, hi) keep keys and values."""
        found: set[int] = set()
        for index in range(lo, hi):
            layer = self.layers[index]
            parts = (getattr(module, "layer_idx", None) for module in layer.modules() if module is not layer)
            named = {part for part in parts if isinstance(part, int)}
            found |= named or {getattr(layer, "layer_idx", index)}
        return found

    @property
    def sealed_borders(self) -> tuple[int, ...]:
        """The borders at which the model may not be cut: a layer behind reads keys and values of one before.

        Border b lies between the layers b − 1 and b. The configuration's `kv_sharing_modes` say who stores and
        who reuses; a layer that reuses takes what the last storing one of its type has.
        """
        config = self.model.config.get_text_config(decoder=True)
        modes = getattr(config, "kv_sharing_modes", None) or ()
        stored: dict[str, int] = {}
        sealed: set[int] = set()
        for layer, mode in enumerate(modes):
            if mode == "store":
                stored[config.layer_types[layer]] = layer
            elif mode == "reuse":
                sealed.update(range(stored[config.layer_types[layer]] + 1, layer + 1))
        return tuple(sorted(sealed))

    def outer_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters outside the layers; a tied one appears once."""
        inner = {id(parameter) for parameter in self.layers.parameters()}
        return {name: p for name, p in self.model.named_parameters() if id(p) not in inner}

    def outer_buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers outside the layers."""
        inner = {id(buffer) for buffer in self.layers.buffers()}
        return {name: b for name, b in self.model.named_buffers() if id(b) not in inner}


def build_skeleton(path: Path, dtype: str) -> Skeleton:
    """Build the model of a checkpoint directory on the meta device.

    Args:
        path: directory with config.json.
        dtype: torch's name of a floating dtype, or "auto" for the checkpoint's (float32 if it names none).

    Raises:
        CheckpointError: config.json is missing or broken.
        UnsupportedModel: transformers does not know the architecture, or this runtime refuses it.

    """
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path / 'config.json'} does not exist: the checkpoint directory needs it")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        raise UnsupportedModel(
            f"{path}: transformers does not know this model: {_first_line(error)}"
        ) from error
    except (OSError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path / 'config.json'} cannot be read: {_first_line(error)}") from error
    _refuse_by_field(path, config)
    served = _dtype(dtype, config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=served, trust_remote_code=False).eval()
    except (ValueError, ImportError) as error:
        raise UnsupportedModel(
            f"{path}: transformers has no causal LM for it: {_first_line(error)}"
        ) from error
    _empty(model)
    for part in (model.config, model.config.get_text_config(decoder=True)):
        part.pad_token_id = None  # else the models look for padding, of which there is none, in every frame
    return Skeleton(model, _layer_list(model), served)


def _empty(model: nn.Module) -> None:
    """Put parameters on the meta device that were made elsewhere (torch.normal does so): else they would never be loaded."""
    emptied: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                meta = emptied.setdefault(parameter, nn.Parameter(parameter.to("meta"), requires_grad=False))
                module._parameters[name] = meta


def _refuse_by_field(path: Path, config: Any) -> None:
    for part in (config, config.get_text_config(decoder=True)):
        for name, why in _REFUSED_FIELDS.items():
            if getattr(part, name, None):
                raise UnsupportedModel(f"{path}: {name} is set: {why}, which the hf runtime does not serve")


def _dtype(name: str, config: Any) -> torch.dtype:
    if name == "auto":
        declared = getattr(config, "dtype", None) or config.get_text_config(decoder=True).dtype
        return declared if isinstance(declared, torch.dtype) else torch.float32
    served = getattr(torch, name, None)
    if not isinstance(served, torch.dtype) or not served.is_floating_point or served.itemsize < 2:
        raise UnsupportedModel(
            f'dtype is {name!r}; use "auto", "bfloat16", "float16", "float32" or "float64"'
        )
    return served


def _decoder(model: Any) -> Any:
    """Return the model's decoder; a model that names itself has it under `model`, as almost all do."""
    decoder = model.get_decoder()
    return getattr(model, "model", model) if decoder is model else decoder


def _layer_list(model: Any) -> nn.ModuleList:
    """Return the decoder's layers: the longest of the module lists that lie least deep."""
    lists = [
        (name.count("."), -len(m), m)
        for name, m in _decoder(model).named_modules()
        if isinstance(m, nn.ModuleList)
    ]
    if not lists:
        raise UnsupportedModel(f"{type(model).__name__} has no list of layers that could be split")
    return min(lists, key=lambda entry: entry[:2])[2]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
