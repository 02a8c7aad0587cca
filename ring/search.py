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
from ring.split import best_cuts
from ring.view import FoundRing, Loading, View

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


def cheapest_order(
    view: View, bottleneck_ns: int | None, known: Sequence[_Order] = (), limit: int = PENALTY - 1
) -> _Order | None:
    """Return the members of the ring of least cost in order, head first; None if there is none (or none was found).

    Args:
        view: the pool, and what counts as cost.
        bottleneck_ns: no stage and no uplink may be busy for longer with a frame; None: no bound.
        known: rings to start from in a large pool.
        limit: rings that cost more are of no interest.

    """
    if len(view.pool.able) > EXACT_HOSTS:
        return heuristic_order(view, EXACT_HOSTS, bottleneck_ns, known)
    if not view.pool.able:
        return None
    region = view.region(view.pool.able)
    blocks = region.blocks if bottleneck_ns is None else region.blocks.within(bottleneck_ns)
    order = exact_order(region.terms, blocks, region.apart, limit)
    return None if order is None else tuple(region.members[host] for host in order)


def split(view: View, order: _Order, bottleneck_ns: int | None) -> tuple[int, ...]:
    """Return the boundaries of the best split of a ring that cheapest_order has given for the same bound."""
    region = view.region(tuple(sorted(order)))
    blocks = region.blocks if bottleneck_ns is None else region.blocks.within(bottleneck_ns)
    cuts = best_cuts(blocks, tuple(region.members.index(host) for host in order))
    if cuts is None:
        raise RuntimeError(f"the search gave the ring {order}, which has no split")
    return cuts


def valued(view: View, values: Values, order: _Order, cuts: tuple[int, ...]) -> tuple[FoundRing, int]:
    """Return a ring with its value at a frame width, and its bottleneck in nanoseconds."""
    circuit, bottleneck = view.times(order, cuts)
    value = values.value(view.width, circuit, bottleneck + view.loading_bottleneck(order, cuts))
    return FoundRing(value, circuit, len(order), order, cuts), bottleneck


class _Search:
    def __init__(self, pool: Pool, values: Values, loading: Loading | None) -> None:
        self._pool, self._values, self._loading = pool, values, loading
        self._best: FoundRing | None = None

    def exact(self) -> FoundRing | None:
        """Visit all rings that no other one beats in both T and τ, as far as they can be best."""
        for width in self._widths():
            view, bound = View(self._pool, width, self._loading), None
            limit = self._limit(view)
            while limit > 0 and (order := cheapest_order(view, bound, limit=limit)) is not None:
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
                order = cheapest_order(view, bound, starts)
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
            order = self._best.order
            views = [View(self._pool, width, self._loading) for width in others]
            ranked = [
                (valued(view, self._values, order, split(view, order, None))[0], view.width) for view in views
            ]
            yield from (width for _, width in sorted(ranked))

    def _offer(self, view: View, order: _Order, bound: int | None) -> tuple[int, int]:
        """Keep a ring if it is the best so far; returns its circuit time, with what loading counts, and its bottleneck."""
        found, bottleneck = valued(view, self._values, order, split(view, order, bound))
        self._best = found if self._best is None else min(self._best, found)
        return found.circuit_ns, bottleneck

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
