"""The heuristic search for a ring in a pool that is too large for the exact one. Deterministic, but not always optimal.

Hosts in turn are the anchor of a first ring: the anchor and those hosts that add layers most cheaply near it, until all
layers are covered, in the order of nearest neighbours. The best of these are improved step by step (ring/improvement.py).
Last, the exact search runs on the best ring's members and the hosts around them, as far as it can take them.

Costs that hold a PENALTY are of rings that do not work (an edge is missing, a host serves too much), but may lead to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ring.candidate import PENALTY, Integers, Pool, Terms
from ring.exact import exact_order
from ring.improvement import Improvement
from ring.split import Blocks, covering_cost, ring_hops
from ring.view import Region, View

_Order = tuple[int, ...]

_ANCHORS = 48
_NEIGHBOURHOOD = 128
_IMPROVED = 4
_WORK, _WORK_PER_HOST, _WORK_BESIDE_KNOWN = 220_000_000, 1_500_000, 30_000_000
_ANCHORS_BESIDE_KNOWN, _IMPROVED_BESIDE_KNOWN = 2, 1
_IMPROVED_IF_NONE_WORKS = 8
_LARGER = 16  # how often a first ring that does not cover the model is tried with more hosts


def heuristic_order(
    view: View, exact_hosts: int, bottleneck_ns: int | None, known: Sequence[_Order]
) -> _Order | None:
    """Return the members of a good ring in order, head first; None if none was found.

    Args:
        view: the pool at a frame width.
        exact_hosts: how many hosts the exact search may be given.
        bottleneck_ns: no stage and no uplink may be busy for longer with a frame; None: no bound.
        known: rings to start from beside those that are found here.

    """
    return _HeuristicSearch(view, bottleneck_ns).order(exact_hosts, known)


class _HeuristicSearch:
    def __init__(self, view: View, bottleneck_ns: int | None) -> None:
        self._view, self._bottleneck_ns = view, bottleneck_ns
        self._prices = _Prices(view.pool, view.terms, bottleneck_ns)
        self._neighbourhoods: dict[_Order, _Neighbourhood] = {}

    def order(self, exact_hosts: int, known: Sequence[_Order]) -> _Order | None:
        found: list[tuple[int, int, _Order]] = []
        enough = _IMPROVED_BESIDE_KNOWN if known else _IMPROVED
        for _, _, order, members in sorted(set(self._seeds(known)))[:_IMPROVED_IF_NONE_WORKS]:
            found.append(self._neighbourhood(members).improved(order))
            if len(found) >= enough and min(found)[0] < PENALTY:
                break
        _, _, order = min(found)
        near = self._neighbourhood(self._prices.around(order, _NEIGHBOURHOOD))
        best = near.disturbed(order, _WORK_BESIDE_KNOWN if known else near.work)
        return self._polished(best, exact_hosts) if best[0] < PENALTY else None

    def _seeds(self, known: Sequence[_Order]) -> Iterator[tuple[int, int, _Order, _Order]]:
        """Yield first rings: (cost, size, order, hosts around)."""
        hosts = self._view.pool.able
        for anchor in sorted(hosts, key=lambda host: (self._prices.alone(host), host))[
            : _ANCHORS_BESIDE_KNOWN if known else _ANCHORS
        ]:
            members = self._prices.around((anchor,), _NEIGHBOURHOOD)
            neighbourhood = self._neighbourhood(members)
            order = _seed(neighbourhood, self._prices, anchor)
            yield neighbourhood.cost(order), len(order), order, members
        for order in known:
            members = self._prices.around(order, _NEIGHBOURHOOD)
            yield self._neighbourhood(members).cost(order), len(order), order, members

    def _neighbourhood(self, members: _Order) -> _Neighbourhood:
        if members not in self._neighbourhoods:
            region = self._view.region(members)
            blocks = (
                region.blocks if self._bottleneck_ns is None else region.blocks.within(self._bottleneck_ns)
            )
            self._neighbourhoods[members] = _Neighbourhood(region, blocks)
        return self._neighbourhoods[members]

    def _polished(self, best: tuple[int, int, _Order], exact_hosts: int) -> _Order:
        """Return the optimum among a ring's members and the hosts around, or the ring if it has too many members."""
        cost, _, order = best
        if len(order) > exact_hosts:
            return order
        near = self._neighbourhood(self._prices.around(order, exact_hosts))
        polished = exact_order(near.region.terms, near.blocks, near.region.apart, cost)
        return order if polished is None else near.named(polished)


