"""Trail: how a session's recurrent or compressed state goes back: snapshots, and the inputs to go forward from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from runtimes.base import FrameOutOfOrder
from runtimes.hf.tensors import LayerOutput, part_of

SNAPSHOTS = 16  # frames that a rewind may reach back: twice what a session keeps in flight
TOKENS = 1024  # tokens whose inputs are kept to compute a part of a frame again

# What of a recurrent layer changes in place, or with it.
_RECURRENT = (
    "conv_states",
    "recurrent_states",
    "has_previous_state",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "conv_kernel_size",
)


@dataclass(frozen=True, slots=True)
class Replay:
    """What has to be computed again. position: where it begins; ids [1, w] and state: the inputs, as Block.forward takes them."""

    position: int
    ids: torch.Tensor | None
    state: LayerOutput | None
    width: int


@dataclass(slots=True)
class _Step:
    position: int
    snapshot: list[dict[str, Any]]
    ids: torch.Tensor | None
    state: LayerOutput | None
    width: int


class Trail:
    """The way that a session has come, as far as it may go back.

    Going back to 0 is always possible, to the beginning of one of the last SNAPSHOTS frames too, and into such a frame
    as long as no more than TOKENS tokens' inputs lie behind it.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        """Begin with layers that have seen nothing."""
        self._layers = layers
        self._origin = [_frozen(layer) for layer in layers]
        self._steps: deque[_Step] = deque()

    def step(self, position: int, ids: torch.Tensor | None, state: LayerOutput | None, width: int) -> None:
        """Remember the layers' state, and the frame that is about to change it."""
        self._steps.append(_Step(position, [_frozen(layer) for layer in self._layers], ids, state, width))
        if len(self._steps) > SNAPSHOTS:
            self._steps.popleft()
        kept = 0
        for past in reversed(self._steps):
            kept += past.width
            if kept > TOKENS:
                past.ids = past.state = None

    def check(self, position: int, length: int) -> None:
        """Refuse a position that cannot be gone back to. Raises FrameOutOfOrder."""
        if position not in (0, length) and self._reach(position) is None:
            known = ", ".join(str(step.position) for step in self._steps) or "none"
            raise FrameOutOfOrder(
                f"position {position} lies too far back for a layer with a recurrent or compressed state, which can be "
                f"put back to the positions {known} and what follows each: start at 0"
            )

    def rewind(self, position: int, length: int) -> Replay | None:
        """Put the layers back; see BlockCache.rewind. `length` is what they held after the last whole frame."""
        self.check(position, length)
        failed = bool(self._steps) and self._steps[-1].position == length
        if position == length and not failed:
            return None
        if position == 0:
            self._steps.clear()
            self._restore(self._origin)
            return None
        step = self._reach(position)
        if step is None:
            raise AssertionError("checked above")
        while self._steps[-1] is not step:
            self._steps.pop()
        self._steps.pop()
        self._restore(step.snapshot)
        width = position - step.position
        if width == 0:
            return None
        ids = None if step.ids is None else step.ids[:, :width]
        return Replay(step.position, ids, part_of(step.state, slice(width)), width)

    def _reach(self, position: int) -> _Step | None:
        """Return the step from which `position` can be reached."""
        for step in reversed(self._steps):
            if step.position <= position:
                inside = position <= step.position + step.width and (
                    step.ids is not None or step.state is not None
                )
                return step if position == step.position or inside else None
        return None

    def _restore(self, snapshot: list[dict[str, Any]]) -> None:
        for layer, kept in zip(self._layers, snapshot, strict=True):
            vars(layer).update(_copied(kept, recurrent=isinstance(layer, LinearAttentionCacheLayerMixin)))


def _frozen(layer: Any) -> dict[str, Any]:
    recurrent = isinstance(layer, LinearAttentionCacheLayerMixin)
    if not recurrent:
        _compact(layer)
    names = _RECURRENT if recurrent else tuple(vars(layer))
    return _copied({name: vars(layer)[name] for name in names}, recurrent=recurrent)


def _copied(attributes: dict[str, Any], *, recurrent: bool) -> dict[str, Any]:
    """Copy the dictionaries. Recurrent states change in place, so their tensors are copied too; others are replaced."""

    def copied(value: Any) -> Any:
        return value.clone() if recurrent and isinstance(value, torch.Tensor) else value

    return {
        name: {key: copied(entry) for key, entry in value.items()} if isinstance(value, dict) else value
        for name, value in attributes.items()
    }


def _compact(layer: Any) -> None:
    """Replace parts of larger tensors by copies: a layer that keeps a slice of a long frame would keep the frame."""
    small: dict[int, torch.Tensor] = {}

    def compacted(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.untyped_storage().nbytes() <= value.nbytes:
            return value
        return small.setdefault(id(value), value.clone())

    for name, value in vars(layer).items():
        if isinstance(value, dict):
            value.update({key: compacted(entry) for key, entry in value.items()})
        else:
            setattr(layer, name, compacted(value))
