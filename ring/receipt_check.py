"""Receipt check: whether a set of `shard-receipt/1` receipts accounts for a whole session, each refusal by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from registry.signed import SignatureError, verify_document
from ring.fields import FieldError, as_text, required
from ring.identity import peer_id_of
from ring.ids import as_count
from ring.receipts import MAX_TEXT, SCHEMA, Job, Receipt, TokenFrame, as_receipt, head_root, tail_root

_ROOT: Final = re.compile(r"[0-9a-f]{64}")


class ReceiptError(ValueError):
    """A set of receipts does not account for the session. Do not pay for it; the text names the check and the signer.

    Attributes:
        check: stable name of the check that failed, one of CHECKS.

    """

    code: ClassVar[str] = "receipt_refused"

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


CHECKS: Final = (
    "malformed",
    "signature",
    "unknown_signer",
    "wrong_block",
    "duplicate_signer",
    "swarm",
    "job",
    "nonce",
    "zero_work",
    "missing",
    "overlap",
    "gap",
    "coverage",
    "chunks_differ",
    "chain",
    "head_root",
    "tail_root",
    "tokens",
)
"""Names of all checks: of each receipt, then of the set, its chain and its ends."""


class Block(NamedTuple):
    """Who is to serve which layers: a raw 32-byte Ed25519 public key, layers [lo, hi)."""

    public_key: bytes
    lo: int
    hi: int


class Split(NamedTuple):
    """What one signer has proved: its public key in standard base64, layers [lo, hi), how many, frames computed."""

    pubkey: str
    lo: int
    hi: int
    layers: int
    chunks: int


def verify_receipts(
    receipts: Sequence[Mapping[str, object]],
    job: Job,
    *,
    assignment: Sequence[Block] | None,
    frames: Sequence[TokenFrame] | None,
) -> list[Split]:
    """Check that a set of receipts accounts for a whole session, and return the split of the work, in layer order.

    Args:
        receipts: the set, in any order.
        job: what they must say.
        assignment: who was to serve what; None accepts any signers whose blocks tile the model.
        frames: the frames at the ends of the ring, to which the first in_root and the last out_root are bound; None
            leaves the ends unbound.

    Raises:
        ReceiptError: with `check` naming the first of CHECKS that failed.

    """
    blocks = None if assignment is None else {block.public_key: block for block in assignment}
    seen: dict[bytes, _Parsed] = {}
    for index, receipt in enumerate(receipts):
        parsed = _parsed(index, receipt)
        if blocks is not None:
            _check_assigned(parsed, blocks)
        if parsed.public_key in seen:
            raise ReceiptError("duplicate_signer", f"{parsed} has two receipts")
        seen[parsed.public_key] = parsed
    for parsed in seen.values():
        _check_job(parsed, job)
    _check_missing(seen, blocks)
    ordered = sorted(seen.values(), key=lambda parsed: (parsed.lo, parsed.hi))
    _check_tiling(ordered, job.layer_count)
    _check_chain(ordered)
    if frames is not None:
        _check_ends(ordered, frames)
    return [Split(p.pubkey, p.lo, p.hi, p.hi - p.lo, p.chunks) for p in ordered]


class _Parsed(NamedTuple):
    """A receipt whose shape and signature are good."""

    public_key: bytes
    pubkey: str
    swarm_id: str
    job_id: str
    nonce: str
    lo: int
    hi: int
    chunks: int
    in_root: str
    out_root: str

    def __str__(self) -> str:
        return f"{peer_id_of(self.public_key)} for [{self.lo}, {self.hi})"


def _parsed(index: int, raw: Mapping[str, object]) -> _Parsed:
    try:
        receipt = as_receipt(f"receipt {index}", raw)
        fields = _read(receipt)
    except FieldError as error:
        raise ReceiptError("malformed", str(error)) from error
    try:
        public_key = verify_document(receipt, signature_field="sig", key_field="pubkey")
    except SignatureError as error:
        raise ReceiptError("signature", f"receipt {index}: {error}") from error
    return fields._replace(public_key=public_key)


def _read(receipt: Receipt) -> _Parsed:
    if (schema := required(receipt, "schema")) != SCHEMA:
        raise FieldError(f"schema is {schema!r}, but must be {SCHEMA!r}")
    lo = as_count("layer_start", required(receipt, "layer_start"))
    return _Parsed(
        public_key=b"",
        pubkey=as_text("pubkey", required(receipt, "pubkey"), MAX_TEXT),
        swarm_id=as_text("swarm_id", required(receipt, "swarm_id"), MAX_TEXT),
        job_id=as_text("job_id", required(receipt, "job_id"), MAX_TEXT),
        nonce=as_text("nonce", required(receipt, "nonce"), MAX_TEXT),
        lo=lo,
        hi=as_count("layer_end", required(receipt, "layer_end"), lo + 1),
        chunks=as_count("n_chunks", required(receipt, "n_chunks")),
        in_root=_as_root("in_root", required(receipt, "in_root")),
        out_root=_as_root("out_root", required(receipt, "out_root")),
    )


def _as_root(name: str, value: object) -> str:
    text = as_text(name, value, 64)
    if not _ROOT.fullmatch(text):
        raise FieldError(f"{name} is {text!r}, but must be 64 lower-case hex digits")
    return text


def _check_assigned(parsed: _Parsed, blocks: Mapping[bytes, Block]) -> None:
    block = blocks.get(parsed.public_key)
    if block is None:
        raise ReceiptError("unknown_signer", f"{parsed} is not in the ring")
    if (parsed.lo, parsed.hi) != (block.lo, block.hi):
        raise ReceiptError("wrong_block", f"{parsed} was to serve [{block.lo}, {block.hi})")


def _check_job(parsed: _Parsed, job: Job) -> None:
    for check, said, due in (
        ("swarm", parsed.swarm_id, job.swarm_id),
        ("job", parsed.job_id, job.job_id),
        ("nonce", parsed.nonce, job.nonce),
    ):
        if said != due:
            raise ReceiptError(check, f"{parsed} says {said!r}, not {due!r}: a receipt of something else")
    if parsed.chunks == 0:
        raise ReceiptError("zero_work", f"{parsed} has computed no frame")


def _check_missing(seen: Mapping[bytes, _Parsed], blocks: Mapping[bytes, Block] | None) -> None:
    for block in (blocks or {}).values():
        if block.public_key not in seen:
            raise ReceiptError(
                "missing", f"no receipt of {peer_id_of(block.public_key)} for [{block.lo}, {block.hi})"
            )
    if not seen:
        raise ReceiptError("missing", "the set holds no receipt at all")


def _check_tiling(ordered: Sequence[_Parsed], layer_count: int) -> None:
    for before, after in pairwise(ordered):
        if after.lo < before.hi:
            raise ReceiptError("overlap", f"{after} and {before} claim the same layers")
        if after.lo > before.hi:
            raise ReceiptError("gap", f"nobody claims [{before.hi}, {after.lo})")
    lo, hi = ordered[0].lo, ordered[-1].hi
    if (lo, hi) != (0, layer_count):
        raise ReceiptError("coverage", f"the receipts cover [{lo}, {hi}), not [0, {layer_count})")


def _check_chain(ordered: Sequence[_Parsed]) -> None:
    for before, after in pairwise(ordered):
        if before.chunks != after.chunks:
            raise ReceiptError(
                "chunks_differ", f"{before} counts {before.chunks} frames, {after} {after.chunks}"
            )
        if before.out_root != after.in_root:
            raise ReceiptError("chain", f"{after} did not get what {before} says it sent")


def _check_ends(ordered: Sequence[_Parsed], frames: Sequence[TokenFrame]) -> None:
    head, tail = ordered[0], ordered[-1]
    if head.chunks != len(frames):
        raise ReceiptError(
            "chunks_differ", f"{head} counts {head.chunks} frames, the coordinator {len(frames)}"
        )
    if head.in_root != head_root(frames):
        raise ReceiptError("head_root", f"{head} did not get the token ids of this session")
    if tail.out_root != tail_root(frames):
        raise ReceiptError("tail_root", f"{tail} did not choose the token ids of this session")
