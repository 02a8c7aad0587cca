"""torch tensors to wire tensors and back, in every dtype torch has (numpy lacks bfloat16)."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


def part_of(output: LayerOutput | None, part: slice) -> LayerOutput | None:
    """Return some tokens of a layer's output [1, w, …]."""
    if output is None or isinstance(output, torch.Tensor):
        return None if output is None else output[:, part]
    return tuple(None if entry is None else entry[:, part] for entry in output)


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
        return torch.ones(self._shape(width), dtype=self.dtype, device=device)

    def random(self, width: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        """Return a made-up tensor of this kind; integers are ones."""
        if not self.dtype.is_floating_point:
            return self.ones(width, device)
        return torch.randn(self._shape(width), generator=generator).to(self.dtype).to(device)

    def _shape(self, width: int) -> tuple[int, ...]:
        return (*self.lead, width, *self.rest)

    def parse(self, tensor: Tensor, width: int, device: torch.device) -> torch.Tensor:
        """Return the wire tensor on `device`, as a copy.

        Raises:
            FrameMalformed: dtype, shape or size are not what the layer takes.

        """
        shape = self._shape(width)
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
        return self._output(
            None if entry is None or tensor is None else entry.parse(tensor, width, device)
            for entry, tensor in zip(self.entries, activation, strict=True)
        )

    def ones(self, width: int, device: torch.device) -> LayerOutput:
        """Return an input of `width` tokens on `device`."""
        return self._output(None if entry is None else entry.ones(width, device) for entry in self.entries)

    def random(self, width: int, generator: torch.Generator, device: torch.device) -> LayerOutput:
        """Return made-up input of `width` tokens on `device`."""
        return self._output(
            None if entry is None else entry.random(width, generator, device) for entry in self.entries
        )

    def _output(self, entries: Iterable[torch.Tensor | None]) -> LayerOutput:
        made = tuple(entries)
        return made[0] if self.bare and made[0] is not None else made

    def activation(self, output: LayerOutput) -> Activation:
        """Return a layer's output as it crosses the wire."""
        entries = (output,) if isinstance(output, torch.Tensor) else output
        return tuple(
            None if spec is None or entry is None else to_wire(entry)
            for spec, entry in zip(self.entries, entries, strict=True)
        )
