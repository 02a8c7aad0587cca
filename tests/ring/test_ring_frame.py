"""Frames: every frame survives the wire, and no bytes do anything but give a frame or a FrameError."""

from __future__ import annotations

import contextlib
import math
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_ring import peer_of

from ring.frame import (
    ITEM_BYTES,
    MAX_HEADER,
    MAX_WIDTH,
    CloseFrame,
    DataFrame,
    ErrorFrame,
    FinishFrame,
    Frame,
    FrameError,
    OpenFrame,
    VerifiedFrame,
    WireTensor,
    decode,
    encode,
    one_line,
)
from ring.sampling import Sampling

ids = st.text("abcXYZ019._:-", min_size=1, max_size=128)
counts = st.integers(0, 2**53 - 1)
peers = st.sampled_from([peer_of(0), peer_of(1)])
texts = st.text(max_size=200).map(one_line)
flat = st.dictionaries(texts.map(lambda text: text[:64]), st.one_of(texts, counts), max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> WireTensor:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    size = math.prod(shape) * ITEM_BYTES[dtype]
    return WireTensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def data_frames(draw: st.DrawFn) -> DataFrame:
    width = draw(st.integers(1, 20))
    tokens = draw(st.none() | st.lists(counts, min_size=width, max_size=width).map(tuple))
    parts = tuple(draw(st.lists(st.none() | tensors(), max_size=4)))
    return DataFrame(draw(ids), draw(counts), draw(counts), width, tokens, parts)


samplings = st.builds(
    Sampling,
    st.floats(0, 100),
    counts,
    st.floats(0.001, 1),
    seed=counts,
    logit_bias=st.just(()) | st.tuples(st.tuples(counts, st.floats(-100, 100))),
)
frames: st.SearchStrategy[Frame] = st.one_of(
    data_frames(),
    st.builds(OpenFrame, ids, ids, ids, st.integers(1, 2**53 - 1), st.integers(1, 2**53 - 1), samplings),
    st.builds(VerifiedFrame, ids, counts, counts, st.lists(counts, min_size=1, max_size=20).map(tuple)),
    st.builds(FinishFrame, ids, counts, counts, st.lists(flat, max_size=3).map(tuple)),
    st.builds(CloseFrame, ids, texts),
    st.builds(ErrorFrame, st.just("") | ids, peers, ids, texts),
)


def wire(frame: Frame) -> bytes:
    return b"".join(encode(frame))


def raw(header: object, body: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(header)
    return len(packed).to_bytes(4, "big") + packed + body


def data_header(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "kind": "data",
        "session": "s",
        "epoch": 0,
        "position": 0,
        "width": 1,
        "tokens": [5],
    }
    return {**fields, "tensors": [], **changes}


@given(frames)
def test_every_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(wire(frame)) == frame


@given(frames, st.text("pqrst", min_size=9), st.integers())
def test_a_field_of_a_newer_peer_is_ignored(frame: Frame, name: str, value: int) -> None:
    message = wire(frame)
    end = 4 + int.from_bytes(message[:4], "big")
    header = msgpack.unpackb(message[4:end])
    small = max(-(2**63), min(value, 2**63 - 1))
    assert decode(raw({**header, name: small}, message[end:])) == frame


@given(st.binary(max_size=200))
def test_any_bytes_give_a_frame_or_a_frame_error(message: bytes) -> None:
    with contextlib.suppress(FrameError):
        decode(message)


@given(frames, st.data())
def test_a_changed_frame_gives_a_frame_or_a_frame_error(frame: Frame, data: st.DataObject) -> None:
    message = bytearray(wire(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        decode(bytes(message))


@given(frames, st.data())
def test_a_cut_or_lengthened_frame_is_refused(frame: Frame, data: st.DataObject) -> None:
    message = wire(frame)
    with pytest.raises(FrameError):
        decode(message[: data.draw(st.integers(0, len(message) - 1))])
    with pytest.raises(FrameError):
        decode(message + b"\0")


def test_tensor_bytes_are_not_copied() -> None:
    data = bytes(range(12))
    parts = encode(DataFrame("s", 0, 0, 1, None, (WireTensor("float32", (1, 3), data),)))
    assert isinstance(parts[1], memoryview)
    assert parts[1].obj is data
    message = b"".join(parts)
    frame = decode(message)
    assert isinstance(frame, DataFrame)
    assert frame.tensors[0] is not None
    assert isinstance(frame.tensors[0].data, memoryview)
    assert frame.tensors[0].data.obj is message


def test_the_wire_form_is_the_documented_one() -> None:
    frame = DataFrame("s1", 0, 7, 2, (11, 12), (WireTensor("bfloat16", (1, 2, 1), b"\x80\x3f\x00\x40"), None))
    assert wire(frame).hex() == (
        "00000051"
        "87a46b696e64a464617461a773657373696f6ea27331a565706f636800a8706f736974696f6e07a5776964746802"
        "a6746f6b656e73920b0ca774656e736f7273 9293a862666c6f617431369301020104c0".replace(" ", "")
        + "803f0040"
    )


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "header"),
        (b"\0\0\0\0", "not one msgpack value"),
        (raw([1]), "map"),
        (raw({"kind": "nonsense"}), "kind is 'nonsense'"),
        (raw({}), "kind is 'None'"),
        (raw(data_header(width=0)), "width is 0"),
        (raw(data_header(width=True)), "width is True"),
        (raw(data_header(width=MAX_WIDTH + 1, tokens=None)), "width is 65537"),
        (raw(data_header(width=2)), "tokens has 1 entries"),
        (raw(data_header(tokens=[-1])), r"tokens\[0\] is -1"),
        (raw(data_header(tokens=[2**53])), r"tokens\[0\] is 9007199254740992"),
        (raw(data_header(position=1.0)), "position is 1.0"),
        (raw(data_header(session="")), "session is ''"),
        (raw(data_header(session="a b")), "session is 'a b'"),
        (raw({k: v for k, v in data_header().items() if k != "epoch"}), "epoch is missing"),
        (raw(data_header(tensors=[None] * 17)), "tensors has 17 entries"),
        (raw(data_header(tensors=[["object", [1], 8]]), b"x" * 8), "dtype is 'object'"),
        (raw(data_header(tensors=[["int64", [1], 7]]), b"x" * 7), "must have 8"),
        (raw(data_header(tensors=[["int8", [1] * 9, 1]]), b"x"), "shape has 9 entries"),
        (raw(data_header(tensors=[["int8", [-1], 1]]), b"x"), r"shape\[0\] is -1"),
        (raw(data_header(tensors=[["int8", [2**40], 2**40]]), b"x"), "only 1 are left"),
        (raw(data_header(tensors=[["int8", [1]]]), b"x"), "has 2 entries"),
        (
            raw(data_header(tensors=[["int8", [1], 1]]), b"xy"),
            "2 bytes follow the header, but the tensors have 1",
        ),
        (raw({"kind": "close", "session": "s", "reason": "r"}, b"x"), "only a data frame has any"),
        (raw({"kind": "close", "session": "s", "reason": "r" * 5000}), "reason"),
        (
            raw({"kind": "verified", "session": "s", "epoch": 0, "position": 0, "tokens": []}),
            "tokens is empty",
        ),
        (
            raw({"kind": "finish", "session": "s", "epoch": 1, "position": 2, "receipts": [{"a": [1]}]}),
            r"receipts\[0\].a",
        ),
        (
            raw({"kind": "finish", "session": "s", "epoch": 1, "position": 2, "receipts": [{}] * 257}),
            "receipts has 257 entries",
        ),
    ],
)
def test_a_bad_frame_is_refused_by_the_name_of_its_field(message: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says) as refused:
        decode(message)
    assert refused.value.code == "frame_bad"
    assert "\n" not in str(refused.value)


def test_a_huge_header_is_refused_before_it_is_parsed() -> None:
    message = (MAX_HEADER + 1).to_bytes(4, "big") + b"\x90" * (MAX_HEADER + 1)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="at most 1048576"):
            decode(message)
        assert tracemalloc.get_traced_memory()[1] < MAX_HEADER
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "tensor",
    [WireTensor("int64", (2,), b"x" * 8), WireTensor("complex64", (1,), b"x" * 8)],
)
def test_a_tensor_that_contradicts_itself_is_not_sent(tensor: WireTensor) -> None:
    with pytest.raises(FrameError, match="tensors"):
        encode(DataFrame("s", 0, 0, 1, None, (tensor,)))


def test_a_header_that_no_peer_would_take_is_not_sent() -> None:
    receipt: dict[str, str | int] = {"a": "x" * MAX_HEADER}
    with pytest.raises(FrameError, match="header has"):
        encode(FinishFrame("s", 1, 2, (receipt,)))


def test_a_message_of_an_exception_becomes_one_line() -> None:
    assert one_line("first\nsecond\ttab") == "first second tab"
    assert len(one_line("x" * 10_000)) == 4096
