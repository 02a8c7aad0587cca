"""The exact search for a ring: the optimum over all subsets of a small pool, all orders, all heads and all
splits.

Held and Karp's dynamic programming for shortest tours (1962), widened by the layers: for each head, the
state is (set of hosts used, last host), and its value is a vector, the least nanoseconds in which exactly
those hosts can cover [0, m), for each m. A host is appended by one pass over the vector (see
ring/split.py). No triangle inequality and no equal layers are assumed. States that cannot beat the best
ring found so far are dropped (branch and bound).

Ties are broken by fewer stages, then by the lexicographically first peers. For that, a cost is one integer:
nanoseconds, shifted up to leave room for the ring's members as digits, first the head. Of two costs for the
same set and layers the smaller integer has the smaller time, or at equal times the earlier order, and both
parts stay additive.
"""

from __future__ import annotations

from collections.abc import Iterator

from ring.candidate import Pool
from ring.split import UNREACHABLE, extended_costs, head_costs

_State = tuple[int, int]  # (set of used hosts as bits, last host)


def exact_order(pool: Pool) -> tuple[int, ...] | None:
    """Return the members of the best ring in order, head first, as indices into the pool; None if there is
    no ring.

    Takes time and memory in O(n² · 2ⁿ · layers) for n hosts.
    """
    search = _ExactSearch(pool)
    for head in range(len(pool.hosts)):
        search.try_head(head)
    return search.best_order()


class _ExactSearch:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        count = len(pool.hosts)
        self._digit_bits = count.bit_length()
        self._unit = 1 << (self._digit_bits * count)
        self._nearest = _shortest_ways(pool)
        self._least: dict[int, list[int]] = {}  # by the set of used hosts
        self._best: tuple[int, int, int] | None = None  # nanoseconds, stages, members as digits

    def try_head(self, head: int) -> None:
        """Search all rings that start at `head`."""
        host = self._pool.hosts[head]
        costs = [
            cost if cost >= UNREACHABLE else cost * self._unit + self._digit(head, 0)
            for cost in head_costs(host, self._pool.layers)
        ]
        self._offer(costs[-1], 1)
        level: dict[_State, list[int]] = {(1 << head, head): costs}
        for position in range(1, len(self._pool.hosts)):
            level = self._next_level(level, head, position)

    def best_order(self) -> tuple[int, ...] | None:
        """Return the best ring found, read from its cost's digits."""
        if self._best is None:
            return None
        _, stages, digits = self._best
        mask = (1 << self._digit_bits) - 1
        shifts = (self._shift(position) for position in range(stages))
        return tuple(digits >> shift & mask for shift in shifts)

    def _next_level(
        self, level: dict[_State, list[int]], head: int, position: int
    ) -> dict[_State, list[int]]:
        reached: dict[_State, list[int]] = {}
        for (used, last), costs in level.items():
            for host, hop in self._unused_neighbours(used, last):
                arriving = [cost + hop * self._unit for cost in costs]
                state = (used | 1 << host, host)
                reached[state] = list(map(min, reached[state], arriving)) if state in reached else arriving
        following: dict[_State, list[int]] = {}
        for state, arriving in reached.items():
            costs = self._append(state, arriving, position)
            closing = self._pool.hop_ns(state[1], head)
            if closing is not None and costs[-1] < UNREACHABLE:
                self._offer(costs[-1] + closing * self._unit, position + 1)
            if self._drop_hopeless(state, costs, head):
                following[state] = costs
        return following

    def _unused_neighbours(self, used: int, last: int) -> Iterator[tuple[int, int]]:
        for host in range(len(self._pool.hosts)):
            hop = self._pool.hop_ns(last, host)
            if hop is not None and not used >> host & 1:
                yield host, hop

    def _append(self, state: _State, arriving: list[int], position: int) -> list[int]:
        _, host = state
        digit = self._digit(host, position)
        extended = extended_costs(arriving, self._pool.hosts[host], self._unit)
        return [cost if cost >= UNREACHABLE else cost + digit for cost in extended]

    def _drop_hopeless(self, state: _State, costs: list[int], head: int) -> bool:
        """Drop what cannot be completed within the best cost; tell whether anything is left to extend."""
        used, last = state
        layers = self._pool.layers
        costs[layers] = UNREACHABLE
        way_home = self._nearest[last][head]
        if way_home is None:
            return False
        limit = UNREACHABLE - 1 if self._best is None else self._best[0]
        rest = self._least_compute(used)
        for end in range(1, layers):
            if costs[end] // self._unit + way_home + rest[layers - end] > limit:
                costs[end] = UNREACHABLE
        return min(costs) < UNREACHABLE

    def _least_compute(self, used: int) -> list[int]:
        """Return for each number of layers a time that the unused hosts need at least."""
        if used not in self._least:
            unused = [host for index, host in enumerate(self._pool.hosts) if not used >> index & 1]
            ending = min((host.tail_ns for host in unused), default=0)
            times = [0]
            for host in sorted(unused, key=lambda host: host.layer_ns):
                most = min(host.reach.most_layers(self._pool.layers), self._pool.layers + 1 - len(times))
                times += [times[-1] + host.layer_ns * (count + 1) for count in range(most)]
            times += [UNREACHABLE] * (self._pool.layers + 1 - len(times))
            self._least[used] = [ending + time for time in times]
        return self._least[used]

    def _offer(self, cost: int, stages: int) -> None:
        if cost < UNREACHABLE:
            found = (cost // self._unit, stages, cost % self._unit)
            self._best = found if self._best is None else min(self._best, found)

    def _digit(self, host: int, position: int) -> int:
        return host << self._shift(position)

    def _shift(self, position: int) -> int:
        return self._digit_bits * (len(self._pool.hosts) - 1 - position)


def _shortest_ways(pool: Pool) -> list[list[int | None]]:
    """Return the nanoseconds of the shortest way, over others if need be, between any two (Floyd, 1962)."""
    count = len(pool.hosts)
    ways = [[0 if a == b else pool.hop_ns(a, b) for b in range(count)] for a in range(count)]
    for via in range(count):
        for a in range(count):
            for b in range(count):
                first, second, known = ways[a][via], ways[via][b], ways[a][b]
                if first is not None and second is not None and (known is None or first + second < known):
                    ways[a][b] = first + second
    return ways
