"""Announcement: what a host says of itself, signed, numbered, and gossiped to the whole swarm.

Times are integers in nanoseconds or microseconds and sizes integers in bytes, so that a plan computed from
announcements has the same bytes on every host (invariant I3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ring.identity import PeerId

BlockState = Literal["none", "loading", "ready", "serving"]
HostState = Literal["joining", "measuring", "standby", "member", "leaving"]


@dataclass(frozen=True, slots=True)
class BlockHeld:
    """The block a host holds: `plan` is the id of the plan it was loaded for; loaded and total in bytes."""

    plan: str
    model: str
    lo: int
    hi: int
    state: BlockState
    loaded: int
    total: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """One host's own account of itself.

    Attributes:
        swarm: the swarm's name; announcements of other swarms are dropped.
        peer: the host; the signature must be its key's.
        incarnation: grows by one with every start of the daemon (a counter on disk, not a clock).
        sequence: grows by one with every announcement of an incarnation.
        addresses: full multiaddrs at which the host may be reached.
        version: the software's version; wire: the protocol's major version.
        state: see HostState; "leaving" is the last word of a graceful leave.
        seniority: the term that was in force when the host joined (0 for a founder); lower is more senior.
        leader, term: whom the host follows ("" and 0: nobody yet).
        plan: id of the active plan the host knows of ("" for none).
        device: for people.
        memory_limit, memory_free: bytes the daemon may use for a block, and how much of it is free.
        model: the model that it was asked to serve and that layer_ns belongs to ("" while unmeasured).
        layer_ns: (frame width, nanoseconds for one layer), ascending.
        tail_ns: nanoseconds of norm + lm_head + choice for one token.
        rtt_us: measured round trips in microseconds, (peer, windowed minimum), bounded and sorted by peer.
        block: what it holds, or None.
        sessions: open sessions on this host.

    """

    swarm: str
    peer: PeerId
    incarnation: int
    sequence: int
    addresses: tuple[str, ...]
    version: str
    wire: int
    state: HostState
    seniority: int
    leader: str
    term: int
    plan: str
    device: str
    memory_limit: int
    memory_free: int
    model: str
    layer_ns: tuple[tuple[int, int], ...]
    tail_ns: int
    rtt_us: tuple[tuple[PeerId, int], ...]
    block: BlockHeld | None
    sessions: int
