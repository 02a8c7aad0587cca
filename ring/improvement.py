"""Improvement: makes a ring better step by step: a host added, replaced, removed or moved, two exchanged, a stretch of the
ring reversed, the ring turned. Every step is valued with its best split of the layers.

With the costs of covering everything before a place, and everything behind it, one minimum over the blocks that fit
in between values all hosts for that place at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ring.candidate import Integers, Terms, Truths
from ring.split import IMPOSSIBLE, Blocks, covering_cost, ring_hops

_Order = tuple[int, ...]

_WORK = 250_000_000  # block values looked at; bounds the time, and unlike a deadline gives the same ring on every host
_REACH = 24  # how far apart the places are that one step exchanges
_REORDERED = 48  # orders of the same hosts that are valued in one step


class Improvement:
    """Improves rings of one set of hosts under one set of costs."""

    def __init__(self, terms: Terms, blocks: Blocks, apart: Truths, most_layers: Integers) -> None:
        """`apart` and `most_layers` are a pool's (ring/candidate.py)."""
        self._terms, self._blocks, self._apart = terms, blocks, apart
        layers = blocks.cost.shape[1] - 1
        # Blocks that are far too long for every host stay out; somewhat too long ones may lead to a ring that works.
        widest = min(layers, 2 * int(most_layers.max(initial=1)) + 2)
        starts, ends = np.triu_indices(layers + 1, 1)
        near = ends - starts <= widest
        self._starts, self._ends = starts[near], ends[near]
        self._block_cost = blocks.cost[:, self._starts, self._ends]
        self._work = 0

    def improve(self, order: _Order) -> tuple[int, _Order]:
        """Return the cost and the order of the ring to which taking helpful steps again and again leads."""
        self._work = 0
        best = (self._cost(order), len(order), order)
        while self._work < _WORK:
            better = min(self._steps(best[2]), default=best)
            if better >= best:
                break
            best = better
        return best[0], best[2]

    def _cost(self, order: _Order) -> int:
        return covering_cost(self._blocks, order) + ring_hops(self._terms, order)

    def _steps(self, order: _Order) -> Iterator[tuple[int, int, _Order]]:
        """Yield the best ring of each kind of step."""
        before, behind = self._covers(order)
        for place in range(len(order) + 1):
            yield from self._best_at(order, place, place, before[place], behind[place])
            if place < len(order):
                yield from self._best_at(order, place, place + 1, before[place], behind[place + 1])
        orders = list(self._reordered(order))
        if len(order) > 1:
            orders += [order[:place] + order[place + 1 :] for place in range(len(order))]
        for other in orders:
            self._work += len(other) * self._blocks.cost[0].size
            yield self._cost(other), len(other), other

    def _covers(self, order: _Order) -> tuple[list[Integers], list[Integers]]:
        """Return for each place [m] the least cost of covering [0, m) before it, and [m, L) from it on."""
        cost, size = self._blocks.cost, self._blocks.cost.shape[1]
        start, end = np.full(size, IMPOSSIBLE, np.int64), np.full(size, IMPOSSIBLE, np.int64)
        start[0], end[-1] = 0, 0
        before, behind = [start], [end]
        for host in order:
            before.append(np.minimum((before[-1][:, None] + cost[host]).min(axis=0), IMPOSSIBLE))
        for host in reversed(order):
            behind.append(np.minimum((cost[host] + behind[-1][None, :]).min(axis=1), IMPOSSIBLE))
        self._work += 2 * len(order) * cost[0].size
        return before, behind[::-1]

    def _best_at(
        self, order: _Order, start: int, end: int, before: Integers, behind: Integers
    ) -> Iterator[tuple[int, int, _Order]]:
        """Yield the best ring with one other host in place of order[start:end], which is one host or none."""
        rest = order[:start] + order[end:]
        usable = np.ones(len(self._apart), np.bool_)
        usable[list(order)] = False
        if rest:
            usable &= ~self._apart[list(rest)].any(axis=0)
        hosts = np.flatnonzero(usable)
        if not hosts.size:
            return
        around = before[self._starts] + behind[self._ends]
        covering = (self._block_cost[hosts] + np.minimum(around, IMPOSSIBLE)).min(axis=1)
        self._work += hosts.size * around.size
        total = covering + self._hops_with(rest, start, hosts)
        place = int(total.argmin())
        chosen = int(hosts[place])
        yield int(total[place]), len(rest) + 1, (*rest[:start], chosen, *rest[start:])

    def _hops_with(self, rest: _Order, place: int, hosts: Integers) -> Integers:
        """Return [host] the nanoseconds of all edges of a ring with a host put in at a place."""
        if not rest:
            return np.zeros(len(hosts), np.int64)
        hop, back = self._terms.hop, self._terms.back
        inner = list(rest)
        edges = hop[inner[:-1], inner[1:]]
        total = int(edges.sum())
        if place == 0:
            ways: Integers = hop[hosts, rest[0]] + back[rest[-1], hosts]
        elif place == len(rest):
            ways = hop[rest[-1], hosts] + back[hosts, rest[0]]
        else:
            total += int(back[rest[-1], rest[0]]) - int(edges[place - 1])
            ways = hop[rest[place - 1], hosts] + hop[hosts, rest[place]]
        return total + ways

    def _reordered(self, order: _Order) -> list[_Order]:
        """Return the orders of the same hosts whose edges cost least."""
        orders = sorted(set(_orders(order)) - {order})
        if not orders:
            return []
        table = np.array(orders)
        hops = (
            self._terms.hop[table[:, :-1], table[:, 1:]].sum(axis=1)
            + self._terms.back[table[:, -1], table[:, 0]]
        )
        return [orders[index] for index in np.argsort(hops, kind="stable")[:_REORDERED]]


def _orders(order: _Order) -> Iterator[_Order]:
    """Yield the orders that are one step from an order."""
    places = range(len(order))
    for start in places:
        for end in range(start + 2, min(start + _REACH, len(order)) + 1):
            yield order[:start] + order[start:end][::-1] + order[end:]
            yield (*order[:start], order[end - 1], *order[start + 1 : end - 1], order[start], *order[end:])
    for place in places:
        rest = order[:place] + order[place + 1 :]
        near = range(max(0, place - _REACH), min(place + _REACH + 1, len(order)))
        yield from ((*rest[:to], order[place], *rest[to:]) for to in near if to != place)
    yield from (order[place:] + order[:place] for place in places[1:])
