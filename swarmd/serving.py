"""Serving: the ring that this host serves a block of: its stage, and at the head its coordinator."""

from __future__ import annotations

from collections.abc import Callable

import trio

from conf.schema import Config
from ring.identity import PeerId
from ring.plan import Plan
from runtimes.tokenizer import Tokenizer
from swarmd.coordinator import Coordinator
from swarmd.edges import Acceptor, EdgeRole, EdgeServer
from swarmd.engine import Engine
from swarmd.facts import OwnFacts
from swarmd.learning import Learning
from swarmd.net import Node
from swarmd.stage_runner import StageRunner
from swarmd.state_dir import HostKey

_IDLE_FACTOR = 2  # a stage frees a silent session later than its coordinator gives it up


class Serving:
    """At most one ring at a time."""

    def __init__(
        self,
        config: Config,
        key: HostKey,
        node: Node,
        engine: Engine,
        facts: OwnFacts,
        learning: Learning,
    ) -> None:
        self._progress_timeout = config.plan.progress_timeout
        self._key = key
        self._node = node
        self._engine = engine
        self._facts = facts
        self._learning = learning
        self._nursery: trio.Nursery | None = None
        self._runner: StageRunner | None = None
        self.coordinator: Coordinator | None = None
        EdgeServer(node, self._acceptor_for)

    async def run(self) -> None:
        """Hold the stage's tasks for as long as the daemon lives."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def begin(self, plan: Plan, on_broken: Callable[[str], None]) -> None:
        """Take frames of a plan's ring; on_broken(reason) is called if the ring is lost.

        Raises:
            runtimes.tokenizer.TokenizerError: this host is the head, and the model's tokenizer cannot be read.

        """
        if self._nursery is None:
            raise RuntimeError("Serving.run() must be running first")
        await self.end("ring_changed", "a new plan took its place")
        runner = StageRunner(
            plan,
            self._node,
            self._engine,
            self._key,
            self._learning,
            on_sessions=lambda count: self._facts.update(sessions=count),
            on_broken=on_broken,
            idle_seconds=_IDLE_FACTOR * self._progress_timeout,
        )
        if plan.head == self._node.peer_id:
            tokenizer = await trio.to_thread.run_sync(Tokenizer, self._engine.source.path)
            self.coordinator = Coordinator(plan, tokenizer, runner.submit, self._progress_timeout)
            runner.deliver = self.coordinator.deliver
        self._runner = runner
        self._nursery.start_soon(runner.run)

    async def open_downstream(self) -> None:
        """Open the edge to the next stage. Raises NetError."""
        if self._runner is not None:
            await self._runner.open_downstream()

    async def end(self, code: str, reason: str) -> None:
        """Serve no ring any more; its sessions end with `code`."""
        runner, self._runner, self.coordinator = self._runner, None, None
        if runner is not None:
            await runner.close(code, reason)

    def _acceptor_for(self, plan: str, role: EdgeRole, peer: PeerId) -> Acceptor | None:
        """Take an edge only for the plan being served, and only from the host that the plan puts there."""
        runner = self._runner
        if runner is None or runner.broken or runner.plan.id != plan:
            return None
        expected = runner.expected_upstream if role == "forward" else runner.expected_return
        return runner if peer == expected else None
