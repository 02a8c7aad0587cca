"""Plans: the active plan that this host knows of, served to whoever asks and fetched from the leader when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from registry.shape import ModelShape
from ring.identity import PeerId
from ring.plan import Plan, PlanRefused, parse_plan, verify_plan
from swarmd.activity import Activity
from swarmd.facts import OwnFacts
from swarmd.net import NetError, Node
from swarmd.printable import printable
from swarmd.view import SwarmView

PROTOCOL = "/swarmd/plan/1"
_MAX_MESSAGE = 5 << 20
_ANSWER_WITHIN = 5.0  # s
_RETRY = 1.0  # s
_MAX_REASON = 500  # characters
_CONFIRMED_WITHIN = 5.0  # s: a few announcements


class Plans:
    """Holds the active plan, or the reason why there is none."""

    def __init__(self, node: Node, view: SwarmView, facts: OwnFacts, activity: Activity) -> None:
        self._node = node
        self._view = view
        self._facts = facts
        self._activity = activity
        self.active: Plan | None = None
        self.reason = "no leader has been heard of"
        self.shape: ModelShape | None = None
        self._unconfirmed: Plan | None = None
        node.serve(PROTOCOL, self._answer, max_message=_MAX_MESSAGE)

    @property
    def active_id(self) -> str:
        """Id of the active plan, or ""."""
        return "" if self.active is None else self.active.id

    def activate(self, plan: Plan) -> None:
        """Take a plan as the active one."""
        self.active, self.reason = plan, ""
        self._facts.update(plan=plan.id)

    def clear(self, reason: str) -> None:
        """Say that there is no active plan, and why."""
        if self.active is None and self.reason == reason:
            return
        self.active, self.reason = None, reason
        self._facts.update(plan="")

    async def _answer(self, peer: PeerId, request: dict[str, Any]) -> dict[str, Any]:
        plan = self.active
        return {"plan": plan.to_json_bytes() if plan else None, "reason": self.reason}

    async def follow(self) -> None:
        """Keep in step with the leader for as long as the daemon lives (the leader itself writes, and does not ask)."""
        while True:
            seen = self._view.changes.count
            leader = self._view.leader
            if leader is None:
                if self.active is None:
                    self.clear("no leader has been heard of")
            elif not self._view.is_leader and self._differs_from(leader):
                await self._fetch_from(leader)
                await trio.sleep(_RETRY)  # announcements come many times a second in a large swarm
            await self._view.changes.wait(seen, at_most=_RETRY)

    def _differs_from(self, leader: PeerId) -> bool:
        """Return whether the leader announces another plan than the one held here, or none, of which it knows why."""
        announced = self._view.announcement(leader)
        return announced is not None and (not announced.plan or announced.plan != self.active_id)

    async def refresh(self) -> None:
        """Ask the leader now: its last announcement may be older than its last plan, and its members' words younger."""
        with trio.move_on_after(_CONFIRMED_WITHIN):
            while self.active is None:
                seen, leader = self._view.changes.count, self._view.leader
                if leader is None or self._view.is_leader:
                    return
                await self._fetch_from(leader)
                if self._unconfirmed is None:
                    return
                await self._view.changes.wait(seen, at_most=_CONFIRMED_WITHIN)

    async def _fetch_from(self, leader: PeerId) -> None:
        try:
            reply = await self._node.call(
                leader, PROTOCOL, {}, timeout=_ANSWER_WITHIN, max_message=_MAX_MESSAGE
            )
            plan = await self._read(reply)
        except NetError as error:
            self._activity.note("plan_not_fetched", str(error), leader=leader)
        except PlanRefused as error:
            self._activity.note("plan_refused", str(error), leader=leader)
        else:
            if self._view.leader == leader != self._view.peer:  # it may have changed meanwhile
                self._follow(plan, reply.get("reason"))

    async def _read(self, reply: Mapping[str, Any]) -> Plan | None:
        """Parse and recompute a plan, in a thread. Its signer may be a former leader: a ring outlives its term.

        Raises:
            PlanRefused: it fails a check.

        """
        data = reply.get("plan")
        if not isinstance(data, bytes):
            return None
        for known in (self.active, self._unconfirmed):
            if known is not None and data == known.to_json_bytes():
                return known

        def read() -> Plan:
            plan = parse_plan(data)
            body = plan.body
            # A host that cannot size the model itself takes the plan's word for it: it only forwards requests.
            shape = self.shape or body.shape
            verify_plan(plan, leader=body.leader, term=body.term, shape=shape, swarm=self._view.swarm)
            return plan

        return await trio.to_thread.run_sync(read)

    def _follow(self, plan: Plan | None, reason: object) -> None:
        """Take the leader's word for which plan is active, as far as the members' own words do not contradict it."""
        self._unconfirmed = None
        if plan is None:
            if self.active is None or not self._is_served(self.active):
                told = printable(reason) if isinstance(reason, str) else ""
                self.clear(told[:_MAX_REASON] or "the leader gives no reason")
        elif plan.id == self.active_id:
            return
        elif self._is_served(plan):
            self.activate(plan)
            self._activity.note("plan_active", plan=plan.id)
        else:
            self._unconfirmed = plan
            if self.active is None:
                self.clear(f"the hosts of plan {plan.id[:8]} have yet to say that they serve it")

    def _is_served(self, plan: Plan) -> bool:
        """Return whether every member says that it serves the plan."""
        hosts = [self._view.announcement(stage.peer) for stage in plan.stages]
        return all(
            host is not None
            and host.block is not None
            and (host.block.plan, host.block.state) == (plan.id, "serving")
            for host in hosts
        )
