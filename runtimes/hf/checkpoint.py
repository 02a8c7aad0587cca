"""The safetensors files of a checkpoint, read tensor by tensor. Nothing else is ever read: no pickles, no code."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from runtimes.base import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """A checkpoint directory.

    Args:
        path: directory with model.safetensors, or model.safetensors.index.json and the files that it names.

    Attributes:
        file_of: tensor name → file name.

    Raises:
        CheckpointError: there is neither file, or one cannot be read.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handles: dict[str, Any] = {}
        self.file_of = self._read_index()

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether the directory holds weights at all."""
        return (path / _SINGLE).is_file() or (path / _INDEX).is_file()

    @property
    def listing(self) -> Path:
        """The file that says which tensors there are."""
        index = self.path / _INDEX
        return index if index.is_file() else self.path / _SINGLE

    def tensor(self, name: str, read: Callable[[str, torch.Tensor], None]) -> LazyTensor:
        """Return a tensor that is read when it is asked for; `read` is then called with it.

        Raises:
            CheckpointError: the file is missing, broken or lacks the tensor.

        """
        file = self.file_of[name]
        with _reading(name, self.path / file):
            return LazyTensor(name, self.path / file, self._handle(file).get_slice(name), read)

    def _read_index(self) -> dict[str, str]:
        if not self.exists(self.path):
            raise CheckpointError(f"{self.path} has neither {_SINGLE} nor {_INDEX}: fetch the checkpoint")
        if self.listing.name == _SINGLE:
            return dict.fromkeys(self._handle(_SINGLE).keys(), _SINGLE)
        try:
            files = json.loads(self.listing.read_text("utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.listing} cannot be read as an index: {error!r}") from error
        if not isinstance(files, dict) or not all(
            isinstance(f, str) and Path(f).name == f for f in files.values()
        ):
            raise CheckpointError(
                f"{self.listing}: weight_map must map tensor names to names of files beside it"
            )
        return files

    def _handle(self, file: str) -> Any:
        if file not in self._handles:
            try:
                # pread instead of mmap: weights that were checked stay what they are even if the file changes, and the
                # process's memory is what it seems.
                self._handles[file] = safe_open(
                    self.path / file, framework="pt", device="cpu", backend="pread"
                )
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{self.path / file} cannot be opened: {error}") from error
        return self._handles[file]


class LazyTensor:
    """A tensor of a file that transformers reads with [...] once it needs it."""

    def __init__(
        self, name: str, file: Path, content: Any, read: Callable[[str, torch.Tensor], None]
    ) -> None:
        self._name = name
        self._file = file
        self._content = content
        self._read = read

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read (a part of) the tensor."""
        with _reading(self._name, self._file):
            tensor: torch.Tensor = self._content[index]
        self._read(self._name, tensor)
        return tensor

    def get_shape(self) -> list[int]:
        """Return the shape as the file's header says it."""
        return list(self._content.get_shape())

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data, as the file's header says it."""
        bits = re.match(
            r"[A-Z]+(\d+)", str(self._content.get_dtype())
        )  # "BF16", "F8_E4M3"; "BOOL" has a byte each
        return math.prod(self.get_shape()) * (int(bits[1]) if bits else 8) // 8


@contextmanager
def _reading(name: str, file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: tensor {name} cannot be read: {error}") from error
