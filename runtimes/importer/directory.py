"""A checkpoint directory as the source of another one: safetensors only, and only what a checkpoint consists of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from runtimes.base import CheckpointError, UnsupportedModel
from runtimes.hf.checkpoint import Checkpoint
from runtimes.importer.tensors import OutgoingTensor

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "LICENSE*",
    "NOTICE*",
    "README.md",
)


def outgoing_tensors(source: Path) -> list[OutgoingTensor]:
    """Return all tensors of a checkpoint directory.

    Raises:
        CheckpointError: there are no safetensors, or they cannot be read.
        UnsupportedModel: there are pickles only.

    """
    if not Checkpoint.exists(source) and (pickles := sorted(f for p in _PICKLES for f in source.glob(p))):
        raise UnsupportedModel(
            f"{source} holds its weights as pickles ({pickles[0].name} …), which can run code when they are read: "
            "fetch the model's safetensors"
        )
    checkpoint = Checkpoint(source)
    return [_outgoing(checkpoint, name) for name in checkpoint.file_of]


def copy_companions(source: Path, target: Path) -> None:
    """Copy configuration, tokenizer, chat template and licence; make tokenizer.json if there is none.

    Raises:
        CheckpointError: there is no tokenizer, or it cannot be read.

    """
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
    if not (target / "tokenizer.json").is_file():
        _make_fast_tokenizer(source, target)
    if not (target / "generation_config.json").is_file():
        _write_generation_config(target)


def _outgoing(checkpoint: Checkpoint, name: str) -> OutgoingTensor:
    lazy = checkpoint.tensor(name, lambda *_: None)
    return OutgoingTensor(name, lazy.nbytes, lambda: lazy[...])


def _make_fast_tokenizer(source: Path, target: Path) -> None:
    try:
        AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False).save_pretrained(
            target
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise CheckpointError(
            f"{source} has no tokenizer.json, and none can be made of its other files: {reason}"
        ) from error


def _write_generation_config(target: Path) -> None:
    """Say what ends a generation, as far as the configuration says it."""
    try:
        config: dict[str, Any] = json.loads((target / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{target / 'config.json'} cannot be read: {error}") from error
    ids = {
        name: config[name]
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if config.get(name) is not None
    }
    (target / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", "utf-8")
