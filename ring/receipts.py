"""Receipts: a stage's signed account of a session, `shard-receipt/1`, and how it grows frame by frame.

A receipt is a flat JSON object:

    schema       "shard-receipt/1"
    swarm_id     the swarm's name
    job_id       the session's id
    layer_start  first layer of the block
    layer_end    one past its last layer
    nonce        what the session was opened with
    n_chunks     frames computed
    in_root      sha256 over the concatenated sha256 digests of every frame's input bytes, in order; lower-case hex
    out_root     the same of every frame's output bytes
    pubkey, sig  Ed25519 (RFC 8032), standard base64; `sig` signs the canonical JSON of everything else

A frame's bytes are the raw data of its tensors, concatenated. Where a frame is token ids (into the head, out of the
tail), they are the ids as little-endian int64 each; ids that merely accompany tensors do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nacl.signing import SigningKey

from registry.signed import sign_document
from ring.fields import FieldError, as_list, as_map, as_text
from ring.ids import as_count

SCHEMA: Final = "shard-receipt/1"
MAX_RECEIPTS: Final = 256
MAX_TEXT: Final = 256

Receipt = dict[str, str | int]
Buffer = bytes | memoryview

_MAX_ENTRIES: Final = 32
_MAX_KEY: Final = 64


class TokenFrame(NamedTuple):
    """One frame as the two ends of the ring see it: ids in at the head, and the ids that the tail chose."""

    position: int
    tokens: tuple[int, ...]
    chosen: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What every receipt of one session must say.

    Attributes:
        swarm_id, job_id, nonce: as in the receipt.
        layer_count: layers of the model; the receipts must tile [0, layer_count).

    """

    swarm_id: str
    job_id: str
    nonce: str
    layer_count: int


class ReceiptChain:
    """The digests of the frames that a stage has computed in one session, in order.

    A frame at position p discards the digests of frames at or behind p first, as the KV cache rewinds: so the stages of
    a ring agree on the frames that stand, even if some computed frames that others had fenced off already.
    """

    def __init__(self) -> None:
        self._frames: list[tuple[int, bytes, bytes]] = []

    def __len__(self) -> int:
        """Return the number of frames that stand."""
        return len(self._frames)

    def observe(self, position: int, inputs: Iterable[Buffer], outputs: Iterable[Buffer]) -> None:
        """Add a computed frame: its input and output bytes, each as parts that are hashed as if concatenated."""
        self.rewind(position)
        self._frames.append((position, _digest(inputs), _digest(outputs)))

    def rewind(self, position: int) -> None:
        """Discard the frames that start at or behind `position`."""
        while self._frames and self._frames[-1][0] >= position:
            self._frames.pop()

    @property
    def in_root(self) -> str:
        """The root over all inputs, lower-case hex."""
        return _root(frame[1] for frame in self._frames)

    @property
    def out_root(self) -> str:
        """The root over all outputs, lower-case hex."""
        return _root(frame[2] for frame in self._frames)

    def receipt(self, job: Job, lo: int, hi: int, key: SigningKey) -> Receipt:
        """Return the signed receipt of the stage that serves layers [lo, hi)."""
        document: Receipt = {
            "schema": SCHEMA,
            "swarm_id": job.swarm_id,
            "job_id": job.job_id,
            "layer_start": lo,
            "layer_end": hi,
            "nonce": job.nonce,
            "n_chunks": len(self),
            "in_root": self.in_root,
            "out_root": self.out_root,
        }
        return as_receipt("receipt", sign_document(document, key, signature_field="sig", key_field="pubkey"))


def ids_bytes(ids: Sequence[int]) -> bytes:
    """Return token ids as they are hashed: little-endian int64 each."""
    return b"".join(token.to_bytes(8, "little", signed=True) for token in ids)


def head_root(frames: Iterable[TokenFrame]) -> str:
    """Return the in_root that a head must have for these frames."""
    return _root(_digest([ids_bytes(frame.tokens)]) for frame in frames)


def tail_root(frames: Iterable[TokenFrame]) -> str:
    """Return the out_root that a tail must have for these frames."""
    return _root(_digest([ids_bytes(frame.chosen)]) for frame in frames)


def as_receipt(name: str, value: object) -> Receipt:
    """Return `value` if it has a receipt's shape: at most 32 short strings and integers in [0, 2**53), by text keys.

    Raises:
        FieldError: it has not; the contents are for ring.receipt_check to judge.

    """
    entries = as_map(name, value)
    if len(entries) > _MAX_ENTRIES:
        raise FieldError(f"{name} has {len(entries)} entries, more than the {_MAX_ENTRIES} that are allowed")
    receipt: Receipt = {}
    for key, entry in entries.items():
        as_text(f"a key of {name}", key, _MAX_KEY)
        where = f"{name}.{key}"
        receipt[key] = as_text(where, entry, MAX_TEXT) if isinstance(entry, str) else as_count(where, entry)
    return receipt


def as_receipts(name: str, value: object) -> tuple[Receipt, ...]:
    """Return `value` if it is a list of at most 256 maps that have a receipt's shape (see as_receipt)."""
    return tuple(
        as_receipt(f"{name}[{i}]", entry) for i, entry in enumerate(as_list(name, value, MAX_RECEIPTS))
    )


def _digest(parts: Iterable[Buffer]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _root(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()
