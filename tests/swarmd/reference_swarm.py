"""Daemons in this very process with the torch-free reference runtime: fast, with real sockets between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from nacl.signing import SigningKey

from conf.load import load
from registry.models import checkpoint_path, load_registry
from registry.signed import sign_document
from runtimes.base import ModelSource
from swarmd.control import ControlServer
from swarmd.daemon import Daemon
from swarmd.net import Node, open_node
from swarmd.state_dir import StateDir

if TYPE_CHECKING:
    from trio_typing import TaskStatus

LAYERS, CONTEXT, SESSIONS = 6, 128, 2
PUBLISHER = SigningKey(b"p" * 32)
BUNDLED_TALE = Path(load_registry.__code__.co_filename).parent / "bundled" / "tale"


def reference_model(home: Path) -> tuple[Path, str]:
    """Write a reference model and a registry that names it; return the registry's path and its publisher's key."""
    model = home / "model"
    model.mkdir()
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
    ):
        shutil.copy(BUNDLED_TALE / name, model / name)
    config = {"layers": LAYERS, "vocab": 2048, "hidden": 16, "context": 1024, "seed": "tests"}
    (model / "reference.json").write_text(json.dumps({**config, "arch": "ReferenceForCausalLM"}))
    row = {
        "id": "ref",
        "hfArch": "ReferenceForCausalLM",
        "workerModel": "ref",
        "enginePath": str(model),
        "layerCount": LAYERS,
        "gbPerLayer": 0.0,
        "kvGbPerLayer": 0.0,
        "quant": "int64",
        "adapter": "hf",
        "tokenizerId": str(model),
        "chatTemplate": None,
        "weightManifestCid": "",
        "defaults": {"K": 4, "depth": 2, "draftCtx": 128},
    }
    document = sign_document({"schema": "shard-models/1", "version": 1, "models": [row]}, PUBLISHER)
    path = home / "models.json"
    path.write_text(json.dumps(document))
    return path, str(document["publisher_pubkey"])


@dataclass(slots=True)
class RunningDaemon:
    """A daemon that listens. scope: cancel it to let the daemon leave."""

    node: Node
    daemon: Daemon
    socket: Path
    scope: trio.CancelScope


class ReferenceSwarm:
    """Starts daemons of one swarm; all end with the context of reference_swarm()."""

    def __init__(self, home: Path, nursery: trio.Nursery) -> None:
        self._home = home
        self._nursery = nursery
        self._registry, self._publisher = reference_model(home)
        self.running: list[RunningDaemon] = []
        self._count = 0

    async def add(self, **settings: Any) -> RunningDaemon:
        """Start a daemon that joins through those that run. settings: section__key="value"."""
        self._count += 1
        started: RunningDaemon = await self._nursery.start(
            self._run, self._home / f"d{self._count}", settings
        )
        self.running.append(started)
        return started

    async def _run(
        self, home: Path, settings: dict[str, Any], task_status: TaskStatus[RunningDaemon]
    ) -> None:
        bootstrap = [address for other in self.running for address in other.node.addresses()]
        flags = {
            "swarm.name": "reference",
            "swarm.listen": "/ip4/127.0.0.1/tcp/0",
            "swarm.mdns": "false",
            "swarm.bootstrap": ",".join(bootstrap),
            "state.dir": str(home),
            "model.id": "ref",
            "model.context": str(CONTEXT),
            "model.sessions": str(SESSIONS),
            "runtime.name": "reference",
            "registry.path": str(self._registry),
            "registry.publishers": self._publisher,
            "plan.settle_seconds": "0.3",
            **{name.replace("__", "."): str(value) for name, value in settings.items()},
        }
        loaded = load(flags=flags, environ={"HOME": str(home)}, file=None, cwd=home.parent)
        config = loaded.config
        state = StateDir.prepare(loaded.state_dir)
        row = load_registry(config.registry.path, config.registry.publishers).row(config.model.id)
        source = ModelSource(row.id, checkpoint_path(row, None), row.layer_count, row.hf_arch)
        key = state.host_key()
        with trio.CancelScope() as scope:
            async with (
                ControlServer.claimed(state.path) as server,
                open_node(bytes(key.signing_key), config.swarm.listen) as node,
            ):
                daemon = Daemon(config, state, key, state.next_incarnation(), node, row, source)
                running = RunningDaemon(node, daemon, server.path, scope)
                await daemon.run(server, lambda: task_status.started(running))


@asynccontextmanager
async def reference_swarm(home: Path) -> AsyncIterator[ReferenceSwarm]:
    """Make an empty swarm; its daemons end with the block."""
    async with trio.open_nursery() as nursery:
        yield ReferenceSwarm(home, nursery)
        nursery.cancel_scope.cancel()
