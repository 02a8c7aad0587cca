"""The planner: which hosts form the ring, in which order, and how many layers each of them serves.

The ring that is worth most under the request's objective (ring/worth.py) wins among all that fit into the hosts' memory,
use only edges that both ends have measured, and respect the constraints. What hosts have loaded already counts for
them. Same request, same plan, in whatever order the hosts are given (invariant I3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.candidate import PENALTY, Pool, pool_of
from ring.first_token import ring_within
from ring.holding import held_layers, load_bytes, load_ns
from ring.identity import PeerId
from ring.left_out import barred_hosts, not_chosen
from ring.objective import DEFAULT_OBJECTIVE, NO_CONSTRAINTS, Constraints, Objective
from ring.pace import Pace, best_pace
from ring.quantize import quantized
from ring.search import best_ring
from ring.shortage import certain_shortage, searched_shortage
from ring.throughput import (
    NS_PER_US,
    TOKEN_BYTES,
    StageCost,
    bottleneck_ns,
    circuit_ns,
    one_way_us,
    prefill_frames,
    prefill_ns,
)
from ring.view import FoundRing, Loading, View
from ring.worth import Worth


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
        objective: what the ring is to be best at.
        constraints: what it must respect beside memory and edges.

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
    objective: Objective = DEFAULT_OBJECTIVE
    constraints: Constraints = NO_CONSTRAINTS

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
        load_bytes: weights that the host has to load first; 0 where it holds the block already.
        compute_ns: nanoseconds on a frame of the plan's width, at the tail with the choice of the tokens.
        hop_us: one-way microseconds to the next stage, at the tail back to the head; 0 for a ring of one.
        wire_ns: nanoseconds for which such a frame keeps the uplink busy; 0 where the uplink is not measured.
        overhead_ns: nanoseconds that the hop costs beyond these two.

    """

    peer: PeerId
    lo: int
    hi: int
    memory_bytes: int
    memory_limit: int
    load_bytes: int
    compute_ns: int
    hop_us: int
    wire_ns: int
    overhead_ns: int


@dataclass(frozen=True, slots=True)
class RingPlan:
    """What the planner decides.

    Attributes:
        stages: the ring, head first; their blocks tile [0, layers).
        drafter: whose drafts fill the frames; "" for plain decoding.
        frame_width: tokens in a frame; frames_in_flight: most frames of a session under way.
        circuit_ns: nanoseconds of such a frame once around: all terms of the stages in all.
        bottleneck_ns: nanoseconds for which it keeps the slowest stage or uplink busy.
        millitok_s: predicted thousandths of tokens per second of one session.
        aggregate_millitok_s: predicted thousandths of tokens per second of all promised sessions together.
        load_ns: predicted nanoseconds until the slowest host has loaded its block; 0 where nothing is to be loaded.
        ttft_ns: predicted nanoseconds to the first token of a prompt of the objective's length, on an idle ring.
        left_out: (peer, reason) of every host of the request that is not in the ring, ascending in peer.

    """

    stages: tuple[Stage, ...]
    drafter: str
    frame_width: int
    frames_in_flight: int
    circuit_ns: int
    bottleneck_ns: int
    millitok_s: int
    aggregate_millitok_s: int
    load_ns: int
    ttft_ns: int
    left_out: tuple[tuple[PeerId, str], ...]


def compute_ring(request: PlanRequest) -> RingPlan:
    """Return the best ring for a request.

    Raises:
        NoPlan: no ring is possible; the text says what is missing.

    """
    request, pool, barred = _prepared(request)
    shortage = certain_shortage(request, pool, barred)
    if shortage is not None:
        raise NoPlan(shortage)
    ring = _best_ring(request, pool)
    return _ring_plan(request, pool, ring, barred)


def _prepared(request: PlanRequest) -> tuple[PlanRequest, Pool, dict[PeerId, str]]:
    """Return the request with quantized measurements, the usable hosts, and why each of the others is not."""
    request = replace(request, hosts=tuple(quantized(host) for host in request.hosts))
    barred = barred_hosts(request)
    usable = tuple(host for host in request.hosts if host.peer not in barred)
    pool = pool_of(
        usable, request.shape, request.constraints, context=request.context, sessions=request.sessions
    )
    return request, pool, barred


def _best_ring(request: PlanRequest, pool: Pool) -> FoundRing:
    objective, loading = request.objective, None
    worth = Worth(objective, request.sessions)
    ring = best_ring(pool, worth)
    if ring is None:
        raise NoPlan(searched_shortage(pool, request.constraints))
    if objective.horizon_s and pool.holds_layers:
        loading = Loading(ring, objective.horizon_s)
        ring = best_ring(pool, worth, loading, known=[ring.order]) or ring
    if not objective.ttft_limit_us:
        return ring
    within, quickest_ns = ring_within(pool, worth, ring, loading, objective.ttft_limit_us * NS_PER_US)
    if within is None:
        raise NoPlan(
            f"no ring has the first token of a prompt of {objective.prompt_tokens} tokens within"
            f" {objective.ttft_limit_us / 1e6:.3g} s: the quickest needs {quickest_ns / 1e9:.3g} s; raise"
            " plan.ttft_limit_seconds, or add faster hosts"
        )
    return within


