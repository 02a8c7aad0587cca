from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from ring.envelope import OVERHEAD, EnvelopeError, open_envelope, seal
from ring.identity import peer_id_of

KEY = SigningKey(bytes(range(32)))
PUBLIC = bytes(KEY.verify_key)


def _sign(data: bytes) -> bytes:
    return KEY.sign(data).signature


def _parts(payload: bytes = b"hello") -> dict[str, object]:
    fields: dict[str, object] = msgpack.unpackb(seal("greeting", payload, _sign, PUBLIC))
    return fields


GOLDEN = (
    "83a36b6579c42003a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    "a77061796c6f6164c40568656c6c6fa3736967c440"
)


def test_an_envelope_has_these_bytes() -> None:
    sealed = seal("greeting", b"hello", _sign, PUBLIC)
    assert sealed.hex().startswith(GOLDEN)
    assert sealed[-64:] == KEY.sign(b"swarmd/greeting/1\0hello").signature


@given(st.binary(max_size=2000))
def test_what_is_sealed_opens_to_the_same_payload_and_signer(payload: bytes) -> None:
    sealed = seal("greeting", payload, _sign, PUBLIC)
    assert len(sealed) <= len(payload) + OVERHEAD
    assert open_envelope("greeting", sealed, limit=len(sealed)) == (peer_id_of(PUBLIC), payload)


def test_one_kind_does_not_pass_as_another() -> None:
    with pytest.raises(EnvelopeError, match="signature is not that of"):
        open_envelope("plan", seal("greeting", b"hello", _sign, PUBLIC), limit=1000)


def test_one_byte_over_the_limit_is_refused() -> None:
    sealed = seal("greeting", b"hello", _sign, PUBLIC)
    with pytest.raises(EnvelopeError, match="more than the"):
        open_envelope("greeting", sealed, limit=len(sealed) - 1)


@pytest.mark.parametrize("missing", ["key", "payload", "sig"])
def test_a_missing_part_is_refused_by_name(missing: str) -> None:
    parts = _parts()
    del parts[missing]
    with pytest.raises(EnvelopeError, match=f"{missing} is missing"):
        open_envelope("greeting", msgpack.packb(parts), limit=1000)


@pytest.mark.parametrize(
    "change",
    [
        {"key": b"short"},
        {"sig": b""},
        {"sig": bytes(64)},
        {"payload": "hello"},
        {"payload": b"hallo"},
        {"key": bytes(32)},
        {"more": 1},
    ],
)
def test_a_changed_part_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope("greeting", msgpack.packb(_parts() | change), limit=1000)


def test_another_spelling_of_the_same_envelope_is_refused() -> None:
    parts = _parts()
    turned = msgpack.packb(dict(reversed(parts.items())))
    with pytest.raises(EnvelopeError, match="one form"):
        open_envelope("greeting", turned, limit=1000)
    with pytest.raises(EnvelopeError):
        open_envelope("greeting", seal("greeting", b"hello", _sign, PUBLIC) + b"\0", limit=1000)


@given(st.integers(0, 200), st.integers(1, 255))
def test_no_byte_of_an_envelope_can_change(position: int, flip: int) -> None:
    changed = bytearray(seal("greeting", b"x" * 70, _sign, PUBLIC))
    changed[position % len(changed)] ^= flip
    with pytest.raises(EnvelopeError):
        open_envelope("greeting", bytes(changed), limit=1000)


@given(st.binary(max_size=300))
@example(b"\x91" * 3000)
@example(b"\xc1")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\x82\xa1a\x01\xa1a\x01")
@example(b"\x81\x01\x02")
@example(b"\x81\xa1\xff\x02")
def test_any_bytes_are_refused_with_an_envelope_error(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope("greeting", data, limit=4096)
