from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.net import MessageMalformed, MessageTooLarge, pack, unpack
from swarmd.net.framing import END_MARK, Deframer, frame

LIMIT = 200
messages = st.lists(st.binary(min_size=1, max_size=LIMIT), max_size=8)


@given(messages, st.data())
def test_messages_survive_any_fragmentation(sent: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(frame([message], LIMIT) for message in sent) + END_MARK
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    deframer, got = Deframer(LIMIT), []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        got += deframer.feed(wire[start:stop])
    assert got == sent
    assert deframer.ended


@given(st.binary(max_size=600), st.integers(1, 64))
def test_any_bytes_give_messages_within_the_limit_or_one_of_two_errors(junk: bytes, step: int) -> None:
    deframer = Deframer(LIMIT)
    try:
        for start in range(0, len(junk), step):
            assert all(0 < len(message) <= LIMIT for message in deframer.feed(junk[start : start + step]))
    except (MessageTooLarge, MessageMalformed):
        return


def test_a_message_is_the_concatenation_of_its_parts() -> None:
    assert frame([b"ab", memoryview(b"cd")], 4) == b"\0\0\0\4abcd"


def test_a_memoryview_counts_by_its_bytes_not_by_its_elements() -> None:
    words = memoryview(bytes(8)).cast("I")
    assert frame([words], 8) == b"\0\0\0\x08" + bytes(8)


def test_a_length_over_the_limit_is_refused_from_the_header_alone() -> None:
    with pytest.raises(MessageTooLarge, match="201 bytes"):
        Deframer(LIMIT).feed((201).to_bytes(4, "big"))


def test_a_message_over_the_limit_is_not_framed() -> None:
    with pytest.raises(MessageTooLarge, match="201"):
        frame([bytes(201)], LIMIT)


def test_an_empty_message_is_refused_because_length_zero_ends_the_conversation() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        frame([b"", b""], LIMIT)


@pytest.mark.parametrize("pieces", [[END_MARK + b"x"], [END_MARK, b"x"]])
def test_bytes_after_the_end_mark_are_malformed(pieces: list[bytes]) -> None:
    deframer = Deframer(LIMIT)
    with pytest.raises(MessageMalformed, match="after the end mark"):
        [deframer.feed(piece) for piece in pieces]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_a_map_survives_packing(value: dict[str, object]) -> None:
    assert unpack(pack(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_unpack_or_are_malformed(junk: bytes) -> None:
    try:
        unpack(junk)
    except MessageMalformed:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack({"a": 1}) + b"\0",  # more than one value
        b"\xdd\xff\xff\xff\xff",  # an array that says it has 4 billion items
        b"\xdb\xff\xff\xff\xffabc",  # a string that says it has 4 GB
        b"\x91" * 5000,  # nesting beyond any limit
        msgpack.packb(msgpack.ExtType(5, b"x")),
        b"\xa2\xff\xfe",  # not UTF-8
        b"\x81\x01\x02",  # an integer as a key
        b"\x81\x91\x01\x02",  # a list as a key
    ],
)
def test_what_is_not_plain_msgpack_is_malformed(data: bytes) -> None:
    with pytest.raises(MessageMalformed):
        unpack(data)


def test_more_bytes_than_allowed_are_not_unpacked() -> None:
    with pytest.raises(MessageMalformed, match="than the 3"):
        unpack(pack({"a": "abc"}), limit=3)


@pytest.mark.parametrize("value", [[1], "x", None, {b"bytes": 1}])
def test_only_a_map_with_text_keys_is_a_message(value: object) -> None:
    with pytest.raises(MessageMalformed):
        unpack(msgpack.packb(value))


def test_an_integer_beyond_64_bits_is_refused_by_name() -> None:
    with pytest.raises(OverflowError, match=r"[Ii]nt"):
        pack({"a": 2**64})
