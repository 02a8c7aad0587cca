"""WhatIfs: answers what-ifs about the swarm as this host sees it, in a worker thread and one at a time."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import trio

from conf.schema import Config
from registry.models import ModelRow, load_registry
from ring.identity import PeerId
from ring.planner import NoPlan, PlanRequest
from swarmd.planning import constraints_of, objective_of
from swarmd.plans import Plans
from swarmd.view import SwarmView
from swarmd.what_if import answer_what_if
from swarmd.what_if_form import read_what_if

_WAITING = 4


class TooManyPlans(Exception):
    """Enough what-ifs are waiting already. Try again later."""

    code: ClassVar[str] = "busy"


class WhatIfs:
    """Any host can answer: it needs no more than the announcements, the model's sizes and its own settings."""

    def __init__(self, config: Config, view: SwarmView, plans: Plans) -> None:
        self._config = config
        self._view = view
        self._plans = plans
        self._thread = trio.CapacityLimiter(1)
        self._taken = 0

    async def answer(self, fields: object) -> dict[str, Any]:
        """Return the ring that would be planned (swarmd.what_if.answer_what_if).

        Raises:
            WhatIfBad, NoPlan, ModelUnknownError, RegistryError: the question, or its answer.
            TooManyPlans: others are waiting.

        """
        what_if = read_what_if(fields)
        if self._taken > _WAITING:
            raise TooManyPlans(f"{_WAITING} what-ifs are waiting already: try again later")
        self._taken += 1
        try:
            active = self._plans.active
            work = partial(
                answer_what_if,
                self._request(),
                what_if,
                None if what_if.model is None else await trio.to_thread.run_sync(self._row, what_if.model),
                () if active is None else active.assignment(),
            )
            return await trio.to_thread.run_sync(work, limiter=self._thread)
        finally:
            self._taken -= 1

    def _request(self) -> PlanRequest:
        shape, active = self._plans.shape, self._plans.active
        if shape is None and active is not None:
            shape = active.body.shape
        if shape is None:
            raise NoPlan("this host has not sized its model yet, and knows of no plan")
        settings = self._config
        return PlanRequest(
            swarm=self._view.swarm,
            leader=self._view.leader or PeerId(""),
            term=self._view.term,
            number=0,
            shape=shape,
            context=settings.model.context,
            sessions=settings.model.sessions,
            hosts=tuple(signed.announcement for signed in self._view.alive()),
            excluded=(),
            objective=objective_of(settings.plan),
            constraints=constraints_of(settings.plan),
        )

    def _row(self, model: str) -> ModelRow:
        registry = self._config.registry
        return load_registry(registry.path, registry.publishers).row(model)
