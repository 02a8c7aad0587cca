"""A model's sizes, counted on the model itself: closed formulas are off by up to 40 %."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from registry.shape import ModelShape
from runtimes.hf.profile import Profile
from runtimes.hf.skeleton import Skeleton
from runtimes.hf.trail import TOKENS


def model_shape(model_id: str, skeleton: Skeleton, profile: Profile) -> ModelShape:
    """Return the sizes of an uncut skeleton in the dtype it was built in."""
    outer = skeleton.outer_parameters()

    def size(names: Iterable[str]) -> int:
        return _bytes(outer[name] for name in names)

    return ModelShape(
        model_id=model_id,
        layer_bytes=tuple(_bytes([*layer.parameters(), *layer.buffers()]) for layer in skeleton.layers),
        kv_token_bytes=profile.kv_token_bytes,
        state_bytes=profile.state_bytes,
        head_bytes=size(profile.before),
        tail_bytes=size(profile.after),
        shared_end_bytes=size(profile.before & profile.after),
        hidden_bytes=max(spec.token_bytes for spec in profile.outputs),
        workspace_bytes=max(profile.workspace, _fusing_bytes(skeleton)),
        common_bytes=size(profile.everywhere) + _bytes(skeleton.outer_buffers().values()),
        replay_tokens=TOKENS if any(profile.state_bytes) else 0,
        sealed_borders=skeleton.sealed_borders,
    )


def _fusing_bytes(skeleton: Skeleton) -> int:
    """Return what loading holds beside the weights: a fused tensor of experts is stacked, then concatenated."""
    return 2 * max((p.nbytes for p in skeleton.layers.parameters() if p.ndim >= 3), default=0)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
