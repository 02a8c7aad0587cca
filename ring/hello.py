"""Hello: what two hosts tell each other when they connect, and whether they fit together.

`/swarmd/hello/1` is one request and one reply, both the map {"wire": int, "version": text, "swarm": text,
"announcement": bytes | nil, "peers": [[peer, [address, …]], …]}. wire, version and swarm keep their place and meaning
in every version to come, so that hosts that do not fit can say so by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ring.announcement import MAX_ADDRESS_LENGTH, MAX_ADDRESSES, MAX_BYTES
from ring.envelope import OVERHEAD
from ring.fields import FieldError, as_integer, as_list, as_pair, as_peer, as_text, as_texts, required
from ring.identity import PeerId

PROTOCOL = "/swarmd/hello/1"
WIRE = 1
"""The major version of everything hosts say to each other. Hosts of different ones refuse each other."""

MAX_PEERS = 64
MAX_HELLO_BYTES = MAX_BYTES + OVERHEAD + MAX_PEERS * (MAX_ADDRESSES * (MAX_ADDRESS_LENGTH + 3) + 80) + 512
"""Bound of a packed hello with addresses in ASCII."""


@dataclass(frozen=True, slots=True)
class Hello:
    """One side's greeting.

    Attributes:
        wire: the protocol's major version.
        version: the software's version, for people.
        swarm: the swarm's name.
        announcement: the sender's own signed announcement, unopened; None while it has none yet.
        peers: up to MAX_PEERS (peer, addresses) that the sender can recommend.

    """

    wire: int
    version: str
    swarm: str
    announcement: bytes | None
    peers: tuple[tuple[PeerId, tuple[str, ...]], ...]


class HelloError(Exception):
    """A peer's greeting breaks the protocol; the text names the field. The peer must be updated or is no swarmd."""

    code: ClassVar[str] = "hello_bad"


class HelloRefused(Exception):
    """The two hosts do not fit together; see the subclass."""

    code: ClassVar[str] = "hello_refused"


class VersionMismatch(HelloRefused):
    """The hosts speak different major versions of the protocol. Install the same version of swarmd on both."""

    code = "version_mismatch"


class SwarmMismatch(HelloRefused):
    """The host belongs to another swarm. Set the same `swarm.name` on both, or remove its address from `swarm.bootstrap`."""

    code = "swarm_mismatch"


def to_map(hello: Hello) -> dict[str, object]:
    """Return the hello as the map that is sent.

    Raises:
        HelloError: the other side would refuse it.

    """
    fields: dict[str, object] = {
        "wire": hello.wire,
        "version": hello.version,
        "swarm": hello.swarm,
        "announcement": hello.announcement,
        "peers": [[peer, list(addresses)] for peer, addresses in hello.peers],
    }
    receive(hello, fields)
    return fields


def receive(mine: Hello, fields: Mapping[str, object]) -> Hello:
    """Return the hello in a received map, after `check` against one's own. Unknown keys are ignored.

    Versions and swarms are compared before the rest is read, which another wire version may have changed.

    Raises:
        HelloRefused: the hosts do not fit together.
        HelloError: a field is missing or out of its range.

    """
    try:
        wire = as_integer("wire", required(fields, "wire"), 0, 2**31 - 1)
        version = as_text("version", required(fields, "version"), 64)
        swarm = as_text("swarm", required(fields, "swarm"), 64)
        check(mine, Hello(wire, version, swarm, None, ()))
        announcement = _announcement(required(fields, "announcement"))
        return Hello(wire, version, swarm, announcement, _peers(required(fields, "peers")))
    except FieldError as error:
        raise HelloError(f"hello: {error}") from error


def check(mine: Hello, theirs: Hello) -> None:
    """Refuse a host of another wire version or swarm; a different minor version is fine.

    Raises:
        VersionMismatch, SwarmMismatch: both sides' versions or swarms stand in the text.

    """
    if theirs.wire != mine.wire:
        raise VersionMismatch(
            f"the peer runs swarmd {theirs.version} (wire version {theirs.wire}), this host runs swarmd "
            f"{mine.version} (wire version {mine.wire}): install the same version on both"
        )
    if theirs.swarm != mine.swarm:
        raise SwarmMismatch(
            f"the peer belongs to swarm {theirs.swarm!r}, this host to {mine.swarm!r}: "
            "set the same `swarm.name` on both, or take the peer out of `swarm.bootstrap`"
        )


def _announcement(value: object) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise FieldError(f"announcement is a {type(value).__name__}, neither bytes nor nil")
    if value is not None and len(value) > MAX_BYTES + OVERHEAD:
        raise FieldError(
            f"announcement has {len(value)} bytes, more than the {MAX_BYTES + OVERHEAD} that are allowed"
        )
    return value


def _peers(value: object) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
    pairs = (as_pair("peers", entry) for entry in as_list("peers", value, MAX_PEERS))
    return tuple(
        (as_peer("peers", peer), as_texts("peers", addresses, MAX_ADDRESSES, MAX_ADDRESS_LENGTH))
        for peer, addresses in pairs
    )
