"""Assigner: the leader's side of `/swarmd/assign/1`: the shell around ring.assignment for one plan at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from ring.assignment import Abort, Action, Activate, Assignment, Cancel, Complete, Prepare

from ring.identity import PeerId
from ring.plan import Plan
from swarmd.changes import Changes
from swarmd.links import Link, LinkLost, RemoteLink, local_pair
from swarmd.member import PROTOCOL, Member, max_message
from swarmd.net import NetError, Node
from swarmd.view import SwarmView

_TICK = 0.5  # s
_OPEN_WITHIN = 10.0  # s


class Assigner:
    """Gets the members of a plan to load and to activate, or says who is to blame."""

    def __init__(self, node: Node, view: SwarmView, member: Member, progress_seconds: float) -> None:
        self._node = node
        self._view = view
        self._member = member
        self._progress_seconds = progress_seconds

    async def assign(self, plan: Plan) -> Complete | Abort:
        """Carry a plan out. Ends when it is active, or when a member refuses, is lost or stops making progress."""
        machine = Assignment(
            plan.id, [stage.peer for stage in plan.stages], progress_seconds=self._progress_seconds
        )
        round_ = _Round(self, plan, machine)
        return await round_.run()

    @asynccontextmanager
    async def link_to(self, peer: PeerId) -> AsyncIterator[Link]:
        """Open a link to a member, which may be this very host."""
        if peer == self._node.peer_id:
            near, far = local_pair(peer)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._member.serve, far)
                try:
                    yield near
                finally:
                    near.close()
            return
        with trio.fail_after(_OPEN_WITHIN):
            channel = await self._node.open(peer, PROTOCOL, max_message=max_message())
        async with channel:
            yield RemoteLink(channel)

    def gone(self, peer: PeerId) -> bool:
        """Return whether the swarm holds a host for dead or left."""
        return self._view.announcement(peer) is None

    def still_leading(self, plan: Plan) -> bool:
        """Return whether this host may still carry the plan out."""
        return self._view.is_leader and self._view.term == plan.body.term


class _Round:
    """One plan's assignment: a task per member feeds the machine, whose actions wake the tasks."""

    def __init__(self, assigner: Assigner, plan: Plan, machine: Assignment) -> None:
        self._assigner = assigner
        self._plan = plan
        self._machine = machine
        self._members = [stage.peer for stage in plan.stages]
        self._changes = Changes()
        self._prepare: set[PeerId] = set()
        self._activate: set[PeerId] = set()
        self._cancel: set[PeerId] = set()
        self._outcome: Complete | Abort | None = None

    async def run(self) -> Complete | Abort:
        async with trio.open_nursery() as nursery:
            self._apply(self._machine.start(trio.current_time()))
            for peer in sorted(self._prepare):
                nursery.start_soon(self._attend, peer)
            while self._outcome is None:
                seen = self._changes.count
                self._look_around()
                if self._outcome is None:
                    await self._changes.wait(seen, at_most=_TICK)
        return self._outcome

    def _look_around(self) -> None:
        now = trio.current_time()
        if not self._assigner.still_leading(self._plan):
            self._apply(self._machine.superseded("this host leads no longer", now))
        for peer in self._members:
            if self._assigner.gone(peer):
                self._apply(self._machine.lost(peer, "it left the swarm", now))
        self._apply(self._machine.tick(now))

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Prepare(peer=peer):
                    self._prepare.add(peer)
                case Activate(peer=peer):
                    self._activate.add(peer)
                case Cancel(peer=peer):
                    self._cancel.add(peer)
                case Complete() | Abort():
                    self._outcome = action
        if actions:
            self._changes.notify()

    async def _attend(self, peer: PeerId) -> None:
        try:
            async with self._assigner.link_to(peer) as link:
                await link.send({"op": "prepare", "plan": self._plan.to_json_bytes()})
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, link, nursery.cancel_scope)
                    await self._instruct(link, nursery.cancel_scope)
        except (LinkLost, NetError, trio.TooSlowError) as error:
            self._apply(self._machine.lost(peer, str(error) or "it does not answer", trio.current_time()))
        except ExceptionGroup as group:
            lost, rest = group.split((LinkLost, NetError))
            if rest is not None:
                raise rest from None
            self._apply(self._machine.lost(peer, str(lost), trio.current_time()))

    async def _instruct(self, link: Link, listening: trio.CancelScope) -> None:
        """Pass on what the machine decides for this member, until the round is over."""
        activated = False
        while True:
            seen = self._changes.count
            if link.peer in self._cancel:
                await link.send({"op": "cancel", "reason": "the assignment was aborted"})
                listening.cancel()
                return
            if link.peer in self._activate and not activated:
                activated = True
                await link.send({"op": "activate"})
            if self._outcome is not None:
                listening.cancel()
                return
            await self._changes.wait(seen, at_most=_TICK)

    async def _listen(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            while True:
                self._hear(link.peer, await link.receive())
        except LinkLost as error:
            self._apply(self._machine.lost(link.peer, str(error), trio.current_time()))
            scope.cancel()

    def _hear(self, peer: PeerId, message: dict[str, object]) -> None:
        now = trio.current_time()
        match message:
            case {"op": "progress", "done": int(done), "total": int(total)}:
                self._apply(self._machine.progress(peer, done, total, now))
            case {"op": "ready"}:
                self._apply(self._machine.ready(peer, now))
            case {"op": "active"}:
                self._apply(self._machine.activated(peer, now))
            case {"op": "refused", "code": str(code), "message": str(text)}:
                self._apply(self._machine.refused(peer, code, text[:500], now))
            case _:
                self._apply(self._machine.refused(peer, "protocol", "it sent an unknown message", now))
