"""A swarm of real daemons in their own processes, on loopback, with the bundled model."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from registry.shape import ModelShape
from swarmd.demo import tightest_limit
from swarmd.local_swarm import LocalSwarm, local_swarm

CONTEXT = 512
SESSIONS = 2


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
