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
_CHANNELS = 2  # of one peer: a leader's last plan and its next
_FIRST_WITHIN = 10.0  # s
_LEADER_KNOWN_WITHIN = 5.0  # s: a plan may arrive before the announcement of the leader who signed it
_LEAST_TIMED = 16 << 20  # bytes: loading less than this says nothing about how fast a host loads
_REPORT_EVERY = 0.25  # s between progress messages


class _Superseded(Exception):
    """A newer plan has come, or the leader has called this one off."""


class Member:
    """Serves at most one block: that of the newest plan (term, number) that it was told to prepare."""

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
        self._serving = serving
        self._peer = node.peer_id
        self._turn = trio.Lock()
        self._newest = (0, 0)
        self._preparing = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self.shape: ModelShape | None = None
        node.handle(PROTOCOL, self._accept, max_message=MAX_MESSAGE, max_channels_per_peer=_CHANNELS)

    async def run(self) -> None:
        """Hold the conversations of this host with itself for as long as the daemon lives."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def converse(self, link: Link) -> None:
        """Start a conversation with the leader in this very process."""
        if self._nursery is None:
            raise RuntimeError("Member.run() must be running first")
        self._nursery.start_soon(self.serve, link)

    async def _accept(self, channel: Channel) -> None:
        await self.serve(RemoteLink(channel))

    async def serve(self, link: Link) -> None:
        """Hold one conversation with a leader. A newer plan ends an older one that is not active yet."""
        try:
            await self._serve(link)
        except LinkLost as error:
            self._activity.note("assignment_lost", str(error), leader=link.peer)
        finally:
            with trio.CancelScope(shield=True):
                await link.close()

    async def _serve(self, link: Link) -> None:
        with trio.move_on_after(_FIRST_WITHIN) as patience:
            message = await link.receive()
        data = None if patience.cancelled_caught else message.get("plan")
        if not isinstance(data, bytes) or message.get("op") != "prepare":
            await _refuse(link, "protocol", "the first message is `prepare`, within 10 s")
            return
        try:
            plan, stage = await self._checked(data, link)
            await self._take_turn(plan, stage, link)
        except PlanRefused as error:
            self._activity.note("plan_refused", str(error), leader=link.peer)
            await _refuse(link, error.code, str(error))
        except _Superseded as error:
            await _refuse(link, "superseded", str(error))

    async def _checked(self, data: bytes, link: Link) -> tuple[Plan, Stage]:
        plan = await trio.to_thread.run_sync(parse_plan, data)
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

    async def _take_turn(self, plan: Plan, stage: Stage, link: Link) -> None:
        """Prepare the plan once those before it have made way. Raises _Superseded."""
        number = (plan.body.term, plan.body.number)
        if number <= self._newest:
            raise _Superseded(f"plan {self._newest} of this leader has come already")
        self._newest = number
        self._preparing.cancel()
        await _report(link, 0, stage)
        async with self._turn:
            if number != self._newest:
                raise _Superseded("a newer plan has come")
            with trio.CancelScope() as self._preparing:
                await self._prepare(plan, stage, link)
            if self._preparing.cancelled_caught:
                raise _Superseded("a newer plan has come, or this one was called off")

    async def _prepare(self, plan: Plan, stage: Stage, link: Link) -> None:
        """Load, take edges, open ours. However this ends short of serving, the host is left in no ring."""
        served = False
        try:
            await self._out_of_ring("a new plan is being prepared")
            self._hold(plan, stage, "loading", 0, stage.memory_bytes)
            self._activity.note("loading", plan=plan.id, block=f"[{stage.lo}, {stage.hi})")
            await self._load(plan, stage, link)
            await self._serving.begin(plan, lambda reason: self._broken(plan, reason))
            self._hold(plan, stage, "ready", 1, 1)
            await link.send({"op": "ready"})
            served = await self._told_to_activate(link) and await self._activate(plan, stage, link)
        except RuntimeFailure as error:
            self._activity.note("load_failed", str(error), plan=plan.id)
            await _refuse(link, error.code, str(error))
        except NetError as error:
            await _refuse(link, error.code, str(error))
        finally:
            if not served:
                with trio.CancelScope(shield=True):
                    await self._out_of_ring("the assignment was called off")

    async def _load(self, plan: Plan, stage: Stage, link: Link) -> None:
        """Load the block, and say how far it is. Raises RuntimeFailure."""
        limits = BlockLimits(self._facts.memory_limit, plan.body.context, plan.body.sessions)
        last = LoadProgress(0, stage.memory_bytes, "")

        def report(step: LoadProgress) -> None:
            nonlocal last
            last = step

        async def pass_on() -> None:
            while True:
                await trio.sleep(_REPORT_EVERY)
                self._hold(plan, stage, "loading", last.done, last.total)
                try:
                    await link.send({"op": "progress", "done": last.done, "total": last.total})
                except LinkLost:
                    return  # what is loaded will serve the next leader's plan

        failure: RuntimeFailure | None = None
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            nursery.start_soon(self._heed, link)
            try:
                await self._engine.load(stage.lo, stage.hi, limits, report)
            except RuntimeFailure as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self._facts.update(memory_free=self._facts.memory_limit - stage.memory_bytes)
        if stage.load_bytes >= _LEAST_TIMED:
            seconds = max(trio.current_time() - began, 1e-3)
            self._facts.update(load_rate=round(stage.load_bytes / seconds))

    async def _heed(self, link: Link) -> None:
        """While loading: the leader has nothing to say but that it calls the plan off."""
        try:
            await link.receive()
        except LinkLost:
            return  # it may be a new leader who wants the same block
        self._preparing.cancel()

    async def _told_to_activate(self, link: Link) -> bool:
        """Wait for the slowest member, however long it takes: the leader ends the link when it gives up or dies."""
        message = await link.receive()
        return message.get("op") == "activate"

    async def _activate(self, plan: Plan, stage: Stage, link: Link) -> bool:
        """Open the edge and serve; returns False if the leader calls the plan off before all members have. Raises NetError."""
        await self._serving.open_downstream()
        self._hold(plan, stage, "serving", 1, 1)
        self._facts.update(state="member")
        self._activity.note("serving", plan=plan.id, block=f"[{stage.lo}, {stage.hi})")
        await link.send({"op": "active"})
        try:
            await link.receive()
        except LinkLost:
            return True  # the leader ends the link when all are active
        return False

    def _hold(self, plan: Plan, stage: Stage, state: BlockState, done: int, total: int) -> None:
        held = BlockHeld(plan.id, plan.body.shape.model_id, stage.lo, stage.hi, state, done, total)
        self._facts.update(block=held)

    def _broken(self, plan: Plan, reason: str) -> None:
        """Called by the stage's runner when an edge is lost."""
        block = self._facts.block
        if block is not None and block.plan == plan.id:
            self._activity.note("ring_broken", reason, plan=plan.id)
            self._announce_no_ring()

    async def _out_of_ring(self, reason: str) -> None:
        """End the ring that this host serves, if any."""
        self._announce_no_ring()
        await self._serving.end("ring_changed", reason)

    def _announce_no_ring(self) -> None:
        """Say that this host serves no ring; a block that is loaded stays for the next plan to find."""
        block, held = self._facts.block, self._engine.held
        if block is None or held is None:
            self._facts.update(block=None, state="standby", memory_free=self._facts.memory_limit)
        else:
            left = replace(block, plan="", lo=held.lo, hi=held.hi, state="ready", loaded=1, total=1)
            self._facts.update(block=left, state="standby")


async def _refuse(link: Link, code: str, message: str) -> None:
    await link.send({"op": "refused", "code": code, "message": message})


async def _report(link: Link, done: int, stage: Stage) -> None:
    await link.send({"op": "progress", "done": done, "total": stage.memory_bytes})