def evaluate_ring(request: PlanRequest, assignment: Sequence[tuple[PeerId, int, int]]) -> RingPlan:
    """Return what a given ring is worth under a request: the same figures as compute_ring gives for the best one.

    Args:
        request: the hosts, the model and the objective.
        assignment: (host, lo, hi) of every stage, head first.

    Raises:
        NoPlan: the ring cannot be: a host is not there or may not serve its block, or an edge is not measured.

    """
    request, pool, barred = _prepared(request)
    index_of = {host.peer: index for index, host in enumerate(pool.hosts)}
    missing = [peer for peer, _, _ in assignment if peer not in index_of]
    if missing:
        raise NoPlan(f"{missing[0]} cannot be used: {barred.get(missing[0], 'it is not there')}")
    order = tuple(index_of[peer] for peer, _, _ in assignment)
    cuts = (0, *(hi for _, _, hi in assignment))
    view = View(pool, 1, None)
    circuit, _ = view.times(order, cuts)
    if circuit >= PENALTY or pool.apart[np.ix_(order, order)].any():
        raise NoPlan(
            "the ring lacks a measured edge, or a host in it may not serve its block or not beside another"
        )
    return _ring_plan(request, pool, FoundRing(0, circuit, len(order), order, cuts), barred)


def stage_costs(
    blocks: Sequence[tuple[PeerId, int]], hosts: Iterable[Announcement], shape: ModelShape
) -> tuple[StageCost, ...]:
    """Return what the model of speed has to know of a ring.

    Args:
        blocks: (host, number of layers) of every stage, head first.
        hosts: what the hosts announce; those of the ring must be among them, and its edges measured by both ends.
        shape: the model.

    Raises:
        KeyError: a stage's host is not among `hosts`, or an edge is not measured.

    """
    by_peer = {host.peer: host for host in hosts}
    costs = []
    for place, (peer, layers) in enumerate(blocks):
        host, tail = by_peer[peer], place == len(blocks) - 1
        tail_ns = host.tail_ns if tail else 0
        if len(blocks) == 1:
            costs.append(StageCost(layers, host.layer_ns, tail_ns, 0))
            continue
        following = blocks[(place + 1) % len(blocks)][0]
        hop_us = one_way_us(dict(host.rtt_us)[following], dict(by_peer[following].rtt_us)[peer])
        token_bytes = TOKEN_BYTES if tail else shape.hidden_bytes
        costs.append(
            StageCost(layers, host.layer_ns, tail_ns, hop_us, token_bytes, host.uplink, host.overhead_ns)
        )
    return tuple(costs)


def _ring_plan(request: PlanRequest, pool: Pool, ring: FoundRing, barred: dict[PeerId, str]) -> RingPlan:
    shape, objective = request.shape, request.objective
    hosts = [pool.hosts[index] for index in ring.order]
    blocks = list(pairwise(ring.cuts))
    costs = stage_costs(
        [(host.peer, hi - lo) for host, (lo, hi) in zip(hosts, blocks, strict=True)], hosts, shape
    )
    pace, together = _paces(request, costs)
    stages = []
    for host, (lo, hi), cost in zip(hosts, blocks, costs, strict=True):
        memory = shape.block_memory(lo, hi, context=request.context, sessions=request.sessions)
        moved = load_bytes(shape, held_layers(host, shape), lo, hi)
        compute, wire = cost.compute_ns(pace.width), cost.wire_ns(pace.width)
        stages.append(
            Stage(
                *(host.peer, lo, hi, memory.total, host.memory_limit, moved),
                *(compute, cost.hop_us, wire, cost.overhead_ns),
            )
        )
    width, frames = prefill_frames(objective.prompt_tokens)
    return RingPlan(
        stages=tuple(stages),
        drafter=pace.drafter,
        frame_width=pace.width,
        frames_in_flight=pace.frames,
        circuit_ns=circuit_ns(costs, pace.width),
        bottleneck_ns=bottleneck_ns(costs, pace.width),
        millitok_s=pace.millitok_s,
        aggregate_millitok_s=together.millitok_s,
        load_ns=max(load_ns(host, stage.load_bytes) for host, stage in zip(hosts, stages, strict=True)),
        ttft_ns=prefill_ns(circuit_ns(costs, width), bottleneck_ns(costs, width), frames),
        left_out=tuple(sorted((barred | not_chosen(pool, ring.order)).items())),
    )


def _paces(request: PlanRequest, costs: Sequence[StageCost]) -> tuple[Pace, Pace]:
    """Return the best pace of one session alone, and that of all promised sessions together."""
    objective = request.objective
    drafters = () if objective.kind == "latency" else objective.drafters
    alone, together = (
        best_pace(
            partial(circuit_ns, costs),
            partial(bottleneck_ns, costs),
            drafters,
            context=objective.prompt_tokens,
            sessions=sessions,
        )
        for sessions in (1, request.sessions)
    )
    return alone, together
