"""A model in GGUF, of one file or of several parts: its metadata and its tensors, dequantized a few rows at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from runtimes.base import CheckpointError, RuntimeFailure, UnsupportedModel

try:
    import gguf
except ImportError as error:
    raise RuntimeFailure("reading GGUF files needs the package gguf: pip install 'swarmd[import]'") from error

_MAGIC = b"GGUF"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_SLICE = (
    1 << 22
)  # elements dequantized at once; in float32 and with the temporaries of some formats about 100 MB
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF files do."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class GgufFile:
    """A GGUF model. Nothing but its metadata is read until a tensor is asked for.

    Args:
        path: the file, or the first of several parts NAME-00001-of-0000N.gguf, which lie side by side.

    Raises:
        CheckpointError: a file is missing, truncated or no GGUF.
        UnsupportedModel: a tensor is in a format that the gguf package does not know.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        readers = [_open(part) for part in _parts(path)]
        self._fields = readers[0].fields
        self._tensors: dict[str, Any] = {
            tensor.name: tensor for reader in readers for tensor in reader.tensors
        }
        self._check_count()
        for tensor in self._tensors.values():
            self._check_format(tensor)

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, as GGUF has them ("blk.0.attn_q.weight")."""
        return frozenset(self._tensors)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all metadata."""
        return frozenset(self._fields)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value: a number, a text, a truth value or a list of these.

        Raises:
            CheckpointError: it cannot be decoded.

        """
        if key not in self._fields:
            return default
        field = self._fields[key]
        try:
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            return [] if is_array and not len(field.data) else field.contents()
        except (ValueError, IndexError) as error:
            raise CheckpointError(f"{self.path}: the metadata {key} cannot be decoded: {error}") from error

    def require(self, key: str) -> Any:
        """Return a metadata value. Raises CheckpointError if there is none."""
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.path} lacks the metadata {key}: convert the model to GGUF again")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, slowest dimension first, as torch has it."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def plain_dtype(self) -> torch.dtype | None:
        """Return the dtype of all matrices, or None if any is quantized or they differ."""
        kinds = {t.tensor_type.name for t in self._tensors.values() if len(t.shape) > 1}
        return _PLAIN.get(kinds.pop()) if len(kinds) == 1 else None

    def read(self, name: str, dtype: torch.dtype, index: int | None = None) -> torch.Tensor:
        """Return a tensor, or its part [index], dequantized.

        Beside the result it holds a slice of rows in float32.
        """
        tensor = self._tensors[name]
        stored, shape = tensor.data, self.shape(name)
        if index is not None:
            stored, shape = stored[index], shape[1:]
        rows = stored.reshape(-1, stored.shape[-1])
        result = torch.empty(rows.shape[0], shape[-1], dtype=dtype)
        step = max(1, _SLICE // shape[-1])
        for start in range(0, rows.shape[0], step):
            values = gguf.dequantize(rows[start : start + step], tensor.tensor_type)
            result[start : start + step] = torch.from_numpy(values.copy())
        return result.reshape(shape)

    def _check_count(self) -> None:
        declared = self.get("split.tensors.count")
        if declared is not None and declared != len(self._tensors):
            raise CheckpointError(
                f"{self.path}: its parts hold {len(self._tensors)} tensors, {declared} are declared: fetch all parts again"
            )

    def _check_format(self, tensor: Any) -> None:
        """Try the format on a tensor's first row, so that nothing is refused half-way through."""
        try:
            gguf.dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: tensor {tensor.name} is stored as {tensor.tensor_type.name}, which cannot be dequantized: "
                "use a file in another quantization"
            ) from error


class _CheckedReader(gguf.GGUFReader):  # type: ignore[misc]  # the package has no types here
    """Refuses to look past the end of the file, where the package would find empty arrays for as long as a count says."""

    def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **named: Any) -> Any:
        found = super()._get(offset, dtype, count, *rest, **named)
        if len(found) < int(count):
            raise ValueError("it ends too early")
        return found


def _open(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: fetch it")
    if not is_gguf(path):
        raise CheckpointError(f"{path} is no GGUF file: it does not begin with the letters GGUF")
    try:
        return _CheckedReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        if "GGMLQuantizationType" in str(error):
            raise UnsupportedModel(
                f"{path}: a tensor is in a format that gguf {_version()} does not know: {error}"
            ) from error
        raise CheckpointError(f"{path} cannot be read as GGUF, it is truncated or broken: {error}") from error


def _version() -> str:
    from importlib.metadata import version

    return version("gguf")


def _parts(path: Path) -> Iterator[Path]:
    """Yield the file itself, or all parts of which it is the first."""
    match = _PART.fullmatch(path.name)
    if match is None:
        yield path
        return
    if int(match["number"]) != 1:
        raise CheckpointError(
            f"{path} is not the first part of its model: give the one that is called …-00001-of-{match['count']}.gguf"
        )
    for number in range(1, int(match["count"]) + 1):
        yield path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")
