"""Device classes: how fast a layer should be on a device that nobody has measured yet.

A layer takes as long as its weights take to be read, until the frame is so wide that its arithmetic takes longer (the
roofline model: Williams, Waterman, Patterson 2009). What a class does with one token of the reference layer is
known; other layers are scaled by their bytes, and wide frames by their operations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ring.throughput import LayerTimes

REFERENCE_BYTES = 436_224_000
"""Bytes of the reference layer: one of Llama-3-8B in bfloat16 (218,112,000 weights)."""

REFERENCE_FLOPS = 436_224_000
"""Operations of the reference layer for one token: a multiplication and an addition for each weight."""

PRIOR_WIDTHS = (1, 5, 64, 512)
"""The frame widths for which a prior is given; between them times are interpolated."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices that are about equally fast.

    Attributes:
        name: as it stands in the names of its devices.
        reference_ns: nanoseconds for one token of the reference layer.
        balance: tokens of the reference layer at which arithmetic takes as long as reading the weights: the ratio
            of dense bfloat16 operations to bytes per second in the vendor's data sheet.

    """

    name: str
    reference_ns: int
    balance: int


CLASSES = (
    DeviceClass("H100", 180_000, 295),
    DeviceClass("A100", 300_000, 153),
    DeviceClass("4090", 420_000, 164),
    DeviceClass("3090", 700_000, 76),
)


def class_of(device: str) -> DeviceClass | None:
    """Return the class of a device by its name ("NVIDIA GeForce RTX 4090"), or None where it is of no known class."""
    for known in CLASSES:
        if re.search(rf"(?<![0-9A-Za-z]){known.name}(?![0-9A-Za-z])", device, re.IGNORECASE):
            return known
    return None


def prior_layer_ns(device: DeviceClass, *, layer_bytes: int, layer_flops: int) -> LayerTimes:
    """Return (frame width, nanoseconds) for one layer on a device of a class.

    Args:
        device: the class.
        layer_bytes: bytes of weights that are read for a frame.
        layer_flops: operations for one token.

    """
    reading = device.reference_ns * layer_bytes // REFERENCE_BYTES
    return tuple(
        (
            width,
            max(1, reading, width * device.reference_ns * layer_flops // (REFERENCE_FLOPS * device.balance)),
        )
        for width in PRIOR_WIDTHS
    )
