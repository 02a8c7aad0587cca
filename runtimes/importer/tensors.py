"""Tensors on their way into a checkpoint: known by name and size, read one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class OutgoingTensor:
    """A tensor as the checkpoint will hold it. `read` makes it; nobody but the shard being written keeps it.

    nbytes: bytes of its data.
    """

    name: str
    nbytes: int
    read: Callable[[], torch.Tensor]
