"""Candidate: a host as the planner sees it: which blocks it can hold, how fast it is and whom it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.identity import PeerId
from ring.throughput import NS_PER_US, layer_ns_at, one_way_us


@dataclass(frozen=True, slots=True)
class Reach:
    """The blocks that fit into a memory limit, which depends on where in the model they lie.

    The memory of a block grows with every layer at either end, so the blocks that end at a layer and fit
    are those that start no earlier than some first layer.

    Attributes:
        head: the most layers m < L that [0, m) may have (the embedding included); 0 when none fits.
        solo: whether [0, L) fits.
        first: for each end m in 0 … L the least start lo ≥ 1 such that [lo, m) fits (with the tail's part
            if m = L); m when none does. Never decreases with m.

    """

    head: int
    solo: bool
    first: tuple[int, ...]

    @property
    def holds_a_layer(self) -> bool:
        """Whether any block at all fits."""
        return self.head > 0 or self.solo or any(lo < m for m, lo in enumerate(self.first) if m > 0)

    def most_layers(self, layers: int) -> int:
        """Return the most layers that any fitting block has."""
        return max(layers * self.solo, self.head, *(m - lo for m, lo in enumerate(self.first) if m > 0))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One host that may become a stage. layer_ns and tail_ns are nanoseconds for a frame of one token."""

    peer: PeerId
    layer_ns: int
    tail_ns: int
    reach: Reach


@dataclass(frozen=True, slots=True)
class Pool:
    """All hosts that may become stages, and the edges between them.

    Attributes:
        layers: how many layers the model has.
        hosts: the candidates, ascending in peer; elsewhere they are named by their index here.
        hop_us: one-way microseconds from host to host, the same both ways; None where the two ends have not
            both measured the edge, and on the diagonal.

    """

    layers: int
    hosts: tuple[Candidate, ...]
    hop_us: tuple[tuple[int | None, ...], ...]

    def hop_ns(self, here: int, there: int) -> int | None:
        """Return the one-way nanoseconds of an edge, or None where there is none."""
        hop = self.hop_us[here][there]
        return None if hop is None else hop * NS_PER_US

    def only(self, members: Sequence[int]) -> Pool:
        """Return the pool of some of the hosts; `members` are ascending indices."""
        hops = tuple(tuple(self.hop_us[here][there] for there in members) for here in members)
        return Pool(self.layers, tuple(self.hosts[member] for member in members), hops)


def pool_of(announcements: Sequence[Announcement], shape: ModelShape, *, context: int, sessions: int) -> Pool:
    """Return the pool of measured hosts. The order of `announcements` does not matter."""
    ordered = sorted(announcements, key=lambda announcement: announcement.peer)
    hosts = tuple(
        Candidate(
            host.peer,
            layer_ns_at(host.layer_ns, 1),
            host.tail_ns,
            reach_of(shape, host.memory_limit, context=context, sessions=sessions),
        )
        for host in ordered
    )
    return Pool(shape.layer_count, hosts, _hops_us(ordered))


def reach_of(shape: ModelShape, limit: int, *, context: int, sessions: int) -> Reach:
    """Return which blocks of the model fit into `limit` bytes."""
    layers = shape.layer_count

    def fits(lo: int, hi: int) -> bool:
        return shape.block_memory(lo, hi, context=context, sessions=sessions).total <= limit

    head = 0
    while head + 1 < layers and fits(0, head + 1):
        head += 1
    first = [0]
    lo = 1
    for end in range(1, layers + 1):
        while lo < end and not fits(lo, end):
            lo += 1
        first.append(lo)
    return Reach(head, fits(0, layers), tuple(first))


def _hops_us(hosts: Sequence[Announcement]) -> tuple[tuple[int | None, ...], ...]:
    index_of = {host.peer: index for index, host in enumerate(hosts)}
    measured = [dict(host.rtt_us) for host in hosts]
    rows: list[list[int | None]] = [[None] * len(hosts) for _ in hosts]
    for here, host in enumerate(hosts):
        for peer, there_us in host.rtt_us:
            there = index_of.get(peer, here)
            back_us = measured[there].get(host.peer)
            if there != here and back_us is not None:
                rows[here][there] = one_way_us(there_us, back_us)
    return tuple(tuple(row) for row in rows)
