"""View: a pool as a search sees it: all times for frames of one width, and what loading adds to the costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ring.candidate import Integers, Pool, Terms, Truths
from ring.split import Blocks, blocks_of, ring_hops

_Order = tuple[int, ...]

_LONGEST_REFERENCE_NS = 1 << 38


@dataclass(frozen=True, slots=True, order=True)
class FoundRing:
    """A ring, valued; the smaller one is the better one.

    Attributes:
        value: what it is worth, see the objective.
        circuit_ns: T at the width at which it is best, with what loading counts.
        stages: how many hosts it has.
        order: the hosts, head first, as indices into the pool.
        cuts: the boundaries of their blocks, 0 first and the number of layers last.

    """

    value: int
    circuit_ns: int
    stages: int
    order: _Order
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading counts: a second of it like a circuit and a bottleneck longer by 1 / horizon_s of a given ring's.

    Attributes:
        reference: the ring that would be best if loading cost nothing.
        horizon_s: for how many seconds a ring is expected to stand, at least 1.

    """

    reference: FoundRing
    horizon_s: int


@dataclass(frozen=True)
class Region:
    """Some of the hosts of a pool, ascending, with all that a search needs of them; here they are named by their place.

    Attributes:
        members: the hosts, as indices into the pool.
        terms, apart: of these hosts only (ring/candidate.py).
        most_layers: [host] the most layers of any block that it may serve.
        blocks: what they may serve, and at which cost.

    """

    members: _Order
    terms: Terms
    apart: Truths
    most_layers: Integers
    blocks: Blocks


class View:
    """A pool at one frame width."""

    def __init__(self, pool: Pool, width: int, loading: Loading | None) -> None:
        self.pool, self.width, self.terms = pool, width, pool.terms(width)
        self._loading = loading
        self._reference: tuple[int, int] | None = None
        self._regions: dict[_Order, Region] = {}

    def region(self, members: _Order) -> Region:
        """Return some of the hosts; `members` are ascending indices into the pool."""
        if members not in self._regions:
            self._regions[members] = self._region(members)
        return self._regions[members]

    def times(self, order: _Order, cuts: Sequence[int]) -> tuple[int, int]:
        """Return the circuit time of a ring, with what loading counts, and its bottleneck, in nanoseconds."""
        region = self.region(tuple(sorted(order)))
        inside = tuple(region.members.index(host) for host in order)
        places = (list(inside), list(cuts[:-1]), list(cuts[1:]))
        circuit = int(region.blocks.cost[places].sum()) + ring_hops(region.terms, inside)
        return circuit, int(region.blocks.busy[places].max())

    def _region(self, members: _Order) -> Region:
        pool, terms, extra = self.pool.only(members), self.terms.only(members), None
        if self._loading is not None:
            circuit, _ = self._reference_times(self._loading.reference)
            loads = np.stack([self.pool.load_ms(host) for host in members])
            extra = loads * circuit // (1000 * self._loading.horizon_s)
        return Region(members, terms, pool.apart, pool.most_layers, blocks_of(pool, terms, extra))

    def loading_bottleneck(self, order: _Order, cuts: Sequence[int]) -> int:
        """Return by how many nanoseconds the loading of a ring's blocks counts as a longer bottleneck."""
        if self._loading is None:
            return 0
        _, bottleneck = self._reference_times(self._loading.reference)
        blocks = zip(order, pairwise(cuts), strict=True)
        load_ms = sum(int(self.pool.load_ms(host)[block]) for host, block in blocks)
        return load_ms * bottleneck // (1000 * self._loading.horizon_s)

    def least_bottleneck(self) -> int:
        """Return a time below which no ring's bottleneck can be: all hosts share the layers as evenly as they can."""
        return self._least_bottleneck

    @cached_property
    def _least_bottleneck(self) -> int:
        most, layer = self.pool.most_layers, np.maximum(self.terms.layer, 1)
        low, high = 0, int((most * layer).max(initial=0))
        while low < high:
            middle = (low + high) // 2
            enough = int(np.minimum(most, middle // layer).sum()) >= self.pool.layers
            low, high = (low, middle) if enough else (middle + 1, high)
        return low

    def _reference_times(self, ring: FoundRing) -> tuple[int, int]:
        """Return the circuit time and the bottleneck of the ring that loading is measured by."""
        if self._reference is None:
            circuit, bottleneck = View(self.pool, self.width, None).times(ring.order, ring.cuts)
            self._reference = min(circuit, _LONGEST_REFERENCE_NS), bottleneck
        return self._reference
