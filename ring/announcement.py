"""Announcement: what a host says of itself, signed, numbered, and gossiped to the whole swarm.

Times are integers in nanoseconds or microseconds and sizes integers in bytes, so that a plan computed from
announcements has the same bytes on every host (invariant I3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, TypeVar, get_args

from ring.envelope import OVERHEAD, Signer, open_envelope, seal
from ring.fields import (
    MAX_INTEGER,
    FieldError,
    as_choice,
    as_integer,
    as_list,
    as_map,
    as_pair,
    as_peer,
    as_text,
    as_texts,
    pack,
    required,
    unpack_map,
)
from ring.identity import PeerId, peer_id_of

MAX_BYTES = 16 << 10
"""Longest announcement, without its envelope."""

MAX_ADDRESSES, MAX_ADDRESS_LENGTH = 16, 256
MAX_RTTS = 64
MAX_WIDTHS = 16

BlockState = Literal["none", "loading", "ready", "serving"]
HostState = Literal["joining", "measuring", "standby", "member", "leaving"]

_Ordered = TypeVar("_Ordered", int, str)
_KIND = "announcement"
_MAX_SMALL = 2**31 - 1
_HOST_STATES: tuple[HostState, ...] = get_args(HostState)
_BLOCK_STATES: tuple[BlockState, ...] = get_args(BlockState)


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
        leader, term: whom the host follows; "" while it follows nobody, and then the highest term it ever followed.
        plan: id of the active plan the host knows of ("" for none).
        device: for people.
        memory_limit, memory_free: bytes the daemon may use for a block, and how much of it is free.
        model: the model that it was asked to serve and that layer_ns belongs to ("" while unmeasured).
        layer_ns: (frame width, nanoseconds for one layer), ascending.
        tail_ns: nanoseconds of norm + lm_head + choice for one token.
        rtt_us: measured round trips in microseconds, (peer, windowed minimum), bounded and sorted by peer.
        block: what it holds, or None.
        sessions: open sessions on this host.
        uplink: bytes per second that it was measured to send over our own streams; 0 while unmeasured.
        overhead_ns: nanoseconds that a hop from it costs beyond half a round trip and the bytes' time; 0 while unmeasured.
        load_rate: bytes per second at which it loaded its last block; 0 while unmeasured.

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
    uplink: int = 0
    overhead_ns: int = 0
    load_rate: int = 0


@dataclass(frozen=True, slots=True)
class SignedAnnouncement:
    """An announcement whose signature has been checked, with the very bytes that were signed and sent."""

    announcement: Announcement
    data: bytes


class AnnouncementError(Exception):
    """An announcement breaks the protocol; the text names the field. It is dropped; update the host that sent it."""

    code: ClassVar[str] = "announcement_bad"


def signed(announcement: Announcement, signer: Signer, public_key: bytes) -> bytes:
    """Return the announcement's envelope, ready to be gossiped.

    Raises:
        AnnouncementError: a field is out of its range, the whole is too long, or the key is not the peer's.

    """
    payload = encode(announcement)
    if peer_id_of(public_key) != announcement.peer:
        raise AnnouncementError(
            f"announcement: peer is {announcement.peer}, but {peer_id_of(public_key)} signs"
        )
    return seal(_KIND, payload, signer, public_key)


def verified(data: bytes) -> SignedAnnouncement:
    """Return the announcement in an envelope after checking its signature and every field.

    Raises:
        EnvelopeError: the envelope is malformed or its signature is wrong.
        AnnouncementError: a field is wrong, or the signing key is not the peer's.

    """
    signer, payload = open_envelope(_KIND, data, limit=MAX_BYTES + OVERHEAD)
    announcement = decode(payload)
    if announcement.peer != signer:
        raise AnnouncementError(f"announcement: peer is {announcement.peer}, but {signer} has signed")
    return SignedAnnouncement(announcement, data)


def encode(announcement: Announcement) -> bytes:
    """Return the payload: one msgpack map, keys sorted, integers and text only; at most MAX_BYTES.

    Raises:
        AnnouncementError: decode would refuse the payload.

    """
    a = announcement
    fields: dict[str, object] = {
        "addr": a.addresses,
        "block": None if a.block is None else _block_fields(a.block),
        "dev": a.device,
        "free": a.memory_free,
        "inc": a.incarnation,
        "lead": a.leader,
        "lns": a.layer_ns,
        "mem": a.memory_limit,
        "model": a.model,
        "peer": a.peer,
        "plan": a.plan,
        "rtt": a.rtt_us,
        "sen": a.seniority,
        "seq": a.sequence,
        "sess": a.sessions,
        "state": a.state,
        "swarm": a.swarm,
        "term": a.term,
        "tns": a.tail_ns,
        "ver": a.version,
        "wire": a.wire,
    }
    fields |= {key: value for key, value in _optional(a).items() if value}
    payload = pack(dict(sorted(fields.items())))
    decode(payload)
    return payload


def decode(payload: bytes) -> Announcement:
    """Return the announcement in `payload`. Unknown keys are ignored: a newer minor version may add some.

    Raises:
        AnnouncementError: too long, not one msgpack map, or a field that is missing or out of its range.

    """
    try:
        return _announcement(unpack_map(payload, limit=MAX_BYTES))
    except FieldError as error:
        raise AnnouncementError(f"announcement: {error}") from error


def _announcement(fields: dict[str, object]) -> Announcement:
    def integer(key: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        return as_integer(key, required(fields, key), low, high)

    def text(key: str, limit: int) -> str:
        return as_text(key, required(fields, key), limit)

    def optional(key: str) -> int:
        return as_integer(key, fields.get(key, 0), 0, MAX_INTEGER)

    leader = required(fields, "lead")
    return Announcement(
        swarm=text("swarm", 64),
        peer=as_peer("peer", required(fields, "peer")),
        incarnation=integer("inc"),
        sequence=integer("seq"),
        addresses=as_texts("addr", required(fields, "addr"), MAX_ADDRESSES, MAX_ADDRESS_LENGTH),
        version=text("ver", 64),
        wire=integer("wire", 0, _MAX_SMALL),
        state=as_choice("state", required(fields, "state"), _HOST_STATES),
        seniority=integer("sen"),
        leader="" if leader == "" else as_peer("lead", leader),
        term=integer("term", 0 if leader == "" else 1),
        plan=text("plan", 64),
        device=text("dev", 128),
        memory_limit=integer("mem"),
        memory_free=integer("free"),
        model=text("model", 128),
        layer_ns=_layer_times(required(fields, "lns")),
        tail_ns=integer("tns"),
        rtt_us=_round_trips(required(fields, "rtt")),
        block=_block(required(fields, "block")),
        sessions=integer("sess", 0, _MAX_SMALL),
        uplink=optional("up"),
        overhead_ns=optional("hop"),
        load_rate=optional("load"),
    )


def _optional(a: Announcement) -> dict[str, int]:
    """Return what is left out while it is 0: an older host does not say it."""
    return {"hop": a.overhead_ns, "load": a.load_rate, "up": a.uplink}


def _layer_times(value: object) -> tuple[tuple[int, int], ...]:
    pairs = (as_pair("lns", entry) for entry in as_list("lns", value, MAX_WIDTHS))
    times = tuple((as_integer("lns", width, 1, _MAX_SMALL), as_integer("lns", ns, 1)) for width, ns in pairs)
    _refuse_unsorted("lns", [width for width, _ in times])
    return times


def _round_trips(value: object) -> tuple[tuple[PeerId, int], ...]:
    pairs = (as_pair("rtt", entry) for entry in as_list("rtt", value, MAX_RTTS))
    trips = tuple((as_peer("rtt", peer), as_integer("rtt", micros)) for peer, micros in pairs)
    _refuse_unsorted("rtt", [peer for peer, _ in trips])
    return trips


def _refuse_unsorted(name: str, keys: Sequence[_Ordered]) -> None:
    if any(not first < second for first, second in pairwise(keys)):
        raise FieldError(f"{name} is not in ascending order without repeats")


def _block_fields(block: BlockHeld) -> dict[str, object]:
    return {
        "hi": block.hi,
        "lo": block.lo,
        "loaded": block.loaded,
        "model": block.model,
        "plan": block.plan,
        "state": block.state,
        "total": block.total,
    }


def _block(value: object) -> BlockHeld | None:
    if value is None:
        return None
    fields = as_map("block", value)
    lo = as_integer("block.lo", required(fields, "lo"), 0, _MAX_SMALL)
    return BlockHeld(
        plan=as_text("block.plan", required(fields, "plan"), 64),
        model=as_text("block.model", required(fields, "model"), 128),
        lo=lo,
        hi=as_integer("block.hi", required(fields, "hi"), lo, _MAX_SMALL),
        state=as_choice("block.state", required(fields, "state"), _BLOCK_STATES),
        loaded=as_integer("block.loaded", required(fields, "loaded")),
        total=as_integer("block.total", required(fields, "total")),
    )
