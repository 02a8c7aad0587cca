"""Envelope: bytes with their signer's key and signature. The signed bytes are the sent bytes (no re-encoding).

On the wire: the msgpack map {"key": 32 bytes, "payload": bytes, "sig": 64 bytes}, keys in this order and every length
in msgpack's shortest form, so that one signed payload has exactly one envelope. Ed25519 (RFC 8032) signs
"swarmd/" + kind + "/1" + a zero byte + payload; the kind keeps one document from passing as another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from registry.keys import verify
from ring.fields import FieldError, pack, required, unpack_map
from ring.identity import PeerId, peer_id_of

Signer = Callable[[bytes], bytes]
"""Takes the bytes to sign and returns the 64-byte Ed25519 signature."""

OVERHEAD = 128
"""Upper bound of the bytes that an envelope adds to a payload of up to 64 KiB."""

_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


class EnvelopeError(Exception):
    """Signed bytes are too long, malformed or not signed by the key they carry. Ask the sender again or drop them."""

    code: ClassVar[str] = "envelope_bad"


def seal(kind: str, payload: bytes, signer: Signer, public_key: bytes) -> bytes:
    """Return the envelope of `payload`, signed as a `kind` (e.g. "announcement")."""
    return _packed(public_key, payload, signer(_signed_bytes(kind, payload)))


def open_envelope(kind: str, data: bytes, *, limit: int) -> tuple[PeerId, bytes]:
    """Return (signer, payload) of an envelope of at most `limit` bytes.

    Raises:
        EnvelopeError: too long, malformed, or the signature is not that of the key for this kind.

    """
    try:
        fields = unpack_map(data, limit=limit)
        key, payload, signature = (_bytes(fields, name) for name in ("key", "payload", "sig"))
    except FieldError as error:
        raise EnvelopeError(f"{kind}: envelope: {error}") from error
    if len(key) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        raise EnvelopeError(
            f"{kind}: envelope: key and sig have {len(key)} and {len(signature)} bytes, not 32 and 64"
        )
    if _packed(key, payload, signature) != data:
        raise EnvelopeError(
            f"{kind}: envelope: not in the one form that is allowed (unknown keys, order or lengths)"
        )
    peer = peer_id_of(key)
    if not verify(key, signature, _signed_bytes(kind, payload)):
        raise EnvelopeError(f"{kind}: the signature is not that of {peer}")
    return peer, payload


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    return f"swarmd/{kind}/1\0".encode() + payload


def _packed(key: bytes, payload: bytes, signature: bytes) -> bytes:
    return pack({"key": key, "payload": payload, "sig": signature})


def _bytes(fields: dict[str, object], key: str) -> bytes:
    value = required(fields, key)
    if not isinstance(value, bytes):
        raise FieldError(f"{key} is a {type(value).__name__}, not bytes")
    return value
