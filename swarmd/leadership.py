"""Leadership: what this host does while it leads: notice that a ring is missing, broken or could be better, plan one, have
it assigned.
"""

from __future__ import annotations

from functools import partial

import trio

from conf.schema import Config
from registry.shape import ModelShape
from ring.assignment import Aborted
from ring.exclusion import ExclusionList, ExclusionTimings
from ring.plan import Plan, make_plan, request_of
from ring.planner import NoPlan, evaluate_ring
from ring.replan import Replanning
from swarmd.activity import Activity
from swarmd.assigner import Assigner
from swarmd.planning import constraints_of, objective_of
from swarmd.plans import Plans
from swarmd.state_dir import HostKey
from swarmd.view import SwarmView

_LOOK_EVERY = 0.5  # s
_GRACE = 5.0  # s in which a member's announcement may still lag behind its activation


class Leadership:
    """Plans when there is no ring, when the ring is broken, and when another one is so much better that it pays."""

    def __init__(
        self,
        config: Config,
        key: HostKey,
        view: SwarmView,
        plans: Plans,
        assigner: Assigner,
        activity: Activity,
    ) -> None:
        self._config = config
        self._key = key
        self._view = view
        self._plans = plans
        self._assigner = assigner
        self._activity = activity
        self._excluded = ExclusionList(ExclusionTimings())
        self._number = 0
        self._active_since = 0.0
        self._looked_at = 0.0
        self._objective = objective_of(config.plan)
        self._constraints = constraints_of(config.plan)
        self._replanning = Replanning(self._objective, config.plan.least_gain)
        self.shape: ModelShape | None = None

    async def run(self) -> None:
        """Lead whenever the swarm says that this host leads."""
        while True:
            seen = self._view.changes.count
            if self._view.is_leader and self.shape is not None:
                await self._lead(self.shape)
            await self._view.changes.wait(seen, at_most=_LOOK_EVERY)
            await trio.sleep(_LOOK_EVERY / 5)  # announcements come in bursts: look once at a burst

    async def _lead(self, shape: ModelShape) -> None:
        if (active := self._plans.active) is not None:
            broken = self._why_broken(active)
            if broken is None:
                await self._improve(active, shape)
                return
            self._activity.note("ring_lost", broken, plan=active.id)
            self._plans.clear(broken)
        settled_in = self._config.plan.settle_seconds - (trio.current_time() - self._view.stable_since)
        if settled_in > 0:
            self._plans.clear(f"hosts are still coming and going; planning in {settled_in:.0f} s")
            return
        try:
            plan = await self._plan(shape)
        except NoPlan as error:
            self._plans.clear(str(error))
            return
        await self._follow_up(plan)

    async def _improve(self, active: Plan, shape: ModelShape) -> None:
        """Look from time to time, while nobody uses the ring, whether another one would be so much better that it pays."""
        settings, now = self._config.plan, trio.current_time()
        if (
            not settings.replan_seconds
            or now - max(self._active_since, self._looked_at) < settings.replan_seconds
        ):
            return
        if now - self._view.stable_since < settings.settle_seconds or self._is_used(active):
            return
        self._looked_at = now
        try:
            plan = await self._plan(shape)
            standing = await trio.to_thread.run_sync(evaluate_ring, request_of(plan), active.assignment())
        except NoPlan:
            return  # an edge of it may not have been measured anew yet; whether it serves, its members say
        gain = self._replanning.look(standing, plan.body.result)
        if gain is None or self._plans.active is not active or self._is_used(active):
            return
        self._activity.note("replanning", gain.text, plan=active.id)
        await self._follow_up(plan)

    def _is_used(self, plan: Plan) -> bool:
        hosts = [self._view.announcement(peer) for peer, _, _ in plan.assignment()]
        return any(host is not None and host.sessions for host in hosts)

    async def _follow_up(self, plan: Plan) -> None:
        self._activity.note("planned", plan=plan.id, term=plan.body.term, stages=len(plan.stages))
        self._plans.clear(f"the hosts of plan {plan.id[:8]} are loading their blocks")
        await self._carry_out(plan)

    async def _plan(self, shape: ModelShape) -> Plan:
        """Plan in a thread: in a large pool it takes seconds. Raises NoPlan."""
        self._number += 1
        hosts = self._view.alive()
        for host in hosts:
            self._excluded.seen(host.announcement.peer, host.announcement.incarnation)
        plan = partial(
            make_plan,
            self._key.signing_key,
            swarm=self._view.swarm,
            term=self._view.term,
            number=self._number,
            shape=shape,
            context=self._config.model.context,
            sessions=self._config.model.sessions,
            inputs=hosts,
            excluded=dict(self._excluded.excluded(trio.current_time())),
            objective=self._objective,
            constraints=self._constraints,
        )
        return await trio.to_thread.run_sync(plan)

    async def _carry_out(self, plan: Plan) -> None:
        outcome = await self._assigner.assign(plan)
        if not isinstance(outcome, Aborted):
            self._active_since = trio.current_time()
            self._replanning.reset()
            for peer, _, _ in plan.assignment():
                self._excluded.served(peer)
            self._plans.activate(plan)
            self._activity.note("plan_active", plan=plan.id)
            return
        self._activity.note("assignment_aborted", outcome.reason, plan=plan.id)
        self._plans.clear(f"the last plan failed: {outcome.reason}")
        for refusal in outcome.blame:
            if host := self._view.announcement(refusal.peer):
                self._excluded.refused(refusal.peer, host.incarnation, refusal.reason, trio.current_time())

    def _why_broken(self, plan: Plan) -> str | None:
        """Return why a ring that was active serves no longer, or None."""
        for peer, _, _ in plan.assignment():
            host = self._view.announcement(peer)
            if host is None:
                return f"host {peer} left or died"
            holds = host.block is not None and host.block.plan == plan.id and host.block.state == "serving"
            if not holds and trio.current_time() - self._active_since > _GRACE:
                return f"host {peer} no longer serves its block"
        return None
