"""What the configuration asks of a plan, in the planner's own words."""

from __future__ import annotations

from conf.schema import Plan as PlanSettings
from ring.identity import PeerId
from ring.objective import Constraints, Objective


def objective_of(settings: PlanSettings) -> Objective:
    """Return what a ring is to be best at."""
    return Objective(
        kind=settings.objective,
        prompt_tokens=settings.prompt_tokens,
        ttft_limit_us=round(settings.ttft_limit_seconds * 1e6),
        horizon_s=settings.horizon_seconds,
    )


def constraints_of(settings: PlanSettings) -> Constraints:
    """Return what a ring must respect."""
    trusted = tuple(sorted({PeerId(peer) for peer in settings.trusted}))
    return Constraints(settings.distinct_subnets, trusted, settings.end_layers)
