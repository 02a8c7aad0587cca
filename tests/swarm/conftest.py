"""Fixtures of the whole-swarm tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_model import smollm2
from served_swarm import ServedModel
from signed_tale import signed_registry

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from runtimes import open_runtime
from runtimes.base import ModelSource


@pytest.fixture(scope="session")
def tale() -> ModelSource:
    """The bundled model."""
    row = load_registry(None, Config().registry.publishers).row("tale")
    return ModelSource(row.id, checkpoint_path(row, None), row.layer_count, row.hf_arch)


@pytest.fixture(scope="session")
def tale_served(tale: ModelSource) -> ServedModel:
    """The bundled model as every daemon serves it by default."""
    return ServedModel(tale, open_runtime("hf").shape(tale), {}, max_tokens=64, prompts=20)


@pytest.fixture(scope="session")
def smollm2_served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """SmolLM2-135M-Instruct, by a registry of our own."""
    source = smollm2()
    shape = open_runtime("hf").shape(source)
    changes = {
        "id": source.model_id,
        "enginePath": str(source.path),
        "layerCount": source.layer_count,
        "adapter": "generic-hf",
    }
    path, publisher = signed_registry(tmp_path_factory.mktemp("registry"), **changes)
    settings = {
        "registry.path": str(path),
        "registry.publishers": [publisher],
        "model.id": source.model_id,
    }
    return ServedModel(source, shape, settings, max_tokens=32, prompts=4)


@pytest.fixture(scope="session", params=["tale", pytest.param("smollm2", marks=pytest.mark.real_model)])
def served(request: pytest.FixtureRequest) -> ServedModel:
    """The models that the whole-swarm tests run on: the bundled one, and a real one."""
    model: ServedModel = request.getfixturevalue(f"{request.param}_served")
    return model


@pytest.fixture
def swarm_home() -> Iterator[Path]:
    """A directory with a short path: Unix sockets have room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        yield Path(home)
