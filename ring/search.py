"""The search for the ring that is worth most: subset, order, head and split together.

A ring's worth falls with its circuit time T and its bottleneck τ, and depends on nothing else. So the best ring is among
those of which no other one has both a smaller T and a smaller τ. They are visited one after the other, at each frame
width that may pay: the ring with the least T, then the one with the least T among those whose τ is smaller than what
has been seen, and so on, until even a ring with the T found last, which is the least possible from there on, would need
a smaller τ than the pool has. In small pools each of these steps is exact (ring/exact.py), and so is the result; in
large ones a step is a search (ring/heuristic.py), and only a few are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ring.candidate import PENALTY, Pool
from ring.exact import exact_order
from ring.heuristic import heuristic_order
from ring.split import best_cuts, ring_hops
from ring.view import FoundRing, Loading, Region, View

EXACT_HOSTS = 8
"""Up to this many candidate hosts the ring is the optimum; above, it is the best that a search finds."""

_HEURISTIC_WIDTHS = 2
_HEURISTIC_BOUNDS = 4

_Order = tuple[int, ...]


class Values(Protocol):
    """What values rings; smaller is better (ring/worth.py)."""

    @property
    def widths(self) -> tuple[int, ...]: ...

    @property
    def heeds_bottleneck(self) -> bool: ...

    def value(self, width: int, circuit_ns: int, bottleneck_ns: int) -> int: ...

    def largest_bottleneck(self, width: int, circuit_ns: int, below: int) -> int: ...

    def largest_circuit(self, width: int, bottleneck_ns: int, below: int) -> int: ...


def best_ring(
    pool: Pool, values: Values, loading: Loading | None = None, known: Sequence[_Order] = ()
) -> FoundRing | None:
    """Return the best ring of a pool; None if there is none (or, in a large pool, none was found).

    Args:
        pool: the hosts.
        values: what values rings.
        loading: what loading counts; None: nothing.
        known: rings to start from in a large pool.

    """
    search = _Search(pool, values, loading)
    return search.exact() if len(pool.able) <= EXACT_HOSTS else search.heuristic(known)


class _Search:
    def __init__(self, pool: Pool, values: Values, loading: Loading | None) -> None:
        self._pool, self._values, self._loading = pool, values, loading
        self._best: FoundRing | None = None

    def exact(self) -> FoundRing | None:
        """Visit all rings that no other one beats in both T and τ, as far as they can be best."""
        if not self._pool.able:
            return None
        for width in self._widths():
            view = View(self._pool, width, self._loading)
            region = view.region(self._pool.able)
            limit, bound = self._limit(view), None
            while limit > 0 and (order := self._cheapest(region, bound, limit)) is not None:
                bound = self._next_bound(view, *self._offer(view, order, bound))
                if bound is None:
                    break
        return self._best

    def heuristic(self, known: Sequence[_Order]) -> FoundRing | None:
        """Visit some of those rings, at the frame widths that promise most."""
        starts = list(known)
        for _, width in zip(range(_HEURISTIC_WIDTHS), self._widths(), strict=False):
            view, bound = View(self._pool, width, self._loading), None
            for _ in range(_HEURISTIC_BOUNDS):
                order = heuristic_order(view, EXACT_HOSTS, bound, starts)
                if order is None:
                    break
                starts.append(order)
                circuit, bottleneck = self._offer(view, order, bound)
                bound = self._next_bound(view, circuit, bottleneck * 7 // 8)
                if bound is None:
                    break
        return self._best

    def _widths(self) -> Iterator[int]:
        """Yield the first width, and then the others, that with which the best ring of it is worth most first."""
        first, *others = self._values.widths
        yield first
        if others and self._best is not None:
            views = [View(self._pool, width, self._loading) for width in others]
            ranked = sorted((self._valued(view, self._best.order, None)[0], view.width) for view in views)
            yield from (width for _, width in ranked)

    def _cheapest(self, region: Region, bound: int | None, limit: int) -> _Order | None:
        blocks = region.blocks if bound is None else region.blocks.within(bound)
        order = exact_order(region.terms, blocks, region.apart, limit)
        return None if order is None else tuple(region.members[host] for host in order)

    def _offer(self, view: View, order: _Order, bound: int | None) -> tuple[int, int]:
        """Keep a ring if it is the best so far; returns its circuit time, with what loading counts, and its bottleneck."""
        found, bottleneck = self._valued(view, order, bound)
        self._best = found if self._best is None else min(self._best, found)
        return found.circuit_ns, bottleneck

    def _valued(self, view: View, order: _Order, bound: int | None) -> tuple[FoundRing, int]:
        region = view.region(tuple(sorted(order)))
        blocks = region.blocks if bound is None else region.blocks.within(bound)
        inside = tuple(region.members.index(host) for host in order)
        cuts = best_cuts(blocks, inside)
        if cuts is None:
            raise RuntimeError(f"the search gave the ring {order}, which has no split")
        places = (list(inside), list(cuts[:-1]), list(cuts[1:]))
        circuit = int(blocks.cost[places].sum()) + ring_hops(region.terms, inside)
        bottleneck = int(blocks.busy[places].max())
        value = self._values.value(view.width, circuit, bottleneck + view.loading_bottleneck(order, cuts))
        return FoundRing(value, circuit, len(order), order, cuts), bottleneck

    def _next_bound(self, view: View, circuit_ns: int, bottleneck_ns: int) -> int | None:
        """Return the bottleneck with which a ring that has at least this circuit time may yet be the best; None if none."""
        if self._best is None or not self._values.heeds_bottleneck:
            return None
        bound = min(
            bottleneck_ns - 1, self._values.largest_bottleneck(view.width, circuit_ns, self._best.value)
        )
        return bound if bound >= view.least_bottleneck() else None

    def _limit(self, view: View) -> int:
        """Return the longest circuit time with which a ring may yet be the best."""
        if self._best is None:
            return PENALTY - 1
        return self._values.largest_circuit(view.width, view.least_bottleneck(), self._best.value)
