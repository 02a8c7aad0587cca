"""Write a checkpoint directory: shards of safetensors and their index, complete or not at all."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from runtimes.base import LoadProgress, RuntimeFailure
from runtimes.importer.tensors import OutgoingTensor


class ImportTargetUnusable(RuntimeFailure):
    """The target directory exists, cannot be written, or its disk is full. Choose another with --out, or make room."""

    code: ClassVar[str] = "import_target"


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Give a directory beside `target` that becomes `target` if all goes well, and vanishes if not.

    Raises:
        ImportTargetUnusable: `target` exists already, or cannot be written.

    """
    if target.exists() or target.is_symlink():
        raise ImportTargetUnusable(
            f"{target} exists already: choose another directory with --out, or remove it"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ImportTargetUnusable(f"{target} cannot be written: {error.strerror or error}") from error
    try:
        building.chmod(0o755)
        yield building
        building.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise ImportTargetUnusable(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone already if all went well


def write_weights(
    tensors: Sequence[OutgoingTensor],
    directory: Path,
    shard_bytes: int,
    progress: Callable[[LoadProgress], None],
) -> None:
    """Write all tensors; at most one shard is in memory at a time.

    Args:
        tensors: in the order in which they go to the shards.
        directory: where to.
        shard_bytes: most bytes of a file, unless a single tensor has more.
        progress: told before each tensor.

    Raises:
        ImportTargetUnusable: the disk has no room.

    """
    total = sum(tensor.nbytes for tensor in tensors)
    free = shutil.disk_usage(directory).free
    if total > free:
        raise ImportTargetUnusable(
            f"{directory.parent} has {free:,} bytes free, the checkpoint needs {total:,}: make room or choose --out elsewhere"
        )
    shards = _shards(tensors, shard_bytes)
    weight_map: dict[str, str] = {}
    done = 0
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        held = {}
        for tensor in shard:
            progress(LoadProgress(done, total, tensor.name))
            held[tensor.name] = tensor.read()
            done += tensor.nbytes
        _save(held, directory / file)
        weight_map |= dict.fromkeys(held, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    progress(LoadProgress(total, total, "written"))


def _shards(tensors: Sequence[OutgoingTensor], most: int) -> list[list[OutgoingTensor]]:
    shards: list[list[OutgoingTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > room:
            shards.append([])
            room = most
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return shards


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(0o644)
    except SafetensorError as error:  # the only way in which it tells that a disk is full
        raise ImportTargetUnusable(f"{path.parent.parent} cannot be written: {error}") from error
