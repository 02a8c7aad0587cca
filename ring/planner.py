"""The planner: which hosts form the ring, in which order, and how many layers each of them serves.

The ring with the least circuit time of a one-token frame (see ring/throughput.py) wins among all that fit
into the hosts' memory and use only edges that both ends have measured. Same request, same plan, in whatever
order the hosts are given (invariant I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.candidate import Pool, pool_of
from ring.exact import exact_order
from ring.heuristic import heuristic_order
from ring.identity import PeerId
from ring.shortage import certain_shortage, searched_shortage
from ring.split import best_cuts
from ring.throughput import StageCost, circuit_ns, predicted_millitokens_per_second

EXACT_HOSTS = 8
"""Up to this many candidate hosts the plan is the optimum; above, it is the best that a search finds."""


class NoPlan(Exception):
    """No ring of the hosts at hand can serve the model. Do what the text says: add a host, say."""

    code: ClassVar[str] = "no_plan"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that a plan depends on.

    Attributes:
        swarm: the swarm's name.
        leader: who plans; term: its term; number: counts the leader's plans of the term.
        shape: the model's sizes.
        context: tokens per session; sessions: how many at once. Their KV cache is part of every block's
            memory.
        hosts: what the live hosts announce, in any order.
        excluded: (peer, reason) of hosts that must not be used, such as one that refused the last plan.

    """

    swarm: str
    leader: PeerId
    term: int
    number: int
    shape: ModelShape
    context: int
    sessions: int
    hosts: tuple[Announcement, ...]
    excluded: tuple[tuple[PeerId, str], ...]

    def __post_init__(self) -> None:
        for name, peers in (
            ("hosts", [host.peer for host in self.hosts]),
            ("excluded", [peer for peer, _ in self.excluded]),
        ):
            if len(set(peers)) != len(peers):
                raise ValueError(f"{name} names a peer twice: give the latest word of each host only")


@dataclass(frozen=True, slots=True)
class Stage:
    """A host and the block that it serves in a ring.

    Attributes:
        peer: the host; [lo, hi): its layers.
        memory_bytes: what the block needs in all; memory_limit: what the host may use.
        compute_ns: nanoseconds on a frame of one token, at the tail with the choice of the token.
        hop_us: one-way microseconds to the next stage, at the tail back to the head; 0 for a ring of one.

    """

    peer: PeerId
    lo: int
    hi: int
    memory_bytes: int
    memory_limit: int
    compute_ns: int
    hop_us: int


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What the planner decides.

    Attributes:
        stages: the ring, head first; their blocks tile [0, layers).
        circuit_ns: nanoseconds of a one-token frame once around: the stages' compute_ns and hop_us in all.
        millitok_s: predicted thousandths of tokens per second of one plainly decoded session.
        left_out: (peer, reason) of every host of the request that is not in the ring, ascending in peer.

    """

    stages: tuple[Stage, ...]
    circuit_ns: int
    millitok_s: int
    left_out: tuple[tuple[PeerId, str], ...]


def compute_ring(request: PlanRequest) -> RingPlan:
    """Return the best ring for a request.

    Raises:
        NoPlan: no ring is possible; the text says what is missing.

    """
    barred = _barred(request)
    usable = tuple(host for host in request.hosts if host.peer not in barred)
    context, sessions = request.context, request.sessions
    pool = pool_of(usable, request.shape, context=context, sessions=sessions)
    shortage = certain_shortage(request.shape, usable, pool, barred, context=context, sessions=sessions)
    if shortage is not None:
        raise NoPlan(shortage)
    order = _best_order(pool)
    cuts = None if order is None else best_cuts(pool, order)
    if order is None or cuts is None:
        raise NoPlan(searched_shortage(pool, _best_order))
    return _ring_plan(request, pool, order, cuts, barred)


def stage_costs(stages: Sequence[Stage], hosts: Iterable[Announcement]) -> tuple[StageCost, ...]:
    """Return what the model of speed has to know of a ring, from its stages and their hosts' announcements.

    Raises:
        KeyError: a stage's host is not among `hosts`.

    """
    by_peer = {host.peer: host for host in hosts}
    *others, tail = stages
    costs = [_cost(by_peer[stage.peer], stage.hi - stage.lo, stage.hop_us, tail=False) for stage in others]
    return (*costs, _cost(by_peer[tail.peer], tail.hi - tail.lo, tail.hop_us, tail=True))


def _cost(host: Announcement, layers: int, hop_us: int, *, tail: bool) -> StageCost:
    return StageCost(layers, host.layer_ns, host.tail_ns if tail else 0, hop_us)


def _barred(request: PlanRequest) -> dict[PeerId, str]:
    """Return why some of the hosts must not be used."""
    excluded = dict(request.excluded)
    barred: dict[PeerId, str] = {}
    for host in request.hosts:
        if host.peer in excluded:
            barred[host.peer] = f"excluded: {excluded[host.peer]}"
        elif host.state == "leaving":
            barred[host.peer] = "leaving"
        elif not host.layer_ns:
            barred[host.peer] = "not measured yet"
        elif host.model != request.shape.model_id:
            barred[host.peer] = f"measured for the model {host.model}, not for {request.shape.model_id}"
    return barred


def _best_order(pool: Pool) -> tuple[int, ...] | None:
    able = _able(pool)
    fit = pool.only(able)
    order = exact_order(fit) if len(able) <= EXACT_HOSTS else heuristic_order(fit, EXACT_HOSTS)
    return None if order is None else tuple(able[index] for index in order)


def _able(pool: Pool) -> list[int]:
    return [index for index, host in enumerate(pool.hosts) if host.reach.holds_a_layer]


def _ring_plan(
    request: PlanRequest,
    pool: Pool,
    order: tuple[int, ...],
    cuts: tuple[int, ...],
    barred: dict[PeerId, str],
) -> RingPlan:
    by_peer = {host.peer: host for host in request.hosts}
    stages = []
    for place, index in enumerate(order):
        host, lo, hi = by_peer[pool.hosts[index].peer], cuts[place], cuts[place + 1]
        memory = request.shape.block_memory(lo, hi, context=request.context, sessions=request.sessions)
        hop = pool.hop_us[index][order[(place + 1) % len(order)]] or 0  # a ring of one has no edge
        compute = _cost(host, hi - lo, hop, tail=hi == pool.layers).compute_ns(1)
        stages.append(Stage(host.peer, lo, hi, memory.total, host.memory_limit, compute, hop))
    duration = circuit_ns(stage_costs(stages, request.hosts))
    rate = predicted_millitokens_per_second(duration)
    left_out = barred | _not_chosen(pool, order)
    return RingPlan(tuple(stages), duration, rate, tuple(sorted(left_out.items())))


def _not_chosen(pool: Pool, order: tuple[int, ...]) -> dict[PeerId, str]:
    """Return why the usable hosts that are not in the ring are not."""
    solo = len(order) == 1
    ring = pool.hosts[order[0]].peer if solo else "any host of the ring"
    slower = "solo is faster" if solo else "the ring is faster without it"
    if len(_able(pool)) > EXACT_HOSTS:  # a search cannot tell more
        slower = "no faster ring was found with it"
    reasons = {}
    for index, host in enumerate(pool.hosts):
        if index in order:
            continue
        if not host.reach.holds_a_layer:
            reasons[host.peer] = "its memory holds no layer"
        elif all(pool.hop_us[index][member] is None for member in order):
            reasons[host.peer] = f"no measured edge to {ring}"
        else:
            reasons[host.peer] = slower
    return reasons
