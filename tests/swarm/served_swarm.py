"""A swarm of real daemons in their own processes, on loopback."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.shape import ModelShape
from runtimes.base import ModelSource
from swarmd.demo import tightest_limit
from swarmd.local_swarm import LocalSwarm, local_swarm

CONTEXT = 512
SESSIONS = 2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a swarm serves.

    Attributes:
        source: where it is.
        shape: its sizes.
        settings: what the daemons must be told to serve it.
        max_tokens: how long the texts of a test are; a real model takes its time.
        prompts: how many prompts of a test's list to try.

    """

    source: ModelSource
    shape: ModelShape
    settings: Mapping[str, Any]
    max_tokens: int
    prompts: int


@asynccontextmanager
async def swarm_of(home: Path, served: ServedModel, hosts: int) -> AsyncIterator[LocalSwarm]:
    """A swarm in which it takes all hosts to hold the model."""
    limit = tightest_limit(served.shape, hosts, context=CONTEXT, sessions=SESSIONS)
    settings = {
        **served.settings,
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
