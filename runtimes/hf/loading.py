"""Put weights into the part of a skeleton that a block holds; everything else stays without memory.

Uses functions that transformers keeps private: they know how a checkpoint's names map to modules and how tensors are
converted and fused (transformers.core_model_loading), which no table of prefixes does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.modeling_utils import LoadStateDictConfig

from runtimes.base import CheckpointError, LoadProgress
from runtimes.hf.checkpoint import Checkpoint, LazyTensor
from runtimes.hf.skeleton import Skeleton

_STRETCH = 1 << 20  # random numbers that repeat in a tensor with more
_DEVIATION = 0.02  # of an untrained model's weights: initializer_range of most configurations


def hollow_out(skeleton: Skeleton, held: frozenset[str], device: torch.device) -> None:
    """Replace parameters outside the layers that are not in `held` by zeros of the same shape that take no memory.

    The model's own forward may then touch them; what comes of it is never used.
    """
    for name, parameter in skeleton.outer_parameters().items():
        if name not in held:
            zero = torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)
            hollow = nn.Parameter(zero, requires_grad=False)
            hollow._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers' own mark
            hollow.is_hollow = True  # type: ignore[attr-defined]
            _replace(skeleton.model, parameter, hollow)


def is_hollow(tensor: torch.Tensor) -> bool:
    """Return whether a parameter takes no memory: hollowed out, or on the meta device."""
    return tensor.is_meta or getattr(tensor, "is_hollow", False)


def load_weights(
    skeleton: Skeleton,
    checkpoint: Checkpoint,
    device: torch.device,
    kept: int,
    total: int,
    progress: Callable[[LoadProgress], None],
) -> int:
    """Read the tensors of a cut and hollowed skeleton; returns the bytes read.

    Args:
        skeleton: its meta parameters are filled.
        checkpoint: where from; tensors that the skeleton does not hold are not touched.
        device: where to.
        kept: bytes that are there already, for `progress`.
        total: bytes to expect, for `progress`.
        progress: called before each tensor, from the calling thread.

    Raises:
        CheckpointError: a tensor is missing or has another shape.

    """
    done = kept

    def read(name: str, tensor: torch.Tensor) -> None:
        nonlocal done
        done += tensor.nbytes
        progress(LoadProgress(done, max(done, total), name))

    conversions = get_model_conversion_mapping(skeleton.model, None, None)
    sources = _sources(skeleton, checkpoint, conversions, read, _adopt_foreign(skeleton.model))
    _check_shapes(skeleton, checkpoint, sources, conversions)
    info = _fill(skeleton, sources, conversions, device, str(checkpoint.path))
    if info.conversion_errors or info.mismatched_keys or info.error_msgs:
        raise CheckpointError(f"{checkpoint.path}: {_explain(info)}")
    return done - kept


def initialize_weights(skeleton: Skeleton, device: torch.device) -> None:
    """Fill a cut and hollowed skeleton with random weights, as an untrained model has them.

    In large tensors one random stretch repeats: to draw billions of numbers for one layer would take minutes.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for parameter in list(skeleton.model.parameters()):
            if parameter.is_meta and parameter.is_floating_point() and parameter.numel() > _STRETCH:
                made = nn.Parameter(_repeated(parameter, device), requires_grad=False)
                made._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers' own mark
                _replace(skeleton.model, parameter, made)
        _fill(skeleton, {}, [], device, "", missing_allowed=True)


