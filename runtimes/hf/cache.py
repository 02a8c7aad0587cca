"""The KV cache of one session on one block: own layers for real, foreign layers as lengths only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from runtimes.base import UnsupportedModel


class _Positioned(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """A cache layer that is as long as the session says; a sliding one shows the last window − 1 + w tokens."""

    is_croppable = True

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.length = 0
        self.is_sliding = window is not None
        self.sliding_window = window

    def _offset(self) -> int:
        return 0 if self.sliding_window is None else max(self.length - self.sliding_window + 1, 0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: storage is made on the first update."""

    def get_seq_length(self) -> int:
        """Return the tokens held."""
        return self.length

    def get_max_length(self) -> int:
        """Return −1: the length is bounded by the session and not by the layer."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a query of this length sees, and the position of the first."""
        offset = self._offset()
        return self.length - offset + query_length, offset


class PhantomLayer(_Positioned):
    """Stands for a layer that another host holds, so that masks and positions come out as in the whole model."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a foreign layer never computes."""
        raise AssertionError("a layer that this host does not hold has computed keys and values")


class FixedLayer(_Positioned):
    """Keys and values of all positions up to `capacity`, allocated once; rewinding costs nothing.

    A sliding layer keeps everything too, because a rewind may bring old positions back into its window.
    """

    keys: torch.Tensor | None
    values: torch.Tensor | None

    def __init__(self, window: int | None, capacity: int) -> None:
        super().__init__(window)
        self._capacity = capacity

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [1, heads, w, size] and return views of all that the queries may see."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self._room_for(key_states), self._room_for(value_states)
            self.is_initialized = True
        start, end, offset = self.length, self.length + key_states.shape[-2], self._offset()
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, offset:end], self.values[:, :, offset:end]

    def _room_for(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, _, size = states.shape
        return states.new_empty(batch, heads, self._capacity, size)

    @property
    def token_bytes(self) -> int:
        """Bytes per token, once something has been stored."""
        return sum(t.nbytes // self._capacity for t in (self.keys, self.values) if t is not None)


class BlockCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Cache of one session.

    Args:
        config: the model's configuration, which says what kind each layer is.
        own: indices of the cache layers that are computed here.
        capacity: most tokens to hold.

    Raises:
        UnsupportedModel: a layer keeps something other than keys and values.

    """

    def __init__(self, config: Any, own: Collection[int], capacity: int) -> None:
        windows = [_window(layer) for layer in DynamicCache(config=config).layers]
        super().__init__(
            layers=[
                FixedLayer(window, capacity) if index in own else PhantomLayer(window)
                for index, window in enumerate(windows)
            ]
        )
        self.length = 0

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on, also what a failed forward pass has left behind."""
        self.length = position
        for layer in self.layers:
            layer.length = position

    def advance(self, width: int) -> None:
        """Count `width` tokens as held in all layers, once a forward pass has gone through."""
        self.rewind(self.length + width)


def _window(layer: Any) -> int | None:
    if type(layer) is DynamicLayer:
        return None
    if type(layer) is DynamicSlidingWindowLayer:
        return int(layer.sliding_window)
    raise UnsupportedModel(
        f"a layer keeps its past as {type(layer).__name__}: this runtime rewinds keys and values only, "
        "not recurrent, compressed or shared state"
    )
