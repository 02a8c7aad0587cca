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


def cut_output(output: LayerOutput | None, width: int) -> LayerOutput | None:
    """Return the first `width` tokens of a layer's output, of which [1, w, …] is the shape in every model of a trail."""
    if output is None or isinstance(output, torch.Tensor):
        return None if output is None else output[:, :width]
    return tuple(None if entry is None else entry[:, :width] for entry in output)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of w tokens: dtype, and the dimensions before and after w: (*lead, w, *rest)."""

    dtype: torch.dtype
    rest: tuple[int, ...]
    lead: tuple[int, ...] = (1,)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.dtype.itemsize * math.prod(self.rest) * math.prod(self.lead)

    def ones(self, width: int, device: torch.device) -> torch.Tensor:
        """Return a tensor of this kind."""
        return torch.ones(*self.lead, width, *self.rest, dtype=self.dtype, device=device)

    def parse(self, tensor: Tensor, width: int, device: torch.device) -> torch.Tensor:
        """Return the wire tensor on `device`, as a copy.

        Raises:
            FrameMalformed: dtype, shape or size are not what the layer takes.

        """
        shape = (*self.lead, width, *self.rest)
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
        first, spec = next((t, e) for t, e in zip(activation, self.entries, strict=True) if t and e)
        axis = len(spec.lead)
        if len(first.shape) <= axis or first.shape[axis] < 1:
            begin = ", ".join(str(size) for size in spec.lead)
            raise FrameMalformed(
                f"an activation tensor has shape {tuple(first.shape)}; it must begin with ({begin}, width)"
            )
        return first.shape[axis]

    def parse(self, activation: Activation, width: int, device: torch.device) -> LayerOutput:
        """Return the layer's input on `device`. Raises FrameMalformed."""
        parsed = tuple(
            None if entry is None or tensor is None else entry.parse(tensor, width, device)
            for entry, tensor in zip(self.entries, activation, strict=True)
        )
        if self.bare and parsed[0] is not None:
            return parsed[0]
        return parsed

    def random(self, width: int, generator: torch.Generator, device: torch.device) -> LayerOutput:
        """Return made-up input of `width` tokens on `device`."""
        made = tuple(
            None
            if entry is None
            else (entry.ones(width, torch.device("cpu")) * _noise(entry, width, generator)).to(device)
            for entry in self.entries
        )
        return made[0] if self.bare and made[0] is not None else made

    def activation(self, output: LayerOutput) -> Activation:
        """Return a layer's output as it crosses the wire."""
        entries = (output,) if isinstance(output, torch.Tensor) else output
        return tuple(
            None if spec is None or entry is None else to_wire(entry)
            for spec, entry in zip(self.entries, entries, strict=True)
        )


def _noise(spec: TensorSpec, width: int, generator: torch.Generator) -> torch.Tensor:
    shape = (*spec.lead, width, *spec.rest)
    return (
        torch.randn(shape, generator=generator).to(spec.dtype)
        if spec.dtype.is_floating_point
        else torch.ones(shape, dtype=spec.dtype)
    )
