"""Assigner: the leader's side of `/swarmd/assign/1`: the shell around ring.assignment, one plan at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from ring.assignment import (
    Aborted,
    Activate,
    Assignment,
    AssignmentAction,
    AssignmentTimeouts,
    Cancel,
    Completed,
    Prepare,
)
from ring.identity import PeerId
from ring.plan import Plan
from swarmd.changes import Changes
from swarmd.links import Link, LinkLost, RemoteLink, local_pair
from swarmd.member import MAX_MESSAGE, PROTOCOL, Member
from swarmd.net import NetError, Node
from swarmd.view import SwarmView

_TICK = 0.5  # s


class Assigner:
    """Gets the members of a plan to load and to activate, or says who is to blame."""

    def __init__(self, node: Node, view: SwarmView, member: Member, progress_seconds: float) -> None:
        self.node = node
        self.view = view
        self.member = member
        self._timeouts = AssignmentTimeouts(progress_seconds=progress_seconds)

    async def assign(self, plan: Plan) -> Completed | Aborted:
        """Carry a plan out. Ends when it is active, or when a member refuses, is lost or stops making progress."""
        return await _Round(self, plan, self._timeouts).run()


class _Round:
    """One plan's assignment: a task per member feeds the machine, whose decisions the tasks pass on."""

    def __init__(self, assigner: Assigner, plan: Plan, timeouts: AssignmentTimeouts) -> None:
        self._assigner = assigner
        self._plan = plan
        self._members = [stage.peer for stage in plan.stages]
        self._machine = Assignment(plan.id, self._members, timeouts)
        self._changes = Changes()
        self._activate: set[PeerId] = set()
        self._cancel: set[PeerId] = set()
        self._outcome: Completed | Aborted | None = None

    async def run(self) -> Completed | Aborted:
        async with trio.open_nursery() as nursery:
            for action in self._machine.start(trio.current_time()):
                if isinstance(action, Prepare):
                    nursery.start_soon(self._attend, action.peer)
            while self._outcome is None:
                seen = self._changes.count
                self._look_around()
                if self._outcome is None:
                    await self._changes.wait(seen, at_most=_TICK)
        return self._outcome

    def _look_around(self) -> None:
        view = self._assigner.view
        if not view.is_leader or view.term != self._plan.body.term:
            self._apply(self._machine.superseded("this host leads no longer"))
        for peer in self._members:
            if view.announcement(peer) is None:
                self._apply(self._machine.lost(peer, "it left the swarm"))
        self._apply(self._machine.tick(trio.current_time()))

    def _apply(self, actions: Sequence[AssignmentAction]) -> None:
        for action in actions:
            match action:
                case Activate(peer=peer):
                    self._activate.add(peer)
                case Cancel(peer=peer):
                    self._cancel.add(peer)
                case Completed() | Aborted():
                    self._outcome = action
        if actions:
            self._changes.notify()

    async def _attend(self, peer: PeerId) -> None:
        """Talk with one member until the round is over."""
        try:
            link = await self._link_to(peer)
            await link.send({"op": "prepare", "plan": self._plan.to_json_bytes()})
        except (LinkLost, NetError) as error:
            self._apply(self._machine.lost(peer, str(error)))
            return
        async with trio.open_nursery() as talk:
            talk.start_soon(self._listen, link, talk.cancel_scope)
            await self._instruct(link)
            talk.cancel_scope.cancel()
        await link.close()

    async def _link_to(self, peer: PeerId) -> Link:
        """Open a link to a member, which may be this very host. Raises NetError."""
        if peer != self._assigner.node.peer_id:
            return RemoteLink(await self._assigner.node.open(peer, PROTOCOL, max_message=MAX_MESSAGE))
        near, far = local_pair(peer)
        self._assigner.member.converse(far)
        return near

    async def _instruct(self, link: Link) -> None:
        """Pass on what the machine decides for this member, until the round is over."""
        activated = False
        while True:
            seen = self._changes.count
            if link.peer in self._cancel:
                await self._send(link, {"op": "cancel", "reason": "the assignment was called off"})
            elif link.peer in self._activate and not activated:
                activated = True
                await self._send(link, {"op": "activate"})
            if self._outcome is not None:
                return
            await self._changes.wait(seen, at_most=_TICK)

    async def _send(self, link: Link, message: Mapping[str, Any]) -> None:
        try:
            await link.send(message)
        except LinkLost as error:
            self._apply(self._machine.lost(link.peer, str(error)))

    async def _listen(self, link: Link, talk: trio.CancelScope) -> None:
        try:
            while True:
                self._hear(link.peer, await link.receive())
        except LinkLost as error:
            self._apply(self._machine.lost(link.peer, str(error)))
            talk.cancel()

    def _hear(self, peer: PeerId, message: Mapping[str, Any]) -> None:
        now = trio.current_time()
        match message:
            case {"op": "progress", "done": int(done), "total": int(total)}:
                self._apply(self._machine.progress(peer, done, total, now))
            case {"op": "ready"}:
                self._apply(self._machine.ready(peer, now))
            case {"op": "active"}:
                self._apply(self._machine.activated(peer, now))
            case {"op": "refused", "code": str(code), "message": str(text)}:
                self._apply(self._machine.refused(peer, code, text[:500]))
            case _:
                self._apply(self._machine.refused(peer, "protocol", "it sent an unknown message"))
