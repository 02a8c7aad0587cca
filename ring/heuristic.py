"""The heuristic search for a ring in a pool that is too large for the exact one. Deterministic, but not
always optimal.

Every host in turn is the anchor of a first ring: it and those hosts that add layers most cheaply near it,
until all layers are covered, in the order of nearest neighbours. The best of these rings are improved step
by step (a host added, removed, replaced or moved, two exchanged, a stretch of the ring reversed) until no
step helps or the bound on steps is reached. Last, the exact search runs on the best ring's members and the
hosts around them, as far as it can take them.

A ring that lacks an edge, or does not cover all layers, is worse than any that works, but may be a step
towards one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ring.candidate import Pool
from ring.exact import exact_order
from ring.split import UNREACHABLE, extended_costs, head_costs

_Order = tuple[int, ...]

_ANCHORS = 64
_SEEDS = 4
_SEEDS_IF_NONE_WORKS = 8
_EVALUATIONS = 1_500  # bounds the time, and unlike a deadline gives the same plan on every host


@dataclass(frozen=True, slots=True, order=True)
class _Value:
    """How good a ring is; smaller is better. The order itself breaks ties."""

    missing_edges: int
    uncovered: int
    nanoseconds: int
    stages: int
    order: _Order

    @property
    def works(self) -> bool:
        return not self.missing_edges and not self.uncovered


def heuristic_order(pool: Pool, exact_hosts: int) -> _Order | None:
    """Return the members of a good ring in order, head first, as indices into the pool; None if none was
    found.

    Args:
        pool: the hosts.
        exact_hosts: how many hosts the exact search may be given.

    """
    hosts = range(len(pool.hosts))
    anchors = sorted(hosts, key=lambda host: (_price(pool, host, host), host))[:_ANCHORS]
    seeds = sorted({_seed(pool, anchor) for anchor in anchors})
    seeds += [_value(pool, (host,)) for host in hosts if pool.hosts[host].reach.solo]
    best = _best_improved(pool, sorted(seeds))
    around = sorted(hosts, key=lambda host: (host not in best.order, _price(pool, best.order[0], host), host))
    members = sorted(around[:exact_hosts])
    polished = exact_order(pool.only(members)) if len(best.order) <= exact_hosts else None
    if polished is not None:
        best = min(best, _value(pool, tuple(members[member] for member in polished)))
    return best.order if best.works else None


def _best_improved(pool: Pool, seeds: Sequence[_Value]) -> _Value:
    """Return the best ring to which some of the best seeds lead; as long as none works, more are tried."""
    improvement = _Improvement(pool)
    found: list[_Value] = []
    for seed in seeds[:_SEEDS_IF_NONE_WORKS]:
        found.append(improvement.improve(seed))
        if len(found) >= _SEEDS and min(found).works:
            break
    return improvement.improve(min(found))


def _price(pool: Pool, anchor: int, host: int) -> int:
    """Return the nanoseconds a layer at `host` costs a ring near `anchor`: its time and part of the detour."""
    candidate = pool.hosts[host]
    most = candidate.reach.most_layers(pool.layers)
    detour = 0 if anchor == host else pool.hop_ns(anchor, host)
    if not most or detour is None:
        return UNREACHABLE
    return candidate.layer_ns + 2 * detour // most


def _seed(pool: Pool, anchor: int) -> _Value:
    """Return a first ring around an anchor: nearest neighbours among the hosts that are cheapest there."""
    cheapest = sorted(range(len(pool.hosts)), key=lambda host: (_price(pool, anchor, host), host))
    cheapest.remove(anchor)
    members, layers, target = [anchor], pool.hosts[anchor].reach.most_layers(pool.layers), pool.layers
    for host in cheapest:
        if layers >= target:
            value = _value(pool, _nearest_neighbours(pool, members))
            if not value.uncovered:
                return value
            target = layers + value.uncovered
        members.append(host)
        layers += pool.hosts[host].reach.most_layers(pool.layers)
    return _value(pool, _nearest_neighbours(pool, members))


def _nearest_neighbours(pool: Pool, members: Sequence[int]) -> _Order:
    order, rest = [members[0]], set(members[1:])
    while rest:
        here = order[-1]
        nearest = min(rest, key=lambda host: (_hop_or_worst(pool, here, host), host))
        order.append(nearest)
        rest.remove(nearest)
    return tuple(order)


def _hop_or_worst(pool: Pool, here: int, there: int) -> int:
    hop = pool.hop_ns(here, there)
    return UNREACHABLE if hop is None else hop


def _hops(pool: Pool, order: _Order) -> tuple[int, int]:
    """Return how many edges of a ring are missing, and the nanoseconds of the others."""
    if len(order) == 1:
        return 0, 0
    hops = [pool.hop_ns(order[index - 1], order[index]) for index in range(len(order))]
    return hops.count(None), sum(hop for hop in hops if hop is not None)


def _value(pool: Pool, order: _Order) -> _Value:
    missing, nanoseconds = _hops(pool, order)
    costs = head_costs(pool.hosts[order[0]], pool.layers)
    for host in order[1:]:
        costs[-1] = UNREACHABLE
        costs = extended_costs(costs, pool.hosts[host])
    covered = max((end for end, cost in enumerate(costs) if cost < UNREACHABLE), default=0)
    compute = costs[covered] if covered else 0
    return _Value(missing, pool.layers - covered, nanoseconds + compute, len(order), order)


class _Improvement:
    """Step-by-step improvement of rings."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._left = 0
        self._fastest = min(host.layer_ns for host in pool.hosts) * pool.layers

    def improve(self, value: _Value) -> _Value:
        """Return the ring to which taking the first helpful step again and again leads."""
        self._left = _EVALUATIONS
        while (better := self._first_better(value)) is not None:
            value = better
        return value

    def _first_better(self, value: _Value) -> _Value | None:
        for order in _neighbours(value.order, range(len(self._pool.hosts))):
            if self._left <= 0:
                return None
            if not self._hopeless(order, value):
                self._left -= 1
                tried = _value(self._pool, order)
                if tried < value:
                    return tried
        return None

    def _hopeless(self, order: _Order, value: _Value) -> bool:
        """Tell from the hops alone, which cost little to add up, whether a ring cannot be better."""
        missing, nanoseconds = _hops(self._pool, order)
        if missing != value.missing_edges or value.uncovered:
            return missing > value.missing_edges
        return nanoseconds + self._fastest > value.nanoseconds


def _neighbours(order: _Order, hosts: Sequence[int]) -> Iterator[_Order]:
    """Yield all rings that are one step from a ring."""
    outside = [host for host in hosts if host not in order]
    places = range(len(order))
    if len(order) > 1:
        yield from (order[:place] + order[place + 1 :] for place in places)
    for place in places:
        yield from ((*order[:place], host, *order[place + 1 :]) for host in outside)
    for start in places:
        for end in range(start + 2, len(order) + 1):
            yield order[:start] + order[start:end][::-1] + order[end:]
            yield (*order[:start], order[end - 1], *order[start + 1 : end - 1], order[start], *order[end:])
    for place in places:
        rest = order[:place] + order[place + 1 :]
        yield from ((*rest[:to], order[place], *rest[to:]) for to in places if to != place)
    for place in range(len(order) + 1):
        yield from ((*order[:place], host, *order[place:]) for host in outside)
    yield from (order[place:] + order[:place] for place in places[1:])
