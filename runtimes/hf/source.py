"""A checkpoint directory taken at its own word, where no registry says what should be in it."""

from __future__ import annotations

from pathlib import Path

from runtimes.base import ModelSource
from runtimes.hf.skeleton import build_skeleton


def source_of(path: Path, model_id: str) -> ModelSource:
    """Return the source that a directory with config.json describes.

    Raises:
        CheckpointError: config.json is missing or broken.
        UnsupportedModel: transformers does not know the architecture, or the hf runtime refuses it.

    """
    skeleton = build_skeleton(path, "auto")
    return ModelSource(model_id, path, len(skeleton.layers), type(skeleton.model).__name__)
