"""Weights that a new block takes over from the one before it: the same tensors, neither read nor copied again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtimes.hf.loading import is_hollow
from runtimes.hf.skeleton import Skeleton


def weights_held(model: Any) -> dict[str, torch.Tensor]:
    """Return every parameter and persistent buffer that takes memory; a tied one stands under each of its names."""
    return {
        name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if not is_hollow(tensor)
    }


def take_over(skeleton: Skeleton, held: Mapping[str, torch.Tensor]) -> int:
    """Put tensors of another block of the same model wherever a cut and hollowed skeleton has an empty one.

    Args:
        skeleton: it must not have been loaded yet.
        held: the other block's weights.

    Returns:
        Bytes taken over.

    """
    model = skeleton.model
    known = _under_all_names(held, model.all_tied_weights_keys)
    taken = {
        id(empty): known[name]
        for name, empty in model.state_dict(keep_vars=True).items()
        if empty.is_meta and name in known
    }
    for tensor in taken.values():
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers' own mark
    for module in model.modules():
        for slots in (module._parameters, module._buffers):
            _fill_slots(slots, taken)
    return sum({id(tensor): tensor.nbytes for tensor in taken.values()}.values())


def _fill_slots(slots: dict[str, Any], taken: Mapping[int, torch.Tensor]) -> None:
    for name, empty in slots.items():
        if id(empty) in taken:
            slots[name] = taken[id(empty)]


def _under_all_names(held: Mapping[str, torch.Tensor], ties: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Let tied tensors be found under each other's names: a block has them under those of the layers that it holds."""
    known = dict(held)
    for name, original in ties.items():
        if name in held:
            known.setdefault(original, held[name])
    for name, original in ties.items():
        if original in known:
            known.setdefault(name, known[original])
    return known