class _Neighbourhood:
    """Some of the hosts. What goes in and out are the whole pool's names of them."""

    def __init__(self, region: Region, blocks: Blocks) -> None:
        self.region, self.blocks = region, blocks
        self._place_of = {member: place for place, member in enumerate(region.members)}
        self.work = _WORK + _WORK_PER_HOST * len(region.members)
        self._improvement = Improvement(region.terms, blocks, region.apart, region.most_layers)

    def places(self, order: Sequence[int]) -> _Order:
        """Return the places of hosts in here."""
        return tuple(self._place_of[host] for host in order)

    def named(self, places: Sequence[int]) -> _Order:
        """Return the hosts at places."""
        return tuple(self.region.members[place] for place in places)

    def cost(self, order: _Order) -> int:
        """Return what a ring costs."""
        inside = self.places(order)
        return covering_cost(self.blocks, inside) + ring_hops(self.region.terms, inside)

    def improved(self, order: _Order) -> tuple[int, int, _Order]:
        """Return the (cost, size, order) of a better ring."""
        cost, inside = self._improvement.improve(self.places(order), self.work)
        return cost, len(inside), self.named(inside)

    def disturbed(self, order: _Order, work: int) -> tuple[int, int, _Order]:
        """Return the (cost, size, order) of the best ring found by disturbing one for so long (ring/improvement.py)."""
        cost, inside = self._improvement.disturb(self.places(order), work)
        return cost, len(inside), self.named(inside)


class _Prices:
    """What a layer at a host costs a ring near some others: its time and a part of the detour."""

    def __init__(self, pool: Pool, terms: Terms, bottleneck_ns: int | None) -> None:
        self.most = pool.most_layers
        if bottleneck_ns is not None:
            self.most = np.minimum(self.most, bottleneck_ns // np.maximum(terms.layer, 1))
        self._layer, self._detour, self.apart = terms.layer, terms.hop + terms.hop.T, pool.apart

    def alone(self, host: int) -> int:
        """Return the price of a layer at an anchor: its own time and that of the nearest way to anybody."""
        if not self.most[host]:
            return PENALTY
        return int(self._layer[host] + self._detour[host].min() // self.most[host])

    def near(self, members: Sequence[int]) -> Integers:
        """Return [host] the price of a layer there, for the nearest of some members."""
        detour = self._detour[list(members)].min(axis=0)
        detour[list(members)] = 0
        return np.where(self.most > 0, self._layer + detour // np.maximum(self.most, 1), PENALTY)

    def around(self, members: Sequence[int], count: int) -> _Order:
        """Return some members and the hosts that are cheapest near them, at most `count` in all, ascending."""
        near = self.near(members)
        near[list(members)] = -1
        cheapest = np.argsort(near, kind="stable")[: max(count, len(members))]
        return tuple(sorted(int(host) for host in cheapest))


def _seed(near: _Neighbourhood, prices: _Prices, anchor: int) -> _Order:
    """Return a first ring around an anchor: nearest neighbours among the hosts that are cheapest there."""
    price = prices.near((anchor,))
    cheapest = sorted(near.region.members, key=lambda host: (host != anchor, int(price[host]), host))
    members: list[int] = []
    layers, target, tries = 0, near.blocks.layers, 0
    for host in cheapest:
        if layers >= target:
            order = _nearest_neighbours(near, members)
            tries += 1
            if near.cost(order) < PENALTY or tries == _LARGER:
                return order
            target = layers + 1
        if not prices.apart[host, members].any():
            members.append(host)
            layers += int(prices.most[host])
    return _nearest_neighbours(near, members)


def _nearest_neighbours(near: _Neighbourhood, members: Sequence[int]) -> _Order:
    hop = near.region.terms.hop
    first, *others = near.places(members)
    order, rest = [first], sorted(others)
    while rest:
        nearest = rest[int(hop[order[-1], rest].argmin())]
        order.append(nearest)
        rest.remove(nearest)
    return near.named(order)
