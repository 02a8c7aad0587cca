"""Quantizing: measurements are rounded before a plan is made of them, so that noise far below what matters cannot turn
one ring into another.
"""

from __future__ import annotations

from dataclasses import replace

from ring.announcement import Announcement

SIGNIFICANT_DIGITS = 3


def quantized(host: Announcement) -> Announcement:
    """Return the announcement with every measured time and rate rounded to three significant decimal digits."""
    return replace(
        host,
        layer_ns=tuple((width, rounded(ns)) for width, ns in host.layer_ns),
        tail_ns=rounded(host.tail_ns),
        rtt_us=tuple((peer, rounded(us)) for peer, us in host.rtt_us),
        uplink=rounded(host.uplink),
        overhead_ns=rounded(host.overhead_ns),
        load_rate=rounded(host.load_rate),
    )


def rounded(value: int) -> int:
    """Return the nearest integer of three significant decimal digits; halves go up.

    Raises:
        ValueError: the value is negative.

    """
    if value < 0:
        raise ValueError(f"{value} is negative: no measurement is")
    unit = int(10 ** max(0, len(str(value)) - SIGNIFICANT_DIGITS))
    return (value + unit // 2) // unit * unit
