"""Made-up pools of hosts for judging the planner: fixed seeds, several kinds of networks and machines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.random import Generator

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.drafting import Drafter
from ring.identity import PeerId, peer_id_of
from ring.objective import Objective
from ring.paper_host import paper_host
from ring.planner import PlanRequest

_MODEL = "made-up"
_MB = 1_000_000
_NEAREST = 64  # edges that a host announces

Edges = Mapping[tuple[int, int], int]
"""(host, other host) → round trip in microseconds."""

DRAFTER = Drafter("made-up", 300_000, ((0, (700_000, 650_000)), (512, (800_000, 750_000))))


def made_up_shape(layers: int, dice: Generator) -> ModelShape:
    """Return a model of `layers` layers: all of one size, or of several."""
    sizes = dice.choice((400, 400, 400, 550, 900) if dice.random() < 0.5 else (450,), layers)
    return ModelShape(
        model_id=_MODEL,
        layer_bytes=tuple(int(size) * _MB for size in sizes),
        kv_token_bytes=(4096,) * layers,
        state_bytes=(0,) * layers,
        head_bytes=500 * _MB,
        tail_bytes=500 * _MB,
        shared_end_bytes=int(dice.choice((0, 500))) * _MB,
        hidden_bytes=16384,
        workspace_bytes=100 * _MB,
    )


def made_up_host(name: str, memory: int, layer_us: int, tail_us: int) -> Announcement:
    """Return a host that is measured for the made-up model and has no edges yet."""
    return paper_host(
        peer_id_of(hashlib.sha256(name.encode()).digest()),
        swarm="bench",
        device=_MODEL,
        memory=memory,
        model=_MODEL,
        layer_ns=((1, layer_us * 1000), (5, layer_us * 1200), (512, layer_us * 20_000)),
        tail_ns=tail_us * 1000,
    )


def with_edges(hosts: Sequence[Announcement], edges: Edges) -> tuple[Announcement, ...]:
    """Give hosts their round trips; each announces its nearest ones."""
    found: dict[int, list[tuple[int, PeerId]]] = {}
    for (here, there), rtt in edges.items():
        found.setdefault(here, []).append((rtt, hosts[there].peer))
    return tuple(
        replace(
            host, rtt_us=tuple(sorted((peer, rtt) for rtt, peer in sorted(found.get(index, []))[:_NEAREST]))
        )
        for index, host in enumerate(hosts)
    )


def made_up_pool(kind: str, seed: int, count: int, layers: int, tightness: float) -> PlanRequest:
    """Return a pool.

    Args:
        kind: one of KINDS.
        seed: which of them.
        count: how many hosts.
        layers: how many layers the model has.
        tightness: the memory of all hosts, as a multiple of what the model needs.

    """
    dice = np.random.default_rng([list(KINDS).index(kind), seed, count])
    shape = made_up_shape(layers, dice)
    need = shape.block_memory(0, layers, context=1024, sessions=1).total
    shares = dice.uniform(0.4, 1.6, count)
    hosts = [
        made_up_host(
            f"{kind} {seed} {index}",
            int(need * tightness * share / shares.sum()),
            int(dice.choice((180, 300, 420, 700, 1500))),
            int(dice.choice((50, 200, 1000))),
        )
        for index, share in enumerate(shares)
    ]
    hosts, edges = KINDS[kind](hosts, dice)
    return PlanRequest(
        "bench", hosts[0].peer, 1, 1, shape, 1024, 1, with_edges(hosts, edges), (), Objective(horizon_s=0)
    )


_Pool = tuple[list[Announcement], dict[tuple[int, int], int]]


def _both_ways(count: int, rtt: Callable[[int, int], int]) -> dict[tuple[int, int], int]:
    edges = {}
    for here, there in combinations(range(count), 2):
        edges[here, there] = edges[there, here] = rtt(here, there)
    return edges


def _uniform(hosts: list[Announcement], dice: Generator) -> _Pool:
    """Round trips of any length between any two."""
    return hosts, _both_ways(len(hosts), lambda here, there: int(dice.integers(200, 120_000)))


def _clustered(hosts: list[Announcement], dice: Generator) -> _Pool:
    """Regions: near each other inside, far apart between them."""
    regions = max(2, len(hosts) // 12)
    region = dice.integers(0, regions, len(hosts))
    ways = dice.integers(20_000, 200_000, (regions, regions))

    def rtt(here: int, there: int) -> int:
        if region[here] == region[there]:
            return int(dice.integers(300, 8_000))
        return int(ways[min(region[here], region[there]), max(region[here], region[there])])

    return hosts, _both_ways(len(hosts), rtt)


def _uplinks(hosts: list[Announcement], dice: Generator) -> _Pool:
    """Homes: some upload a hundred times slower than others."""
    speeds = (1_250_000, 5_000_000, 12_500_000, 125_000_000)
    hosts = [
        replace(host, uplink=int(dice.choice(speeds)), overhead_ns=int(dice.integers(0, 2_000_000)))
        for host in hosts
    ]
    return hosts, _both_ways(len(hosts), lambda here, there: int(dice.integers(2_000, 60_000)))


def _relays(hosts: list[Announcement], dice: Generator) -> _Pool:
    """Some hosts are reached through a relay only: twice the way, more overhead, and not by each other."""
    relayed = dice.random(len(hosts)) < 0.4
    hosts = [
        replace(host, overhead_ns=1_500_000) if behind else host
        for host, behind in zip(hosts, relayed, strict=True)
    ]
    edges = _both_ways(
        len(hosts),
        lambda here, there: int(dice.integers(2_000, 40_000)) * (2 if relayed[here] or relayed[there] else 1),
    )
    closed = {
        (here, there)
        for here, there in edges
        if here < there and relayed[here] and relayed[there] and dice.random() < 0.7
    }
    one_sided = {edge for edge in edges if dice.random() < 0.05}
    return hosts, {
        edge: rtt
        for edge, rtt in edges.items()
        if edge not in one_sided and (min(edge), max(edge)) not in closed
    }


def _slow_cpu(hosts: list[Announcement], dice: Generator) -> _Pool:
    """One host has much memory and computes thirty times slower."""
    slow = int(dice.integers(len(hosts)))
    host = hosts[slow]
    hosts[slow] = replace(
        host,
        memory_limit=4 * host.memory_limit,
        layer_ns=tuple((width, 30 * ns) for width, ns in host.layer_ns),
    )
    return hosts, _both_ways(len(hosts), lambda here, there: int(dice.integers(300, 30_000)))


KINDS: Mapping[str, Callable[[list[Announcement], Generator], _Pool]] = {
    "uniform": _uniform,
    "clustered": _clustered,
    "uplinks": _uplinks,
    "relays": _relays,
    "slow cpu": _slow_cpu,
}
"""The kinds of pools."""
