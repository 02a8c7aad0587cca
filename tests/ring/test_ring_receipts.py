"""Receipts: an honest set verifies, and any other is refused by the name of what is wrong with it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey, VerifyKey
from simulated_ring import LAYERS, SimulatedRing, blocks_of, key_of, spec_of

from registry.signed import sign_document
from ring.generation import Done
from ring.identity import public_key_of
from ring.receipt_check import CHECKS, Block, ReceiptError, Split, verify_receipts
from ring.receipts import Job, Receipt, ReceiptChain, TokenFrame, ids_bytes

GOLDEN_SHA256 = "3f2c81c04e34b8fe7fea7087b218a4a3ce7d58412dc51760642d3da6c9e56173"
JOB = Job("home", "session-1", "nonce-1", LAYERS)


def honest(cuts: tuple[int, ...] = (2, 4), max_tokens: int = 4) -> Done:
    ring = SimulatedRing(blocks_of(cuts), spec_of(max_tokens=max_tokens))
    return ring.done(ring.run())


def assignment_of(done: Done) -> list[Block]:
    return [Block(public_key_of(stage.peer), stage.lo, stage.hi) for stage in done.assignment]


def signed(receipt: Mapping[str, object], key: SigningKey, **changes: object) -> Receipt:
    document = {name: value for name, value in {**receipt, **changes}.items() if name != "sig"}
    return sign_document(document, key, signature_field="sig", key_field="pubkey")  # type: ignore[return-value]


def check_of(
    receipts: list[Receipt],
    assignment: list[Block] | None = None,
    frames: tuple[TokenFrame, ...] | None = None,
    job: Job = JOB,
) -> str:
    with pytest.raises(ReceiptError) as refused:
        verify_receipts(receipts, job, assignment=assignment, frames=frames)
    assert refused.value.code == "receipt_refused"
    assert refused.value.check in CHECKS
    assert str(refused.value).startswith(refused.value.check)
    return refused.value.check


@pytest.mark.parametrize(
    "cuts", [(), (3,), (1, 5), (1, 2, 3), (1, 2, 3, 4)], ids=lambda cuts: f"{len(cuts) + 1} stages"
)
def test_the_receipts_of_a_whole_ring_verify(cuts: tuple[int, ...]) -> None:
    done = honest(cuts)
    splits = verify_receipts(done.receipts, JOB, assignment=assignment_of(done), frames=done.frames)
    assert [(split.lo, split.hi) for split in splits] == blocks_of(cuts)
    assert {split.chunks for split in splits} == {len(done.frames)}
    assert sum(split.layers for split in splits) == LAYERS


def test_the_order_of_the_set_does_not_matter() -> None:
    done = honest()
    there, back = (
        verify_receipts(order, JOB, assignment=None, frames=done.frames)
        for order in (done.receipts, done.receipts[::-1])
    )
    assert there == back
    assert there[0] == Split(str(done.receipts[0]["pubkey"]), 0, 2, 2, len(done.frames))


def test_a_receipt_is_what_any_other_tool_computes_from_the_format() -> None:
    key, frames = key_of(0), [((1, 2), (b"ab", b"c")), ((3,), (b"", b"d"))]
    chain = ReceiptChain()
    for position, (ids, parts) in enumerate(frames):
        chain.observe(position, [ids_bytes(ids)], parts)
    receipt = chain.receipt(JOB, 0, 2, key)

    in_digests = [
        hashlib.sha256(bytes.fromhex("01000000000000000200000000000000")).digest(),
        hashlib.sha256(bytes.fromhex("0300000000000000")).digest(),
    ]
    out_digests = [hashlib.sha256(b"abc").digest(), hashlib.sha256(b"d").digest()]
    unsigned = {
        "schema": "shard-receipt/1",
        "swarm_id": "home",
        "job_id": "session-1",
        "layer_start": 0,
        "layer_end": 2,
        "nonce": "nonce-1",
        "n_chunks": 2,
        "in_root": hashlib.sha256(b"".join(in_digests)).hexdigest(),
        "out_root": hashlib.sha256(b"".join(out_digests)).hexdigest(),
        "pubkey": base64.b64encode(bytes(key.verify_key)).decode(),
    }
    assert {name: value for name, value in receipt.items() if name != "sig"} == unsigned
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    VerifyKey(bytes(key.verify_key)).verify(text.encode(), base64.b64decode(str(receipt["sig"])))


def test_a_receipt_has_golden_bytes() -> None:
    chain = ReceiptChain()
    chain.observe(0, [ids_bytes([1])], [ids_bytes([2])])
    text = json.dumps(chain.receipt(JOB, 0, LAYERS, SigningKey(bytes(32))), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN_SHA256


@given(
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=4), st.binary(max_size=4)), max_size=12),
    st.data(),
)
def test_a_chain_forgets_what_a_rewind_discards(
    frames: list[tuple[int, bytes, bytes]], data: st.DataObject
) -> None:
    chain, standing = ReceiptChain(), list[tuple[int, bytes, bytes]]()
    for position, given_bytes, made in frames:
        chain.observe(position, [given_bytes], [made])
        standing = [frame for frame in standing if frame[0] < position] + [(position, given_bytes, made)]
    again = ReceiptChain()
    for position, given_bytes, made in standing:
        cut = data.draw(st.integers(0, len(made)))
        again.observe(position, [given_bytes], [made[:cut], memoryview(made)[cut:]])
    assert (len(chain), chain.in_root, chain.out_root) == (len(again), again.in_root, again.out_root)


SET = honest()
SET_BYTES = json.dumps(SET.receipts, separators=(",", ":")).encode()


def refused(changed: bytes) -> bool:
    try:
        receipts = json.loads(changed)
        verify_receipts(receipts, JOB, assignment=assignment_of(SET), frames=SET.frames)
    except ReceiptError:
        return True
    except ValueError:
        return True  # not JSON any more
    return False


@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_a_set_with_any_one_byte_changed_is_refused(mask: int) -> None:
    assert not refused(SET_BYTES)
    for index, byte in enumerate(SET_BYTES):
        changed = SET_BYTES[:index] + bytes([byte ^ mask]) + SET_BYTES[index + 1 :]
        assert refused(changed), f"byte {index} may be {changed[index : index + 1]!r}"


@given(st.data())
def test_a_set_with_bytes_changed_anyhow_is_refused(data: st.DataObject) -> None:
    changed = bytearray(SET_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(33, 126))
    assert refused(bytes(changed)) or changed == SET_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"swarm_id": "work"},
        {"job_id": "session-2"},
        {"layer_start": 1},
        {"layer_end": 1},
        {"nonce": "nonce-2"},
        {"n_chunks": 99},
        {"in_root": "0" * 64},
        {"out_root": "0" * 64},
        {"extra": 1},
    ],
    ids=str,
)
def test_every_field_of_a_receipt_is_signed(change: Receipt) -> None:
    assert check_of([{**SET.receipts[0], **change}, *SET.receipts[1:]]) == "signature"


def test_a_field_that_this_version_does_not_know_is_signed_too_and_does_no_harm() -> None:
    first = signed(SET.receipts[0], key_of(0), wire_dtype="bfloat16")
    assert len(verify_receipts([first, *SET.receipts[1:]], JOB, assignment=None, frames=SET.frames)) == 3
    assert check_of([{**first, "wire_dtype": "int8"}, *SET.receipts[1:]]) == "signature"


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "shard-receipt/2"},
        {"layer_start": "0"},
        {"layer_start": True},
        {"layer_end": 0},
        {"n_chunks": -1},
        {"n_chunks": 1.0},
        {"in_root": "A" * 64},
        {"out_root": "ab"},
        {"nonce": None},
        {"pubkey": ["x"]},
        {"job_id": "x" * 300},
        {"extra": {"nested": 1}},
    ],
    ids=str,
)
def test_a_malformed_receipt_is_named(change: dict[str, object]) -> None:
    broken: Receipt = {**SET.receipts[0], **change}  # type: ignore[dict-item]
    assert check_of([broken, *SET.receipts[1:]]) == "malformed"


@pytest.mark.parametrize("name", ["schema", "swarm_id", "layer_end", "n_chunks", "out_root", "pubkey"])
def test_a_receipt_without_one_of_its_fields_is_named(name: str) -> None:
    broken = {key: value for key, value in SET.receipts[0].items() if key != name}
    with pytest.raises(ReceiptError, match=f"malformed: .*{name} is missing"):
        verify_receipts([broken], JOB, assignment=None, frames=None)


def test_an_unsigned_receipt_and_another_signers_signature_are_named() -> None:
    first, second, _ = SET.receipts
    assert check_of([{key: value for key, value in first.items() if key != "sig"}]) == "signature"
    assert check_of([{**first, "sig": second["sig"]}]) == "signature"
    assert check_of([{**first, "sig": str(first["sig"]).rstrip("=")}]) == "signature"
    assert check_of([{**first, "pubkey": second["pubkey"]}]) == "signature"


def test_a_signer_who_is_not_in_the_ring_is_named() -> None:
    stranger = signed(SET.receipts[0], key_of(9))
    assert check_of([stranger, *SET.receipts[1:]], assignment_of(SET)) == "unknown_signer"


def test_a_signer_who_claims_another_block_is_named() -> None:
    wider = signed(SET.receipts[0], key_of(0), layer_end=3)
    assert check_of([wider, *SET.receipts[1:]], assignment_of(SET)) == "wrong_block"


def test_a_signer_with_two_receipts_is_named() -> None:
    assert check_of([*SET.receipts, SET.receipts[0]], assignment_of(SET)) == "duplicate_signer"
    both = [signed(SET.receipts[0], key_of(0)), signed(SET.receipts[1], key_of(0)), SET.receipts[2]]
    assert check_of(both) == "duplicate_signer"


@pytest.mark.parametrize(
    ("job", "check"),
    [
        (replace(JOB, swarm_id="work"), "swarm"),
        (replace(JOB, job_id="session-2"), "job"),
        (replace(JOB, nonce="nonce-2"), "nonce"),
        (replace(JOB, layer_count=LAYERS + 1), "coverage"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_receipts_of_something_else_are_named(job: Job, check: str) -> None:
    assert check_of(list(SET.receipts), assignment_of(SET), SET.frames, job) == check


def test_a_signer_without_work_is_named() -> None:
    idle = signed(SET.receipts[1], key_of(1), n_chunks=0)
    assert check_of([SET.receipts[0], idle, SET.receipts[2]]) == "zero_work"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_receipt_is_named_with_whose_it_is(index: int) -> None:
    rest = [receipt for at, receipt in enumerate(SET.receipts) if at != index]
    absent = SET.assignment[index]
    with pytest.raises(
        ReceiptError, match=f"missing: .*{absent.peer} for .{absent.lo}, {absent.hi}"
    ) as refused:
        verify_receipts(rest, JOB, assignment=assignment_of(SET), frames=SET.frames)
    assert refused.value.check == "missing"


def test_an_empty_set_is_no_account() -> None:
    assert check_of([]) == "missing"


def test_blocks_that_do_not_tile_the_model_are_named() -> None:
    first, second, third = SET.receipts
    assert check_of([first, third]) == "gap"
    assert check_of([first, signed(second, key_of(1), layer_start=1), third]) == "overlap"
    assert check_of([first, second]) == "coverage"
    assert check_of([second, third]) == "coverage"
    assert check_of([first, second, signed(third, key_of(2), layer_end=LAYERS + 1)]) == "coverage"


def test_a_stage_that_got_other_bytes_than_were_sent_is_named() -> None:
    first, second, third = SET.receipts
    assert check_of([first, signed(second, key_of(1), in_root="0" * 64), third]) == "chain"
    assert check_of([first, signed(second, key_of(1), out_root="0" * 64), third]) == "chain"


def test_stages_that_count_different_frames_are_named() -> None:
    first, second, third = SET.receipts
    assert check_of([first, signed(second, key_of(1), n_chunks=1), third]) == "chunks_differ"
    assert check_of([first, second, third], None, SET.frames[:-1]) == "chunks_differ"


def test_both_ends_are_bound_to_the_token_ids() -> None:
    *most, last = SET.frames
    other_input = (*most, last._replace(tokens=(last.tokens[0] + 1,)))
    other_choice = (*most, last._replace(chosen=(last.chosen[0] + 1,)))
    assert check_of(list(SET.receipts), assignment_of(SET), other_input) == "head_root"
    assert check_of(list(SET.receipts), assignment_of(SET), other_choice) == "tail_root"


def test_a_single_stage_is_bound_at_both_ends_too() -> None:
    done = honest(())
    forged = signed(done.receipts[0], key_of(0), out_root="0" * 64)
    assert check_of([forged], assignment_of(done), done.frames) == "tail_root"
