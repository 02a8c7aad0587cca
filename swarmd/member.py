"""Member: a host's side of `/swarmd/assign/1`: check the plan, load the block, open the edge, serve."""

from __future__ import annotations

from dataclasses import replace

import trio

from registry.shape import ModelShape
from ring.announcement import BlockHeld, BlockState
from ring.plan import Plan, PlanRefused, check_own, parse_plan, verify_plan
from ring.planner import Stage
from runtimes.base import BlockLimits, LoadProgress, RuntimeFailure
from swarmd.activity import Activity
from swarmd.engine import Engine
from swarmd.facts import OwnFacts
from swarmd.links import Link, LinkLost, RemoteLink
from swarmd.net import Channel, NetError, Node
from swarmd.serving import Serving
from swarmd.view import SwarmView

PROTOCOL = "/swarmd/assign/1"
MAX_MESSAGE = 5 << 20  # bytes: a plan with its inputs
_LEADER_KNOWN_WITHIN = 5.0  # s: a plan may arrive before the announcement of the leader who signed it
_REPORT_EVERY = 0.25  # s between progress messages


class Member:
    """Serves at most one block: that of the newest plan it was told to prepare."""

    def __init__(
        self,
        node: Node,
        view: SwarmView,
        engine: Engine,
        facts: OwnFacts,
        activity: Activity,
        serving: Serving,
    ) -> None:
        self._view = view
        self._engine = engine
        self._facts = facts
        self._activity = activity
        self._ring = serving
        self._peer = node.peer_id
        self._turn = trio.Lock()
        self._current: trio.CancelScope | None = None
        self.shape: ModelShape | None = None
        node.handle(PROTOCOL, self._accept, max_message=MAX_MESSAGE)

    async def _accept(self, channel: Channel) -> None:
        await self.serve(RemoteLink(channel))

    async def serve(self, link: Link) -> None:
        """Hold one conversation with a leader; a newer one ends an older one that is still preparing."""
        try:
            await self._serve(link)
        except LinkLost as error:
            self._activity.note("assignment_lost", str(error), leader=link.peer)

    async def _serve(self, link: Link) -> None:
        message = await link.receive()
        data = message.get("plan")
        if message.get("op") != "prepare" or not isinstance(data, bytes):
            await link.send(
                {"op": "refused", "code": "protocol", "message": "the first message is `prepare`"}
            )
            return
        try:
            plan, stage = await self._checked(data, link)
        except PlanRefused as error:
            self._activity.note("plan_refused", str(error), leader=link.peer)
            await link.send({"op": "refused", "code": error.code, "message": str(error)})
            return
        if self._current is not None:
            self._current.cancel()
        async with self._turn:
            with trio.CancelScope() as scope:
                self._current = scope
                try:
                    await self._prepare(plan, stage, link)
                finally:
                    self._current = None

    async def _checked(self, data: bytes, link: Link) -> tuple[Plan, Stage]:
        plan = parse_plan(data)
        shape = self.shape
        if shape is None:
            raise PlanRefused("shape", "this host has not sized its model yet")
        with trio.move_on_after(_LEADER_KNOWN_WITHIN):
            while (self._view.leader, self._view.term) != (link.peer, plan.body.term):
                seen = self._view.changes.count
                await self._view.changes.wait(seen, at_most=_LEADER_KNOWN_WITHIN)
        leader, term = self._view.leader, self._view.term
        if leader != link.peer:
            raise PlanRefused("leader", f"this host follows {leader or 'nobody yet'}, not {link.peer}")
        await trio.to_thread.run_sync(
            lambda: verify_plan(plan, leader=leader, term=term, shape=shape, swarm=self._view.swarm)
        )
        return plan, check_own(plan, self._peer, self._facts.memory_limit)

    async def _prepare(self, plan: Plan, stage: Stage, link: Link) -> None:
        await self._release("a new plan is being prepared")
        self._hold(plan, stage, "loading", 0, stage.memory_bytes)
        await link.send({"op": "progress", "done": 0, "total": stage.memory_bytes})
        self._activity.note("loading", plan=plan.id, block=f"[{stage.lo}, {stage.hi})")
        try:
            await self._load(plan, stage, link)
        except RuntimeFailure as error:
            self._facts.update(block=None, state="standby")
            self._activity.note("load_failed", str(error), plan=plan.id)
            await link.send({"op": "refused", "code": error.code, "message": str(error)})
            return
        await self._ring.begin(plan, lambda reason: self._broken(plan, reason))
        self._hold(plan, stage, "ready", 1, 1)
        try:
            await link.send({"op": "ready"})
            if await self._told_to_activate(link):
                await self._ring.open_downstream()
                self._serving(plan, stage)
                await link.send({"op": "active"})
                if await self._complete(link):
                    return
            await self._release("the assignment was called off")
        except NetError as error:
            await self._release(str(error))
            await link.send({"op": "refused", "code": error.code, "message": str(error)})
        except LinkLost as error:
            if self._facts.block is None or self._facts.block.state != "serving":
                await self._release(str(error))
            raise

    async def _load(self, plan: Plan, stage: Stage, link: Link) -> None:
        limits = BlockLimits(self._facts.memory_limit, plan.body.context, plan.body.sessions)
        steps, reports = trio.open_memory_channel[LoadProgress](1)

        def report(step: LoadProgress) -> None:
            try:
                steps.send_nowait(step)
            except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the next step says more

        async def pass_on() -> None:
            async for step in reports:
                self._hold(plan, stage, "loading", step.done, step.total)
                try:
                    await link.send({"op": "progress", "done": step.done, "total": step.total})
                except LinkLost:
                    return  # what is loaded will serve the next leader's plan
                await trio.sleep(_REPORT_EVERY)

        failure: RuntimeFailure | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            try:
                await self._engine.load(stage.lo, stage.hi, limits, report)
            except RuntimeFailure as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self._facts.update(memory_free=self._facts.memory_limit - stage.memory_bytes)

    async def _told_to_activate(self, link: Link) -> bool:
        """Wait for the slowest member, however long it takes: the leader ends the link when it gives up or dies."""
        message = await link.receive()
        return message.get("op") == "activate"

    async def _complete(self, link: Link) -> bool:
        """Wait for the other members: the leader ends the link when all are active, or says that it gives up."""
        try:
            await link.receive()
        except LinkLost:
            return True
        return False

    def _serving(self, plan: Plan, stage: Stage) -> None:
        self._hold(plan, stage, "serving", 1, 1)
        self._facts.update(state="member")
        self._activity.note("serving", plan=plan.id, block=f"[{stage.lo}, {stage.hi})")

    def _hold(self, plan: Plan, stage: Stage, state: BlockState, done: int, total: int) -> None:
        held = BlockHeld(plan.id, plan.body.shape.model_id, stage.lo, stage.hi, state, done, total)
        self._facts.update(block=held)

    def _broken(self, plan: Plan, reason: str) -> None:
        """Called by the runner when an edge is lost."""
        block = self._facts.block
        if block is not None and block.plan == plan.id:
            self._activity.note("ring_broken", reason, plan=plan.id)
            self._out_of_ring()

    async def _release(self, reason: str) -> None:
        """End the ring that this host serves, if any."""
        self._out_of_ring()
        await self._ring.end("ring_changed", reason)

    def _out_of_ring(self) -> None:
        """Say that this host serves no ring; its block stays loaded for the next plan to find."""
        if (block := self._facts.block) is not None:
            self._facts.update(block=replace(block, plan="", state="ready"), state="standby")
