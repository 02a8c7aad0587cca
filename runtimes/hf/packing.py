"""Frames of one or several sessions in one forward pass, side by side along the tokens' axis.

All products of matrices see all rows at once; attention goes row by row, each over exactly the keys that it would see if its
token were decoded alone. Nothing is padded and there is no mask. Whether this gives the same bits as decoding alone
depends on the products alone, which `runtimes.hf.numerics` checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, pairwise
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from runtimes.hf.cache import BlockCache, FixedLayer, PhantomLayer, PositionedLayer

ATTENTION = "swarmd_rows"
"""What the attention is called in transformers: sdpa, but row by row inside `packed`."""


class _PackedLayer(PositionedLayer):
    """The fixed layers of several sessions, as one."""

    def __init__(self, layers: Sequence[FixedLayer], widths: list[int], chunked: bool) -> None:
        super().__init__(layers[0].sliding_window)
        self.length = layers[0].length
        self._layers = layers
        self._widths = widths
        self._chunked = chunked
        self._views: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store each session's part of [1, heads, Σw, size]; what is returned only says what shape there is."""
        keys, values = torch.split(key_states, self._widths, 2), torch.split(value_states, self._widths, 2)
        self._views = [
            (*layer.update(key, value), layer.length)
            for layer, key, value in zip(self._layers, keys, values, strict=True)
        ]
        return key_states, value_states

    def rows(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield, for each row, the keys and values [1, heads, n, size] that it sees."""
        for width, (keys, values, end) in zip(self._widths, self._views, strict=True):
            first = end - keys.shape[2]  # the position of the first key
            for position in range(end - width, end):
                seen = slice(self._begin(position) - first, position + 1 - first)
                yield keys[:, :, seen], values[:, :, seen]

    def _begin(self, position: int) -> int:
        window = self.sliding_window
        if window is None:
            return 0
        return position // window * window if self._chunked else max(0, position - window + 1)


class PackedCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The caches of the sessions of one forward pass, which must keep keys and values only."""

    def __init__(self, caches: Sequence[BlockCache], widths: list[int], kinds: Sequence[str]) -> None:
        first = caches[0]
        super().__init__(
            layers=[
                _PackedLayer(
                    [cache.layers[index] for cache in caches], widths, kinds[index : index + 1] == [_CHUNKED]
                )
                if type(layer) is FixedLayer
                else PhantomLayer(layer.sliding_window)
                for index, layer in enumerate(first.layers)
            ]
        )
        self.length = first.length
        for layer in self.layers:
            layer.length = first.length


_CHUNKED = "chunked_attention"
_packed: ContextVar[PackedCache | None] = ContextVar("packed", default=None)


@contextmanager
def packed(cache: PackedCache) -> Iterator[None]:
    """Let attention go row by row over this cache."""
    token = _packed.set(cache)
    try:
        yield
    finally:
        _packed.reset(token)


def can_pack(cache: BlockCache) -> bool:
    """Return whether a session's cache keeps nothing but keys and values."""
    return all(type(layer) in (FixedLayer, PhantomLayer) for layer in cache.layers)


def spans(widths: Sequence[int]) -> list[slice]:
    """Return where each frame lies among the rows."""
    return [slice(start, end) for start, end in pairwise(accumulate(widths, initial=0))]


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as sdpa does; inside `packed`, each row [1, heads, 1, size] on its own."""
    cache = _packed.get()
    if cache is None:
        whole: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return whole
    rows = [
        sdpa_attention_forward(module, query[:, :, row : row + 1], keys, values, None, **kwargs)[0]
        for row, (keys, values) in enumerate(cache.layers[module.layer_idx].rows())
    ]
    return torch.cat(rows, dim=1), None


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return sdpa's mask; rows need none."""
    if _packed.get() is not None:
        return None
    mask: torch.Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _mask)
