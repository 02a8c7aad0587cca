"""Split: how many layers each host of a ring serves, once the hosts and their order are chosen.

What a block costs its host grows by the same amount with every layer, but which blocks are allowed depends on which
layers they are (they differ in size, the head holds the embedding, the tail the lm_head), so the split is found by
dynamic programming over layer boundaries and not by filling the fastest host first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ring.candidate import PENALTY, Integers, Pool, Terms, Truths

IMPOSSIBLE = 1 << 61
"""The cost of what is no block at all. Adding two such costs and all real ones does not overflow."""


@dataclass(frozen=True)
class Blocks:
    """What each host of a pool may serve, and at which cost.

    Attributes:
        cost: [host, lo, hi] the cost of [lo, hi) in nanoseconds, and PENALTY for every layer that the block has
            beyond what the host may serve; IMPOSSIBLE where lo ≥ hi.
        busy: [host, lo, hi] the nanoseconds for which a frame keeps the stage or its uplink busy.

    """

    cost: Integers
    busy: Integers

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.cost.shape[1]) - 1

    def within(self, bottleneck_ns: int) -> Blocks:
        """Return the same with blocks forbidden whose busy time is above a bound."""
        allowed = (self.cost < PENALTY) & (self.busy <= bottleneck_ns)
        plain = np.where(self.cost < IMPOSSIBLE, self.cost % PENALTY, self.cost)
        return Blocks(_penalised(plain, allowed, self.layers), self.busy)

    def only(self, members: Sequence[int]) -> Blocks:
        """Return the blocks of some of the hosts."""
        return Blocks(self.cost[list(members)], self.busy[list(members)])


def blocks_of(pool: Pool, terms: Terms, extra: Integers | None = None) -> Blocks:
    """Return what the hosts of a pool may serve.

    Args:
        pool: the hosts.
        terms: their times for a frame.
        extra: [host, lo, hi] nanoseconds to add to the costs.

    """
    layers, ends = pool.layers, np.arange(pool.layers + 1)
    compute: Integers = (ends[None, :] - ends[:, None])[None] * terms.layer[:, None, None]
    compute[:, :, layers] += terms.tail[:, None]
    busy = np.maximum(compute, terms.wire[:, None, None])
    busy[:, :, layers] = np.maximum(compute[:, :, layers], terms.wire_back[:, None])
    busy[:, 0, layers] = compute[:, 0, layers]
    cost = compute if extra is None else compute + extra
    cost = np.where(ends[:, None] < ends[None, :], cost, IMPOSSIBLE)
    return Blocks(_penalised(cost, pool.fits, layers), busy)


def covering_cost(blocks: Blocks, order: Sequence[int]) -> int:
    """Return the least cost in which the hosts of an order, each with at least one layer, cover all layers."""
    return int(_covers(blocks.cost, order)[-1][-1])


def best_cuts(blocks: Blocks, order: Sequence[int]) -> tuple[int, ...] | None:
    """Return the boundaries 0 = c_0 < c_1 < … < c_k = L of the best split of a ring; None if no split is allowed.

    Best is the least cost in all; of those the least busy time of the slowest stage, which is what frames in
    flight wait for; of those the one whose last cuts come first.
    """
    least = covering_cost(blocks, order)
    if least >= PENALTY:
        return None
    chosen = blocks.only(order)
    places = range(len(order))
    bounds = np.unique(chosen.busy[chosen.cost < PENALTY])
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if covering_cost(chosen.within(int(bounds[middle])), places) == least:
            high = middle
        else:
            low = middle + 1
    cost = chosen.within(int(bounds[low])).cost
    covers = _covers(cost, places)
    cuts = [len(cost[0]) - 1]
    for place in reversed(places[1:]):
        arriving = covers[place - 1] + cost[place, :, cuts[-1]]
        cuts.append(int(np.flatnonzero(arriving == covers[place][cuts[-1]])[0]))
    return (0, *reversed(cuts))


def ring_hops(terms: Terms, order: Sequence[int]) -> int:
    """Return the nanoseconds of all edges of a ring; a ring of one has none."""
    if len(order) == 1:
        return 0
    here = list(order)
    return int(terms.hop[here[:-1], here[1:]].sum() + terms.back[here[-1], here[0]])


def _covers(cost: Integers, order: Sequence[int]) -> list[Integers]:
    """Return for each place [m] the least cost in which the hosts up to it cover [0, m)."""
    covers = [cost[order[0], 0]]
    for host in order[1:]:
        covers.append(np.minimum((covers[-1][:, None] + cost[host]).min(axis=0), IMPOSSIBLE))
    return covers


def _penalised(cost: Integers, allowed: Truths, layers: int) -> Integers:
    """Add PENALTY to every block for each layer beyond the widest allowed block with the same start."""
    ends = np.arange(layers + 1)
    starts = np.broadcast_to(ends[:, None], allowed.shape)
    widest = np.maximum.accumulate(np.where(allowed, ends, starts), axis=2)
    return np.where(cost < IMPOSSIBLE, cost + (ends - widest) * PENALTY, IMPOSSIBLE)
