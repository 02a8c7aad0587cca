"""The cache of one session on one block: own layers for real, foreign layers as lengths only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from runtimes.hf.trail import Replay, Trail


class PositionedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """A cache layer that is as long as the session says; a sliding one shows the last window − 1 + w tokens."""

    is_croppable = True

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.length = 0
        self.is_sliding = window is not None
        self.sliding_window = window

    def settle(self, length: int) -> None:
        """Hold `length` tokens."""
        self.length = length

    def _offset(self) -> int:
        return 0 if self.sliding_window is None else max(self.length - self.sliding_window + 1, 0)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
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


class PhantomLayer(PositionedLayer):
    """Stands for a layer that another host holds, so that masks and positions come out as in the whole model."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a foreign layer never computes."""
        raise AssertionError("a layer that this host does not hold has computed keys and values")


class FixedLayer(PositionedLayer):
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
        return sum(t.nbytes // self._capacity for t in self._storage() if t is not None)

    def _storage(self) -> tuple[torch.Tensor | None, ...]:
        return self.keys, self.values


class FixedIndexedLayer(FixedLayer):
    """A fixed layer with the keys of a sparse attention's indexer [1, length, size] beside the others."""

    def __init__(self, capacity: int) -> None:
        super().__init__(None, capacity)
        self.indexer_keys: torch.Tensor | None = None
        self.indexer_position_ids: torch.Tensor | None = None
        self._indexed = 0

    def settle(self, length: int) -> None:
        """Hold `length` tokens, and as many of the indexer's keys."""
        super().settle(length)
        self._indexed = length

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Store [1, w, size] at the positions of the frame; called before or after `update`, which counts them."""
        if self.indexer_keys is None:
            batch, _, size = indexer_key_states.shape
            self.indexer_keys = indexer_key_states.new_empty(batch, self._capacity, size)
        end = self._indexed + indexer_key_states.shape[1]
        self.indexer_keys[:, self._indexed : end] = indexer_key_states
        self._indexed = end
        return self.indexer_keys[:, :end]

    def _storage(self) -> tuple[torch.Tensor | None, ...]:
        return self.keys, self.values, self.indexer_keys


class FixedHybridLayer(LinearAttentionLayer, FixedLayer):  # type: ignore[misc]  # transformers is untyped
    """A recurrent state beside fixed keys and values."""

    is_croppable = True
    is_compileable = False

    def __init__(self, window: int | None, capacity: int, number_of_states: int) -> None:
        FixedLayer.__init__(self, window, capacity)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Make room for the recurrent state; keys and values see to themselves."""
        if kwargs:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        """Return −1: the session bounds the length."""
        return -1


class BlockCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Cache of one session.

    Keys and values are rewound by setting a length. What else a layer may keep (recurrent or compressed state) is put
    back from snapshots, which the trail keeps.

    Args:
        config: the model's configuration, which says what kind each layer is.
        own: indices of the cache layers that are computed here.
        capacity: most tokens to hold.

    """

    def __init__(self, config: Any, own: Collection[int], capacity: int) -> None:
        layers = [
            _own_layer(layer, capacity) if index in own else _foreign_layer(layer)
            for index, layer in enumerate(DynamicCache(config=config).layers)
        ]
        super().__init__(layers=layers)
        self.length = 0
        self._positioned = [layer for layer in layers if isinstance(layer, PositionedLayer)]
        self._flagged = [
            layer
            for index, layer in enumerate(layers)
            if index not in own and isinstance(layer, LinearAttentionCacheLayerMixin)
        ]
        states = [layer for index, layer in enumerate(layers) if index in own and keeps_state(layer)]
        self.trail = Trail(states) if states else None

    def rewind(self, position: int) -> Replay | None:
        """Forget everything from `position` on, also what a failed forward pass has left behind.

        Returns:
            What has to be computed again for the state of `position`, behind which the cache then stands; None if nothing.

        Raises:
            FrameOutOfOrder: a recurrent or compressed state cannot be put back that far.

        """
        replay = None if self.trail is None else self.trail.rewind(position, self.length)
        self._settle(position if replay is None else replay.position)
        return replay

    def advance(self, width: int) -> None:
        """Count `width` tokens as held in all layers, once a forward pass has gone through."""
        self._settle(self.length + width)

    def _settle(self, length: int) -> None:
        self.length = length
        for layer in self._positioned:
            layer.settle(length)
        for layer in self._flagged:
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, length > 0)


def keeps_state(layer: Any) -> bool:
    """Return whether a cache layer keeps something that setting a length does not rewind."""
    return not isinstance(layer, PositionedLayer | DummyLayer) or isinstance(layer, FixedHybridLayer)


def state_bytes(layer: Any) -> int:
    """Return the bytes of the tensors of a layer that keeps a state; a tensor under two names counts once."""
    kinds = {"keys", "values"} if isinstance(layer, FixedHybridLayer) else set()
    found: dict[int, int] = {}
    for name, value in vars(layer).items():
        for tensor in value.values() if isinstance(value, dict) else (value,):
            if isinstance(tensor, torch.Tensor) and name not in kinds:
                found[id(tensor)] = tensor.nbytes
    return sum(found.values())


def _own_layer(layer: Any, capacity: int) -> Any:
    """Return what holds the layer's past here; a kind that is not known by name keeps transformers' own object."""
    if type(layer) is DynamicLayer:
        return FixedLayer(None, capacity)
    if type(layer) is DynamicSlidingWindowLayer:
        return FixedLayer(int(layer.sliding_window), capacity)
    if type(layer) is DynamicIndexedLayer:
        return FixedIndexedLayer(capacity)
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return FixedHybridLayer(None, capacity, layer.number_of_states)
    if type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
        return FixedHybridLayer(int(layer.sliding_window), capacity, layer.number_of_states)
    return layer


def _foreign_layer(layer: Any) -> Any:
    """Return what tells a foreign layer's length; one without keys tells only whether there is a past."""
    if not isinstance(layer, CacheLayerMixin):
        return layer
    window = int(layer.sliding_window) if getattr(layer, "is_sliding", False) else None
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return PhantomLayer(window)
    return FixedHybridLayer(window, 0, layer.number_of_states)
