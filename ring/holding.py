"""Holding: which part of a model a host has loaded already, and what a plan would make it load."""

from __future__ import annotations

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.throughput import NS_PER_SECOND

DEFAULT_LOAD_RATE = 200_000_000
"""Bytes per second at which a host is assumed to load while it has not measured it."""


def held_layers(host: Announcement, shape: ModelShape) -> tuple[int, int]:
    """Return the layers [lo, hi) of the model that the host has loaded; (0, 0) for none."""
    block = host.block
    if block is None or block.model != shape.model_id or block.state not in ("ready", "serving"):
        return 0, 0
    if not 0 <= block.lo < block.hi <= shape.layer_count:
        return 0, 0
    return block.lo, block.hi


def load_bytes(shape: ModelShape, held: tuple[int, int], lo: int, hi: int) -> int:
    """Return the bytes of weights that a host which holds the layers `held` has to load to serve [lo, hi)."""
    count = shape.layer_count
    total = sum(
        size for layer, size in enumerate(shape.layer_bytes[lo:hi], lo) if not held[0] <= layer < held[1]
    )
    had_head, had_tail = held[1] > 0 and held[0] == 0, held[1] == count
    head, tail = lo == 0 and not had_head, hi == count and not had_tail
    total += shape.head_bytes * head + shape.tail_bytes * tail
    if (head and tail) or (head and had_tail) or (tail and had_head):
        total -= shape.shared_end_bytes
    return total + shape.common_bytes * (held[1] == 0)


def load_ns(host: Announcement, size: int) -> int:
    """Return the nanoseconds in which a host loads `size` bytes."""
    return size * NS_PER_SECOND // (host.load_rate or DEFAULT_LOAD_RATE)
