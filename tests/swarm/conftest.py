"""Real daemons in their own processes, on loopback, with the bundled model."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from registry.shape import ModelShape
from runtimes import open_runtime
from runtimes.base import ModelSource
from swarmd.demo import tightest_limit
from swarmd.local_swarm import LocalSwarm, local_swarm

CONTEXT = 512
SESSIONS = 2


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


@asynccontextmanager
async def tale_swarm(home: Path, shape: ModelShape, hosts: int) -> AsyncIterator[LocalSwarm]:
    """A swarm in which it takes all hosts to hold the bundled model."""
    limit = tightest_limit(shape, hosts, context=CONTEXT, sessions=SESSIONS)
    settings = {
        "model.context": CONTEXT,
        "model.sessions": SESSIONS,
        "runtime.memory_limit": str(limit),
        "runtime.threads": 1,
        "plan.settle_seconds": 0.5,
        "plan.progress_timeout": 60.0,
    }
    async with local_swarm(home, f"test-{secrets.token_hex(4)}", settings) as swarm:
        for _ in range(hosts):
            await swarm.add()
        await swarm.ring(within=120)
        yield swarm
