"""Churn: hosts that leave, come back, slow down and move away, replayed against the planner, to see what it makes them load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from registry.shape import ModelShape
from ring.announcement import Announcement, BlockHeld
from ring.planner import NoPlan, PlanRequest, RingPlan, compute_ring, evaluate_ring
from ring.replan import Assignment, Replanning, assignment_of
from swarmd.bench.plan_pools import made_up_pool

_LOOKS = 4  # after every event
_NOISE = 0.05  # of what is measured at a look


@dataclass
class ChurnResult:
    """What came of a replay.

    Attributes:
        events: how many there were.
        moved_bytes: what all hosts loaded after the first ring stood.
        after_death_bytes, lost_bytes: what was loaded because a host of the ring had left, and the weights of the layers that
            these hosts had served.
        changes: how often the ring changed.
        restless: how often it changed more than once after an event.
        outages: after how many events there was no ring.

    """

    events: int = 0
    moved_bytes: int = 0
    after_death_bytes: int = 0
    lost_bytes: int = 0
    changes: int = 0
    restless: int = 0
    outages: int = 0
    rings: list[Assignment] = field(default_factory=list)


def replay_churn(
    seed: int, events: int, *, hosts: int = 7, layers: int = 24, sticky: bool = True
) -> ChurnResult:
    """Return what the planner makes of a fixed sequence of events.

    Args:
        seed: which sequence.
        events: how many events.
        hosts: how many hosts there are.
        layers: how many layers the model has.
        sticky: whether what is loaded counts, and a ring is changed only for a gain that pays; else every event is
            answered with the best ring as if nothing were loaded.

    """
    swarm = _Swarm(made_up_pool("clustered", seed, hosts, layers, 2.2), sticky)
    dice, noise = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    swarm.settle(noise)
    swarm.result = ChurnResult()
    for event in _events(hosts, events, dice):
        swarm.happen(*event)
        swarm.settle(noise)
    return swarm.result


def _events(hosts: int, count: int, dice: Generator) -> Iterator[tuple[str, int, float]]:
    """Yield (what happens, to which host, by which factor)."""
    for _ in range(count):
        kind = str(dice.choice(("leave", "leave", "rejoin", "rejoin", "rejoin", "speed", "way")))
        yield kind, int(dice.integers(hosts)), float(dice.choice((0.5, 0.8, 1.25, 2.0)))


class _Swarm:
    def __init__(self, request: PlanRequest, sticky: bool) -> None:
        objective = replace(request.objective, horizon_s=900 if sticky else 0)
        self._request, self._sticky = replace(request, objective=objective), sticky
        count = len(request.hosts)
        self._there, self._speed, self._way = [True] * count, [1.0] * count, [1.0] * count
        self._blocks: list[BlockHeld | None] = [None] * count
        self._index_of = {host.peer: index for index, host in enumerate(request.hosts)}
        self._standing: Assignment | None = None
        self._replanning = Replanning(objective, 0.1)
        self.result = ChurnResult()

    def happen(self, kind: str, host: int, factor: float) -> None:
        """Let something happen to a host."""
        self.result.events += 1
        if kind == "speed":
            self._speed[host] = min(4.0, max(0.25, self._speed[host] * factor))
        elif kind == "way":
            self._way[host] = min(4.0, max(0.25, self._way[host] * factor))
        else:
            self._there[host] = kind == "rejoin"
            if kind == "leave":
                self._blocks[host] = None

    def settle(self, noise: Generator) -> None:
        """Look at the swarm a few times, as a leader does, and change the ring where it is broken or it pays."""
        changes = 0
        for _ in range(_LOOKS):
            request = self._seen(noise)
            broken = self._standing is None or not all(
                self._there[self._index_of[peer]] for peer, _, _ in self._standing
            )
            try:
                proposed = compute_ring(request)
            except NoPlan:
                self._standing = None if broken else self._standing
                continue
            if broken:
                self._count_loss(request.shape, proposed)
                self._take(proposed)
            elif assignment_of(proposed) != self._standing and self._pays(request, proposed):
                self._take(proposed)
                changes += 1
        self.result.restless += changes > 1
        self.result.outages += self._standing is None

    def _pays(self, request: PlanRequest, proposed: RingPlan) -> bool:
        if not self._sticky:
            return True
        try:
            standing = evaluate_ring(request, self._standing or ())
        except NoPlan:
            return False
        return self._replanning.look(standing, proposed) is not None

    def _take(self, ring: RingPlan) -> None:
        self._standing = assignment_of(ring)
        self._replanning.reset()
        self.result.changes += 1
        self.result.rings.append(self._standing)
        for stage in ring.stages:
            self.result.moved_bytes += stage.load_bytes
            held = BlockHeld("", self._request.shape.model_id, stage.lo, stage.hi, "ready", 1, 1)
            self._blocks[self._index_of[stage.peer]] = held

    def _count_loss(self, shape: ModelShape, proposed: RingPlan) -> None:
        lost = [block for block in self._standing or () if not self._there[self._index_of[block[0]]]]
        self.result.lost_bytes += sum(sum(shape.layer_bytes[lo:hi]) for _, lo, hi in lost)
        self.result.after_death_bytes += sum(stage.load_bytes for stage in proposed.stages) * bool(lost)

    def _seen(self, noise: Generator) -> PlanRequest:
        """Return the request as the leader would make it now."""
        hosts = [
            self._measured(index, host, noise)
            for index, host in enumerate(self._request.hosts)
            if self._there[index]
        ]
        return replace(self._request, hosts=tuple(hosts))

    def _measured(self, index: int, host: Announcement, noise: Generator) -> Announcement:
        slower = self._speed[index] * noise.uniform(1 - _NOISE, 1 + _NOISE)
        return replace(
            host,
            block=self._blocks[index],
            layer_ns=tuple((width, int(ns * slower)) for width, ns in host.layer_ns),
            rtt_us=tuple(
                (
                    peer,
                    int(
                        us
                        * max(self._way[index], self._way[self._index_of[peer]])
                        * noise.uniform(1, 1 + _NOISE)
                    ),
                )
                for peer, us in host.rtt_us
            ),
        )