def _repeated(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    stretch = (torch.randn(_STRETCH, device=device) * _DEVIATION).to(like.dtype)
    made = torch.empty(like.shape, dtype=like.dtype, device=device)
    for piece in torch.split(made.view(-1), _STRETCH):
        piece.copy_(stretch[: len(piece)])
    return made


def _sources(
    skeleton: Skeleton,
    checkpoint: Checkpoint,
    conversions: list[Any],
    read: Callable[[str, torch.Tensor], None],
    adopted: dict[str, str],
) -> dict[str, LazyTensor]:
    """Return the tensors of the checkpoint that the skeleton holds, unread."""
    state = skeleton.model.state_dict()
    wanted = {name for name, tensor in state.items() if tensor.is_meta}
    sources: dict[str, LazyTensor] = {}
    for name in checkpoint.file_of:
        target, _ = _target(skeleton, name, conversions, state)
        if name in wanted or target in wanted:
            sources[name] = checkpoint.tensor(name, read)
        if adopted.get(target) in wanted:
            sources[adopted[target]] = checkpoint.tensor(name, read)
    return sources


def _adopt_foreign(model: Any) -> dict[str, str]:
    """Return which own parameter takes the tensor of a foreign one that it is tied to (layers that share weights).

    A checkpoint holds such a tensor once, under the name of the first layer that has it. The model's ties are changed so
    that further own parameters are tied to the one that takes it.
    """
    held = set(model.state_dict())
    adopted: dict[str, str] = {}
    ties: dict[str, str] = {}
    for name, original in model.all_tied_weights_keys.items():
        if name not in held:
            continue
        if original in held:
            ties[name] = original
        elif original in adopted:
            ties[name] = adopted[original]
        else:
            adopted[original] = name
    model.all_tied_weights_keys = ties
    return adopted


def _target(
    skeleton: Skeleton, name: str, conversions: list[Any], state: dict[str, Any]
) -> tuple[str, str | None]:
    """Return the parameter that a tensor of the checkpoint goes to, and the conversion's pattern if it is converted."""
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    renamed: tuple[str, str | None] = rename_source_key(
        name, renamings, converters, skeleton.model.base_model_prefix, state
    )
    return renamed


def _check_shapes(
    skeleton: Skeleton, checkpoint: Checkpoint, sources: dict[str, LazyTensor], conversions: list[Any]
) -> None:
    """Refuse missing tensors and wrong shapes before anything is read, as far as tensors are not converted."""
    state = skeleton.model.state_dict()
    found: set[str] = set()
    converted = False
    for name, tensor in sources.items():
        target, pattern = _target(skeleton, name, conversions, state)
        target = target if target in state else name
        found.add(target)
        converted |= pattern is not None
        if pattern is None and tensor.get_shape() != list(state[target].shape):
            raise CheckpointError(
                f"{checkpoint.path / checkpoint.file_of[name]}: tensor {name} has shape {tensor.get_shape()}, "
                f"the configuration says {list(state[target].shape)}"
            )
    if not converted:
        _refuse_missing(
            skeleton, {name for name, t in state.items() if t.is_meta} - found, str(checkpoint.listing)
        )


def _fill(
    skeleton: Skeleton,
    sources: dict[str, LazyTensor],
    conversions: list[Any],
    device: torch.device,
    where: str,
    *,
    missing_allowed: bool = False,
) -> Any:
    model = skeleton.model
    config = LoadStateDictConfig(
        pretrained_model_name_or_path=where,
        dtype=skeleton.dtype,
        dtype_plan=model._get_dtype_plan(skeleton.dtype),
        weight_mapping=conversions,
        device_map={"": device},
    )
    there = {
        name
        for name, tensor in model.state_dict(keep_vars=True).items()
        if not tensor.is_meta and (isinstance(tensor, nn.Parameter) or _is_initialized(tensor))
    }
    info, _ = type(model)._load_pretrained_model(model, sources, None, config)
    info.missing_keys -= there
    if not missing_allowed and not info.conversion_errors and not info.mismatched_keys:
        _refuse_missing(skeleton, info.missing_keys, where)
    return type(model)._finalize_model_loading(model, config, info)


def _is_initialized(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_is_hf_initialized", False)


def _refuse_missing(skeleton: Skeleton, missing: set[str], where: str) -> None:
    tied = set(skeleton.model.all_tied_weights_keys)
    names = sorted(missing - tied)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(f"{where} lacks tensor {names[0]}{more}: fetch the checkpoint again")


def _explain(info: Any) -> str:
    if info.mismatched_keys:
        name, got, wanted = sorted(info.mismatched_keys, key=str)[0]
        return f"tensor {name} has shape {list(got)}, the configuration says {list(wanted)}"
    name, problem = next(iter(info.conversion_errors.items()), ("", "; ".join(info.error_msgs)))
    return f"tensor {name} cannot be converted: {str(problem).strip().splitlines()[-1]}"


def _replace(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Put `new` wherever `old` is; tied parameters are the same object in several modules."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is old:
                module._parameters[name] = new
