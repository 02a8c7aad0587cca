"""Fixtures of the whole-swarm tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from registry.shape import ModelShape
from runtimes import open_runtime
from runtimes.base import ModelSource


@pytest.fixture(scope="session")
def tale() -> ModelSource:
    """The bundled model."""
    row = load_registry(None, Config().registry.publishers).row("tale")
    return ModelSource(row.id, checkpoint_path(row, None), row.layer_count, row.hf_arch)


@pytest.fixture(scope="session")
def tale_shape(tale: ModelSource) -> ModelShape:
    """Its sizes."""
    return open_runtime("hf").shape(tale)


@pytest.fixture
def swarm_home() -> Iterator[Path]:
    """A directory with a short path: Unix sockets have room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        yield Path(home)
