"""The exact search for a ring: the cheapest over all subsets of a small pool, all orders, all heads and all splits.

Held and Karp's dynamic programming for shortest tours (1962), widened by the layers and run from the tail to the head:
the state is (set of hosts used, first of them, tail), and its value is a vector, the least cost in which exactly
those hosts can cover [m, L), for each m. A host is put in front by one minimum over the blocks that it may serve. No
triangle inequality and no equal layers are assumed, and edges may cost more one way than the other.

Ties are broken by fewer stages, then by the lexicographically first members, then by the first head and the first
next hosts.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ring.candidate import PENALTY, Integers, Terms, Truths
from ring.split import IMPOSSIBLE, Blocks


def exact_order(
    terms: Terms, blocks: Blocks, apart: Truths, limit: int = PENALTY - 1
) -> tuple[int, ...] | None:
    """Return the members of the cheapest ring in order, head first; None if there is none.

    Takes time in O(n³ · 2ⁿ · L²) and memory in O(n² · 2ⁿ · L) for n hosts and L layers, in few steps of numpy.

    Args:
        terms: the times of the hosts' edges.
        blocks: what they may serve, and at which cost.
        apart: which hosts may not both be in a ring.
        limit: rings that cost more are of no interest.

    """
    return _ExactSearch(terms, blocks, apart, min(limit, PENALTY - 1)).order()


class _ExactSearch:
    def __init__(self, terms: Terms, blocks: Blocks, apart: Truths, limit: int) -> None:
        self._hop, self._back, self._cost = terms.hop, terms.back, blocks.cost
        self._count, self._layers = len(apart), blocks.cost.shape[1] - 1
        self._apart, self._limit = apart, limit
        # by set of hosts: [place of the first in the set, place of the tail in the set, start of the first's block]
        self._covers: dict[tuple[int, ...], Integers] = {}

    def order(self) -> tuple[int, ...] | None:
        for count in range(1, self._count + 1):
            for members in combinations(range(self._count), count):
                self._cover(members)
        found = [best for members in self._covers if (best := self._closed(members)) is not None]
        if not found:
            return None
        least, _, members = min(found)
        heads, tails = np.nonzero(self._totals(members) == least)
        ends = [tail for head, tail in zip(heads, tails, strict=True) if head == heads[0]]
        return min(self._read(members, members[heads[0]], members[tail]) for tail in ends)

    def _cover(self, members: tuple[int, ...]) -> None:
        """Work out all states of one set of hosts."""
        chosen = list(members)
        if self._apart[np.ix_(chosen, chosen)].any():
            return
        size = len(members)
        covers = np.full((size, size, self._layers + 1), IMPOSSIBLE, np.int64)
        if size == 1:
            covers[0, 0] = self._cost[members[0], :, self._layers]
        for place, first in enumerate(members if size > 1 else ()):
            rest = members[:place] + members[place + 1 :]
            if rest in self._covers:
                tails = [tail for tail in range(size) if tail != place]
                arriving = self._arriving(first, rest)
                covers[place, tails] = (self._cost[first] + arriving[:, None, :]).min(axis=2)
        if covers.min() <= self._limit:
            self._covers[members] = np.minimum(covers, IMPOSSIBLE)

    def _arriving(self, first: int, rest: tuple[int, ...]) -> Integers:
        """Return [tail, end of the first's block] the least cost from there on, the first's hop included."""
        ways: Integers = (self._hop[first, list(rest)][:, None, None] + self._covers[rest]).min(axis=0)
        return np.minimum(ways, IMPOSSIBLE)

    def _closed(self, members: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]] | None:
        """Return (cost, size, members) of a set's cheapest ring, or None if there is none below the limit."""
        least = int(self._totals(members).min())
        return None if least > self._limit else (least, len(members), members)

    def _totals(self, members: tuple[int, ...]) -> Integers:
        """Return [place of the head, place of the tail] the cost of a set's cheapest ring with these ends."""
        total = self._covers[members][:, :, 0]
        if len(members) == 1:
            return total
        chosen = list(members)
        return total + self._back[np.ix_(chosen, chosen)].T

    def _read(self, members: tuple[int, ...], head: int, tail: int) -> tuple[int, ...]:
        """Return the ring of a state by asking again which choice gave its value."""
        order, at, rest = [head], 0, members
        while len(order) < len(members):
            first = order[-1]
            value = self._covers[rest][rest.index(first), rest.index(tail), at]
            rest = tuple(member for member in rest if member != first)
            arriving = self._hop[first, list(rest)][:, None] + self._covers[rest][:, rest.index(tail)]
            place, at = divmod(
                int(np.flatnonzero(self._cost[first, at] + arriving == value)[0]), self._layers + 1
            )
            order.append(rest[place])
        return tuple(order)
