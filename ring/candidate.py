"""Candidates: the hosts that may become stages, as the planner sees them: which blocks they can hold, how fast they are,
whom they reach, and what they would have to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.holding import DEFAULT_LOAD_RATE, held_layers
from ring.objective import Constraints
from ring.subnets import share_subnet
from ring.throughput import NS_PER_US, TOKEN_BYTES, layer_ns_at, one_way_us, wire_ns

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

PENALTY = 1 << 50
"""What a missing edge, or a layer too many for a host, counts in a cost. Above the cost of every ring that works."""

_MOST_LAYER_NS = 1 << 36
_MOST_HOP_NS = 1 << 38
_MOST_LOAD_MS = 1 << 24


@dataclass(frozen=True)
class Terms:
    """The times of all hosts of a pool for a frame of one width, in nanoseconds. Absurd ones are held below PENALTY.

    Attributes:
        layer: [host] one layer.
        tail: [host] the choice of the frame's tokens at the tail.
        hop: [host, next host] from the end of a stage's computing to the frame's arrival at the next stage; PENALTY where
            the edge is not measured by both ends, and on the diagonal.
        back: the same from the tail to the head.
        wire, wire_back: [host] for how long a frame keeps the uplink busy, to the next stage and back to the head.

    """

    layer: Integers
    tail: Integers
    hop: Integers
    back: Integers
    wire: Integers
    wire_back: Integers

    def only(self, members: Sequence[int]) -> Terms:
        """Return the terms of some of the hosts."""
        chosen = list(members)
        square = np.ix_(chosen, chosen)
        return Terms(
            *(self.layer[chosen], self.tail[chosen], self.hop[square], self.back[square]),
            *(self.wire[chosen], self.wire_back[chosen]),
        )


@dataclass(frozen=True)
class Pool:
    """All hosts that may become stages, ascending in peer; elsewhere they are named by their index here.

    Attributes:
        shape: the model.
        hosts: what they announce.
        fits: [host, lo, hi] whether the host may serve [lo, hi): its memory suffices, and the constraints allow it.
        one_way_us: [host, host] one-way microseconds, the same both ways; -1 where not both ends have measured the
            edge, and on the diagonal.
        apart: [host, host] whether the two may not both be in a ring.

    """

    shape: ModelShape
    hosts: tuple[Announcement, ...]
    fits: Truths
    one_way_us: Integers
    apart: Truths

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return self.shape.layer_count

    @cached_property
    def able(self) -> tuple[int, ...]:
        """The hosts that can serve any block at all."""
        return tuple(int(host) for host in np.flatnonzero(self.fits.any(axis=(1, 2))))

    @cached_property
    def most_layers(self) -> Integers:
        """[host] the most layers that any block which the host may serve has."""
        ends = np.arange(self.layers + 1)
        sizes: Integers = np.where(self.fits, ends[None, None, :] - ends[None, :, None], 0).max(axis=(1, 2))
        return sizes

    @cached_property
    def holds_layers(self) -> bool:
        """Whether any host has loaded a part of the model already."""
        return any(held_layers(host, self.shape) != (0, 0) for host in self.hosts)

    def only(self, members: Sequence[int]) -> Pool:
        """Return the pool of some of the hosts; `members` are ascending indices."""
        chosen = list(members)
        square = np.ix_(chosen, chosen)
        return Pool(
            self.shape,
            tuple(self.hosts[member] for member in chosen),
            self.fits[chosen],
            self.one_way_us[square],
            self.apart[square],
        )

    def terms(self, width: int) -> Terms:
        """Return all times for a frame of `width` tokens."""
        hosts, hidden = self.hosts, self.shape.hidden_bytes
        wire = _array(wire_ns(hidden, host.uplink, width) for host in hosts)
        back = _array(wire_ns(TOKEN_BYTES, host.uplink, width) for host in hosts)
        overhead = _array(host.overhead_ns for host in hosts)
        way = np.minimum(self.one_way_us, _MOST_HOP_NS // NS_PER_US) * NS_PER_US
        reached = self.one_way_us >= 0

        def hop(sending: Integers) -> Integers:
            total = np.minimum(way + np.minimum(sending + overhead, _MOST_HOP_NS)[:, None], _MOST_HOP_NS)
            return np.where(reached, total, PENALTY)

        layer = (min(layer_ns_at(host.layer_ns, width), _MOST_LAYER_NS) for host in hosts)
        tail = (min(host.tail_ns * width, _MOST_LAYER_NS) for host in hosts)
        return Terms(_array(layer), _array(tail), hop(wire), hop(back), wire, back)

    def load_ms(self, host: int) -> Integers:
        """Return [lo, hi] the milliseconds in which a host loads what it lacks of [lo, hi) (ring/holding.py)."""
        shape, count = self.shape, self.layers
        lo, hi = held_layers(self.hosts[host], shape)
        sizes = np.array(shape.layer_bytes, np.int64)
        sizes[lo:hi] = 0
        missing = np.concatenate(([0], np.cumsum(sizes)))
        total: Integers = missing[None, :] - missing[:, None]
        had_head, had_tail = hi > 0 and lo == 0, hi == count
        head, tail = shape.head_bytes * (not had_head), shape.tail_bytes * (not had_tail)
        total[0, :] += head - shape.shared_end_bytes * (had_tail and not had_head)
        total[:, count] += tail - shape.shared_end_bytes * (had_head and not had_tail)
        total[0, count] -= shape.shared_end_bytes * (not had_head and not had_tail)
        # An end that takes over the other's embedding may be both by now: it is counted once.
        total += shape.common_bytes * (hi == 0)
        rate = self.hosts[host].load_rate or DEFAULT_LOAD_RATE
        return np.clip(total * 1000 // rate, 0, _MOST_LOAD_MS)


def pool_of(
    announcements: Sequence[Announcement],
    shape: ModelShape,
    constraints: Constraints,
    *,
    context: int,
    sessions: int,
) -> Pool:
    """Return the pool of measured hosts. The order of `announcements` does not matter."""
    hosts = tuple(sorted(announcements, key=lambda announcement: announcement.peer))
    memory = block_memory(shape, context=context, sessions=sessions)
    limits = _array(host.memory_limit for host in hosts)
    fits: Truths = memory[None] <= limits[:, None, None]
    if constraints.trusted:
        ends = np.arange(shape.layer_count + 1)
        inner = (ends >= constraints.end_layers)[:, None] & (
            ends <= shape.layer_count - constraints.end_layers
        )
        untrusted = [index for index, host in enumerate(hosts) if host.peer not in set(constraints.trusted)]
        fits[untrusted] &= inner
    return Pool(shape, hosts, fits, _one_way_us(hosts), _apart(hosts, constraints))


@lru_cache(maxsize=8)
def block_memory(shape: ModelShape, *, context: int, sessions: int) -> Integers:
    """Return [lo, hi] the bytes that [lo, hi) needs on its host, by the one estimator; the largest integer where there is
    no such block.
    """
    count = shape.layer_count
    memory = np.full((count + 1, count + 1), np.iinfo(np.int64).max, np.int64)
    borders = [border for border in range(count + 1) if shape.may_cut(border)]
    for place, lo in enumerate(borders):
        for hi in borders[place + 1 :]:
            memory[lo, hi] = shape.block_memory(lo, hi, context=context, sessions=sessions).total
    memory.setflags(write=False)  # it is shared with later calls
    return memory


def _array(values: Iterable[int]) -> Integers:
    return np.array(list(values), np.int64)


def _one_way_us(hosts: Sequence[Announcement]) -> Integers:
    index_of = {host.peer: index for index, host in enumerate(hosts)}
    measured = [dict(host.rtt_us) for host in hosts]
    ways = np.full((len(hosts), len(hosts)), -1, np.int64)
    for here, host in enumerate(hosts):
        for peer, there_us in host.rtt_us:
            there = index_of.get(peer, here)
            back_us = measured[there].get(host.peer)
            if there != here and back_us is not None:
                ways[here, there] = one_way_us(there_us, back_us)
    return ways


def _apart(hosts: Sequence[Announcement], constraints: Constraints) -> Truths:
    apart = np.zeros((len(hosts), len(hosts)), np.bool_)
    if constraints.distinct_subnets:
        for here in range(len(hosts)):
            for there in range(here):
                apart[here, there] = apart[there, here] = share_subnet(
                    hosts[here].addresses, hosts[there].addresses
                )
    return apart
