"""Pools of made-up hosts for the planner's tests, and a naive planner to compare with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from random import Random

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.identity import PeerId, peer_id_of
from ring.planner import PlanRequest

MODEL = "made-up"


def peer(name: str) -> PeerId:
    return peer_id_of(hashlib.sha256(name.encode()).digest())


def shape_of(
    layers: Iterable[int],
    *,
    head: int = 0,
    tail: int = 0,
    shared: int = 0,
    workspace: int = 0,
    kv: int = 0,
    state: int = 0,
) -> ModelShape:
    sizes = tuple(layers)
    count = len(sizes)
    return ModelShape(MODEL, sizes, (kv,) * count, (state,) * count, head, tail, shared, 64, workspace)


def host(name: str, memory: int, layer_us: int, *, tail_us: int = 0, model: str = MODEL) -> Announcement:
    return Announcement(
        swarm="home",
        peer=peer(name),
        incarnation=1,
        sequence=1,
        addresses=(),
        version="0.1.0",
        wire=1,
        state="standby",
        seniority=0,
        leader="",
        term=0,
        plan="",
        device="made-up",
        memory_limit=memory,
        memory_free=memory,
        model=model,
        layer_ns=((1, layer_us * 1000), (16, layer_us * 4000)),
        tail_ns=tail_us * 1000,
        rtt_us=(),
        block=None,
        sessions=0,
    )


def connected(
    hosts: Iterable[Announcement], rtt_us: Mapping[tuple[PeerId, PeerId], int]
) -> tuple[Announcement, ...]:
    """Give hosts the round trips that are listed for (measuring host, measured host)."""
    return tuple(
        replace(here, rtt_us=tuple(sorted((b, rtt) for (a, b), rtt in rtt_us.items() if a == here.peer)))
        for here in hosts
    )


def meshed(hosts: Iterable[Announcement], rtt_us: int) -> tuple[Announcement, ...]:
    pool = tuple(hosts)
    pairs = permutations((member.peer for member in pool), 2)
    return connected(pool, dict.fromkeys(pairs, rtt_us))


def request(
    hosts: Iterable[Announcement],
    shape: ModelShape,
    *,
    context: int = 8,
    sessions: int = 1,
    excluded: tuple[tuple[PeerId, str], ...] = (),
) -> PlanRequest:
    return PlanRequest("home", peer("leader"), 3, 1, shape, context, sessions, tuple(hosts), excluded)


def random_pool(seed: int, count: int) -> PlanRequest:
    """Return one of many kinds of pools: regions or none, missing edges, tight memory, layers of several sizes."""
    dice = Random(seed)
    regular = dice.random() < 0.4
    sizes = [100 if regular else dice.choice((40, 100, 100, 160, 250)) for _ in range(dice.randint(1, 7))]
    shape = shape_of(
        sizes,
        head=dice.choice((0, 30, 120)),
        tail=dice.choice((0, 50, 150)),
        workspace=dice.choice((0, 20)),
        kv=dice.choice((0, 1, 3)),
        state=dice.choice((0, 5)),
    )
    shape = replace(shape, shared_end_bytes=dice.choice((0, min(shape.head_bytes, shape.tail_bytes))))
    if dice.random() < 0.2 and len(sizes) > 2:
        lo = dice.randint(1, len(sizes) - 1)
        shape = replace(shape, sealed_borders=tuple(range(lo, dice.randint(lo, len(sizes) - 1) + 1)))
    tightness = dice.choice((0.7, 1.0, 1.6, 4.0))
    total = shape.block_memory(0, shape.layer_count, context=8, sessions=2).total
    hosts = [
        host(
            f"{seed}-{index}",
            int(total * tightness * dice.uniform(0.2, 1.8) / count),
            dice.choice((1, 2, 5, 5, 20)) * dice.choice((1, 100)),
            tail_us=dice.choice((0, 0, 7, 300)),
        )
        for index in range(count)
    ]
    region = [dice.randrange(2) for _ in hosts]
    density = dice.choice((0.5, 0.9, 1.0, 1.0))
    rtts = {}
    for (i, a), (j, b) in permutations(enumerate(hosts), 2):
        if dice.random() < density:
            near = region[i] == region[j]
            rtts[a.peer, b.peer] = dice.choice((0, 1, 10, 50)) if near else dice.choice((10, 400, 5000))
    return request(connected(hosts, rtts), shape, sessions=2)


def naive_optimum(wanted: PlanRequest) -> int | None:
    """Return the least circuit time in ns by trying every ordered subset and every split; None if nothing fits."""
    times = [
        total
        for count in range(1, len(wanted.hosts) + 1)
        for ring in permutations(wanted.hosts, count)
        for total in _times(wanted, ring)
    ]
    return min(times, default=None)


def _times(wanted: PlanRequest, ring: tuple[Announcement, ...]) -> Iterator[int]:
    hops = 0
    for place, here in enumerate(ring):
        there = ring[(place + 1) % len(ring)]
        if here is there:
            continue
        forth, back = dict(here.rtt_us).get(there.peer), dict(there.rtt_us).get(here.peer)
        if forth is None or back is None:
            return
        hops += 1000 * ((max(forth, back) + 1) // 2)
    layers = wanted.shape.layer_count
    for inner in combinations(range(1, layers), len(ring) - 1):
        blocks = list(pairwise((0, *inner, layers)))
        if all(_fits(wanted, member, block) for member, block in zip(ring, blocks, strict=True)):
            compute = sum(
                (hi - lo) * member.layer_ns[0][1] for member, (lo, hi) in zip(ring, blocks, strict=True)
            )
            yield hops + compute + ring[-1].tail_ns


def _fits(wanted: PlanRequest, member: Announcement, block: tuple[int, int]) -> bool:
    if not all(wanted.shape.may_cut(border) for border in block):
        return False
    need = wanted.shape.block_memory(*block, context=wanted.context, sessions=wanted.sessions)
    return need.total <= member.memory_limit
