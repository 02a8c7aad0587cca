"""What the best ring is worth, found by trying every ordered subset of the hosts and every split: slow, and simple enough
to be believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations

from ring.announcement import Announcement
from ring.planner import PlanRequest, RingPlan, stage_costs
from ring.quantize import quantized
from ring.search import Values
from ring.subnets import share_subnet
from ring.throughput import bottleneck_ns, circuit_ns
from ring.worth import Worth

Times = tuple[int, int]
"""A ring's circuit time and bottleneck in nanoseconds at one frame width."""


def brute_force(request: PlanRequest, values: Values | None = None) -> int | None:
    """Return the value of the best ring of a request; None if there is no ring. Loading costs nothing.

    Args:
        request: the hosts, the model and the constraints.
        values: what values rings; None: the request's objective (ring/worth.py).

    """
    worth = values or Worth(request.objective, request.sessions)
    tables = [_Table(request, width) for width in worth.widths]
    best: list[set[Times]] = [set() for _ in tables]
    hosts = range(len(request.hosts))
    for count in range(1, min(len(hosts), request.shape.layer_count) + 1):
        for ring in permutations(hosts, count):
            if tables[0].is_ring(ring):
                for cuts in tables[0].splits(ring):
                    for times, table in zip(best, tables, strict=True):
                        times.add(table.times(ring, cuts))
                best = [_undominated(times) for times in best]
    found = [
        worth.value(width, circuit, bottleneck)
        for width, times in zip(worth.widths, best, strict=True)
        for circuit, bottleneck in times
    ]
    return min(found, default=None)


def worth_of(request: PlanRequest, plan: RingPlan) -> int:
    """Return the value of a plan's ring."""
    worth = Worth(request.objective, request.sessions)
    blocks = [(stage.peer, stage.hi - stage.lo) for stage in plan.stages]
    costs = stage_costs(blocks, [quantized(host) for host in request.hosts], request.shape)
    return min(
        worth.value(width, circuit_ns(costs, width), bottleneck_ns(costs, width)) for width in worth.widths
    )


class _Table:
    """All times of a request's hosts at one frame width, by index."""

    def __init__(self, request: PlanRequest, width: int) -> None:
        hosts = [quantized(host) for host in request.hosts]
        shape, count = request.shape, request.shape.layer_count
        self._layers = count
        self._fits = [
            {block for block in combinations(range(count + 1), 2) if _may_serve(request, host, *block)}
            for host in hosts
        ]
        alone = [stage_costs([(host.peer, 1)], [host], shape)[0] for host in hosts]
        self._tail = [width * host.tail_ns for host in hosts]
        self._layer = [cost.compute_ns(width) - tail for cost, tail in zip(alone, self._tail, strict=True)]
        self._hop: dict[tuple[int, int], int] = {}
        self._back: dict[tuple[int, int], int] = {}
        self._wire, self._wire_back = [0] * len(hosts), [0] * len(hosts)
        for here, there in permutations(range(len(hosts)), 2):
            if not _have_measured(hosts[here], hosts[there]):
                continue
            first, last = stage_costs([(hosts[here].peer, 1), (hosts[there].peer, 1)], hosts, shape)
            self._hop[here, there], self._wire[here] = first.hop_ns(width), first.wire_ns(width)
            self._back[there, here], self._wire_back[there] = last.hop_ns(width), last.wire_ns(width)
        self._apart = request.constraints.distinct_subnets
        self._hosts = hosts

    def is_ring(self, ring: Sequence[int]) -> bool:
        """Return whether all edges of a ring are measured, and its hosts may be together."""
        if len(ring) > 1 and not all(edge in self._hop for edge in (*pairwise(ring), (ring[-1], ring[0]))):
            return False
        return not self._apart or not any(
            share_subnet(self._hosts[here].addresses, self._hosts[there].addresses)
            for here, there in combinations(ring, 2)
        )

    def splits(self, ring: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the boundaries of all splits that the hosts of a ring may serve."""
        for inner in combinations(range(1, self._layers), len(ring) - 1):
            cuts = (0, *inner, self._layers)
            if all(block in self._fits[host] for host, block in zip(ring, pairwise(cuts), strict=True)):
                yield cuts

    def times(self, ring: Sequence[int], cuts: Sequence[int]) -> Times:
        """Return a ring's circuit time and bottleneck."""
        compute = [(hi - lo) * self._layer[host] for host, (lo, hi) in zip(ring, pairwise(cuts), strict=True)]
        compute[-1] += self._tail[ring[-1]]
        if len(ring) == 1:
            return compute[0], compute[0]
        hops = sum(self._hop[edge] for edge in pairwise(ring)) + self._back[ring[-1], ring[0]]
        wires = max(*(self._wire[host] for host in ring[:-1]), self._wire_back[ring[-1]])
        return hops + sum(compute), max(wires, *compute)


def _may_serve(request: PlanRequest, host: Announcement, lo: int, hi: int) -> bool:
    rules = request.constraints
    inside = rules.end_layers <= lo and hi <= request.shape.layer_count - rules.end_layers
    if rules.trusted and host.peer not in rules.trusted and not inside:
        return False
    need = request.shape.block_memory(lo, hi, context=request.context, sessions=request.sessions)
    return need.total <= host.memory_limit


def _have_measured(here: Announcement, there: Announcement) -> bool:
    return there.peer in dict(here.rtt_us) and here.peer in dict(there.rtt_us)


def _undominated(times: set[Times]) -> set[Times]:
    kept: set[Times] = set()
    least: int | None = None
    for circuit, bottleneck in sorted(times):
        if least is None or bottleneck < least:
            kept.add((circuit, bottleneck))
            least = bottleneck
    return kept
