"""torch tensors to wire tensors and back, in every dtype torch has (numpy lacks bfloat16)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runtimes.base import Activation, FrameMalformed, Tensor

# What a decoder layer returns: one tensor, or a tuple with gaps.
LayerOutput = torch.Tensor | tuple[torch.Tensor | None, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name without its prefix, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def to_wire(tensor: torch.Tensor) -> Tensor:
    """Return the tensor's bytes; on the CPU they are a view of it if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Tensor(dtype_name(tensor.dtype), tuple(tensor.shape), flat.numpy().data)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of w tokens: dtype, and the dimensions after [1, w]."""

    dtype: torch.dtype
    rest: tuple[int, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.dtype.itemsize * math.prod(self.rest)

    def parse(self, tensor: Tensor, width: int, device: torch.device) -> torch.Tensor:
        """Return the wire tensor on `device`, as a copy.

        Raises:
            FrameMalformed: dtype, shape or size are not what the layer takes.

        """
        shape = (1, width, *self.rest)
        if tensor.dtype != dtype_name(self.dtype) or tuple(tensor.shape) != shape:
            raise FrameMalformed(
                f"an activation tensor is {tensor.dtype} {tuple(tensor.shape)}; the layer takes "
                f"{dtype_name(self.dtype)} {shape}"
            )
        size = memoryview(tensor.data).nbytes
        if size != width * self.token_bytes:
            raise FrameMalformed(
                f"an activation tensor of {shape} has {size} bytes, not {width * self.token_bytes}"
            )
        # The copy aligns the data and owns them: a received message may be read-only and at any offset.
        return torch.frombuffer(bytearray(tensor.data), dtype=self.dtype).reshape(shape).to(device)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What one layer hands to the next.

    Attributes:
        bare: the layer returns a tensor and not a tuple.
        entries: the tuple's entries; None where there is a gap, or something that stays on its host.

    """

    bare: bool
    entries: tuple[TensorSpec | None, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token on the wire."""
        return sum(entry.token_bytes for entry in self.entries if entry)

    def width(self, activation: Activation | None) -> int:
        """Return the frame's width in tokens.

        Raises:
            FrameMalformed: the activation is absent or has other gaps.

        """
        if activation is None or [t is None for t in activation] != [e is None for e in self.entries]:
            raise FrameMalformed(
                f"the activation has {len(activation or ())} tensors; the layer takes {len(self.entries)} with the same gaps"
            )
        first = next(tensor for tensor in activation if tensor is not None)
        if len(first.shape) < 2 or first.shape[1] < 1:
            raise FrameMalformed(
                f"an activation tensor has shape {tuple(first.shape)}; it must begin with (1, width)"
            )
        return first.shape[1]

    def parse(self, activation: Activation, width: int, device: torch.device) -> LayerOutput:
        """Return the layer's input on `device`. Raises FrameMalformed."""
        parsed = tuple(
            None if entry is None or tensor is None else entry.parse(tensor, width, device)
            for entry, tensor in zip(self.entries, activation, strict=True)
        )
        if self.bare and parsed[0] is not None:
            return parsed[0]
        return parsed

    def activation(self, output: LayerOutput) -> Activation:
        """Return a layer's output as it crosses the wire."""
        entries = (output,) if isinstance(output, torch.Tensor) else output
        return tuple(
            None if spec is None or entry is None else to_wire(entry)
            for spec, entry in zip(self.entries, entries, strict=True)
        )
