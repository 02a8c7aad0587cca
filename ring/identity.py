"""Peer ids: how a host's Ed25519 public key and its libp2p PeerId name each other, without libp2p."""

from __future__ import annotations

from typing import NewType

import base58

PeerId = NewType("PeerId", str)
"""A host's libp2p PeerId in base58btc ("12D3KooW…")."""

# Source: libp2p peer-ids spec. Identity multihash (0x00, 36 bytes) of the protobuf PublicKey{Type: Ed25519, Data: 32 B}.
_PREFIX = bytes.fromhex("002408011220")
_KEY_BYTES = 32


class PeerIdError(ValueError):
    """The text is not the PeerId of an Ed25519 key. Copy it again from `swarmd ctl status` on that host."""


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the PeerId of a raw 32-byte Ed25519 public key."""
    if len(public_key) != _KEY_BYTES:
        raise PeerIdError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    return PeerId(base58.b58encode(_PREFIX + public_key).decode())


def public_key_of(peer: str) -> bytes:
    """Return the raw 32-byte Ed25519 public key that is contained in a PeerId."""
    try:
        raw = base58.b58decode(peer)
    except ValueError as error:
        raise PeerIdError(f"{peer!r} is not base58: {error}") from error
    if len(raw) != len(_PREFIX) + _KEY_BYTES or not raw.startswith(_PREFIX):
        raise PeerIdError(f"{peer!r} is not the PeerId of an Ed25519 key")
    return raw[len(_PREFIX) :]
