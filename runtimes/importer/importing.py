"""Import a model: read the source, write a checkpoint beside the target, check that it loads, put it in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from registry.shape import ModelShape
from runtimes.base import BlockLimits, CheckpointError, LoadProgress, ModelSource, UnsupportedModel
from runtimes.hf.runtime import HfRuntime
from runtimes.hf.skeleton import build_skeleton
from runtimes.importer import directory
from runtimes.importer.checkpoint_writer import new_directory, write_weights
from runtimes.tokenizer import Tokenizer

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_UNLIMITED = 1 << 62  # bytes: the check holds one layer at a time


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has made.

    Attributes:
        path: the checkpoint directory.
        arch: architecture class, `hfArch` of a registry row.
        dtype: torch's name of the dtype in which it is served.
        shape: the model's sizes in that dtype.
        has_chat_template: whether it takes conversations.
        eos_ids: token ids that end a generation.

    """

    path: Path
    arch: str
    dtype: str
    shape: ModelShape
    has_chat_template: bool
    eos_ids: tuple[int, ...]


def import_model(
    source: Path,
    target: Path,
    *,
    model_id: str,
    dtype: str = "auto",
    shard_bytes: int,
    progress: Callable[[LoadProgress], None],
) -> Imported:
    """Make a checkpoint directory of sharded safetensors, complete or not at all.

    Args:
        source: a GGUF file (the first one of several parts), or a directory with one or with safetensors.
        target: must not exist.
        model_id: how the registry will call it.
        dtype: of a GGUF file's weights: "bfloat16", "float16", "float32", or "auto": that of its matrices if
            they are not quantized, else bfloat16. A directory's weights stay as they are, which "auto" says.
        shard_bytes: most bytes of a weight file.
        progress: told before each tensor, in bytes written.

    Raises:
        CheckpointError: the source is missing, truncated, incomplete or broken.
        UnsupportedModel: pickles, an architecture, a quantization or a tokenizer that cannot be imported or served.
        ImportTargetUnusable: the target exists already, or its disk has no room.

    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    gguf_path = _gguf_of(source)
    if gguf_path is None and dtype != "auto":
        raise UnsupportedModel(
            f"{source} is a checkpoint directory, whose weights keep their dtype: leave --dtype out"
        )
    with new_directory(target) as building:
        if gguf_path is not None:
            _from_gguf(gguf_path, building, dtype, shard_bytes, progress)
        else:
            _from_directory(source, building, shard_bytes, progress)
        return _checked(building, target, model_id)


def _gguf_of(source: Path) -> Path | None:
    """Return the GGUF file that is meant, or None for a directory without one."""
    if source.is_file():
        if source.suffix in (".safetensors", ".json"):
            raise CheckpointError(f"{source} is a part of a checkpoint: give the directory that it lies in")
        return source
    if not source.is_dir():
        raise CheckpointError(f"{source} does not exist: give a GGUF file or a checkpoint directory")
    files = sorted(source.glob("*.gguf"))
    if (source / "config.json").is_file() or not files:
        return None
    firsts = [file for file in files if "-of-" not in file.name or "-00001-of-" in file.name]
    if len(firsts) != 1:
        names = ", ".join(file.name for file in files[:5])
        raise CheckpointError(f"{source} holds several GGUF files ({names}): give one of them")
    return firsts[0]


def _from_gguf(
    path: Path, target: Path, dtype: str, shard_bytes: int, progress: Callable[[LoadProgress], None]
) -> None:
    # Needs the optional package gguf.
    from runtimes.importer.gguf_config import config_of
    from runtimes.importer.gguf_file import GgufFile
    from runtimes.importer.gguf_tensors import outgoing_tensors
    from runtimes.importer.gguf_tokenizer import write_tokenizer

    file = GgufFile(path)
    served = _DTYPES.get(dtype) or file.plain_dtype() or torch.bfloat16
    config = config_of(file, served)
    tensors = outgoing_tensors(file, config)
    write_tokenizer(file, target)
    config.save_pretrained(target)
    write_weights(tensors, target, shard_bytes, progress)


def _from_directory(
    source: Path, target: Path, shard_bytes: int, progress: Callable[[LoadProgress], None]
) -> None:
    if not (source / "config.json").is_file():
        raise CheckpointError(f"{source} has neither config.json nor a GGUF file: it is no model")
    tensors = directory.outgoing_tensors(source)
    directory.copy_companions(source, target)
    write_weights(tensors, target, shard_bytes, progress)


def _checked(building: Path, target: Path, model_id: str) -> Imported:
    """Load what was written as a host would, layer by layer, so that nothing comes out wrong on some host later."""
    tokenizer = Tokenizer(building)
    skeleton = build_skeleton(building, "auto")
    vocabulary = skeleton.model.get_input_embeddings().num_embeddings
    if tokenizer.vocab_size > vocabulary:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {vocabulary}: they belong to different models"
        )
    arch, layers = type(skeleton.model).__name__, len(skeleton.layers)
    source = ModelSource(model_id, building, layers, arch)
    runtime = HfRuntime()
    shape = runtime.shape(source)
    borders = sorted(set(range(layers + 1)) - set(shape.sealed_borders))
    for lo, hi in pairwise(borders):
        runtime.load(source, lo, hi, BlockLimits(_UNLIMITED, 1, 1), _tell_nobody)
    return Imported(
        target,
        arch,
        str(skeleton.dtype).removeprefix("torch."),
        shape,
        tokenizer.has_chat_template,
        tuple(sorted(tokenizer.eos_ids)),
    )


def _tell_nobody(_: LoadProgress) -> None:
    """The check's own progress is of no interest: it takes a fraction of the writing."""
