"""Improvement: makes a ring better step by step: a host added, replaced, removed or moved, one put in place of two, two
exchanged, a stretch of the ring reversed, the ring turned. Every step is valued with its best split of the layers. Where no
step helps, the ring is disturbed in two or three places and improved again (iterated local search: Lourenço, Martin, Stützle 2003).

With the costs of covering everything before a place, and everything behind it, one minimum over the blocks that fit
in between values all hosts for that place at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ring.candidate import PENALTY, Integers, Terms, Truths
from ring.split import IMPOSSIBLE, Blocks, covering_cost, ring_hops

_Order = tuple[int, ...]

_CALL = 60_000  # what a call of numpy costs, in block values looked at
_REACH = 24  # how far apart the places are that one step exchanges
_REORDERED = 48  # orders of the same hosts that are valued in one step


class Improvement:
    """Improves rings of one set of hosts under one set of costs."""

    def __init__(self, terms: Terms, blocks: Blocks, apart: Truths, most_layers: Integers) -> None:
        """`apart` and `most_layers` are a pool's (ring/candidate.py)."""
        self._terms, self._blocks, self._apart = terms, blocks, apart
        sizes = np.arange(blocks.layers + 1)
        spans = sizes[None, None, :] - sizes[None, :, None]
        self._most = np.maximum(np.where(blocks.cost < PENALTY, spans, 0).max(axis=(1, 2)), 1)
        # What a layer costs at least, with what loading counts: a block costs no less than its layers.
        per_layer = np.where(spans > 0, blocks.cost % PENALTY // np.maximum(spans, 1), PENALTY)
        self._layer = np.where(blocks.cost < IMPOSSIBLE, per_layer, PENALTY).min(axis=(1, 2))
        layers = blocks.cost.shape[1] - 1
        # Blocks that are far too long for every host stay out; somewhat too long ones may lead to a ring that works.
        widest = min(layers, 2 * int(most_layers.max(initial=1)) + 2)
        starts, ends = np.triu_indices(layers + 1, 1)
        near = ends - starts <= widest
        self._starts, self._ends = starts[near], ends[near]
        self._block_cost = blocks.cost[:, self._starts, self._ends]
        self._work = 0

    def improve(self, order: _Order, work: int) -> tuple[int, _Order]:
        """Return the cost and the order of the ring to which taking the first helpful step again and again leads.

        Args:
            order: a ring.
            work: how many block values may be looked at; this bounds the time, and unlike a deadline gives the same
                ring on every host.

        """
        self._work = 0
        cost, _, order = self._improved(order, work)
        return cost, order

    def disturb(self, order: _Order, work: int) -> tuple[int, _Order]:
        """Return the best ring found by disturbing a ring and improving it again and again."""
        self._work = 0
        best, dice = (self._cost(order), len(order), order), _Dice()
        while self._work < work:
            self._work += _CALL
            best = min(best, self._improved(self._disturbed(best[2], dice), work))
        return best[0], best[2]

    def _disturbed(self, order: _Order, dice: _Dice) -> _Order:
        """Return a ring in which two hosts are others and a stretch is reversed, as far as hosts may be together."""
        ring = list(order)
        for _ in range(2):
            place, host = dice.below(len(ring)), dice.below(len(self._apart))
            rest = ring[:place] + ring[place + 1 :]
            if host not in ring and not self._apart[host, rest].any():
                ring[place] = host
        start, end = sorted((dice.below(len(ring)), dice.below(len(ring))))
        return (*ring[:start], *reversed(ring[start : end + 1]), *ring[end + 1 :])

    def _improved(self, order: _Order, work: int) -> tuple[int, int, _Order]:
        best = (self._cost(order), len(order), order)
        while self._work < work:
            better = next((step for step in self._steps(best[2]) if step < best), None)
            if better is None:
                break
            best = better
        return best

    def _cost(self, order: _Order) -> int:
        return covering_cost(self._blocks, order) + ring_hops(self._terms, order)

    def _steps(self, order: _Order) -> Iterator[tuple[int, int, _Order]]:
        """Yield the best ring of each kind of step."""
        before, behind = self._covers(order)
        for place in range(len(order) + 1):
            yield from self._best_at(order, place, place, before[place], behind[place])
            for end in range(place + 1, min(place + 2, len(order)) + 1):
                yield from self._best_at(order, place, end, before[place], behind[end])
        cost = int(before[-1][-1]) + ring_hops(self._terms, order)
        for other in (*self._reordered(order), *_shortened(order)):
            # Most of these are seen to be no better from what their blocks cost at least.
            if ring_hops(self._terms, other) + self._least_cover(other) < cost:
                self._work += len(other) * (self._blocks.cost[0].size + _CALL // 4)
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

    def _least_cover(self, order: _Order) -> int:
        """Return a cost below which the hosts of a ring cannot cover all layers, wherever in the model they were."""
        members = list(order)
        most, layer = self._most[members], self._layer[members]
        fastest = np.argsort(layer, kind="stable")
        free = most[fastest] - 1
        left = self._blocks.layers - len(order)
        if left < 0:
            return PENALTY
        taken = np.minimum(np.cumsum(free), left)
        extra = np.diff(taken, prepend=0)
        beyond = (left - int(taken[-1])) * PENALTY
        return int(layer.sum() + (extra * layer[fastest]).sum()) + beyond

    def _best_at(
        self, order: _Order, start: int, end: int, before: Integers, behind: Integers
    ) -> Iterator[tuple[int, int, _Order]]:
        """Yield the best ring with one other host in place of order[start:end], which are at most two."""
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
        self._work += hosts.size * around.size + _CALL
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


class _Dice:
    """Numbers that look random and are the same everywhere: a linear congruential generator (Knuth's MMIX)."""

    def __init__(self) -> None:
        self._state = 1

    def below(self, limit: int) -> int:
        """Return the next number in [0, limit)."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 32) % limit


def _shortened(order: _Order) -> Iterator[_Order]:
    """Yield the orders with one host less."""
    if len(order) > 1:
        yield from (order[:place] + order[place + 1 :] for place in range(len(order)))


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
