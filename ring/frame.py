"""Frame: what crosses one edge of a ring, as a msgpack header followed by raw tensor bytes.

Wire form: 4 bytes, big-endian: length of the header; the header, a msgpack map with `kind` and that kind's fields; the
bytes of the tensors, in order, with nothing between and nothing after. docs/data-plane.md has the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from ring.fields import FieldError, as_list, as_peer, as_text, pack, required, unpack_map
from ring.ids import as_count, as_counts, as_id
from ring.receipts import Receipt, as_receipts
from ring.sampling import GREEDY, Sampling, as_sampling

MAX_HEADER: Final = 1 << 20
MAX_WIDTH: Final = 65_536
MAX_TENSORS: Final = 16
MAX_DIMS: Final = 8
MAX_TEXT: Final = 4096

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
    }
)
"""Bytes of one element, by dtype name: the dtypes that may cross an edge."""

_LENGTH_BYTES: Final = 4


class FrameError(ValueError):
    """The bytes are no frame. The peer at the other end of the edge runs something else or is faulty: look at its log."""

    code: ClassVar[str] = "frame_bad"


class WireTensor(NamedTuple):
    """A tensor in a frame: dtype a key of ITEM_BYTES, data the elements in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """Opens a session on every stage.

    Attributes:
        session: the session's id; it is also the job id of its receipts.
        plan: id of the plan that it runs on.
        nonce: what the receipts must carry.
        prompt_tokens, max_tokens: tokens of the prompt, and the most that will follow.
        sampling: how the tail chooses tokens; its seed is set where it has a temperature.

    """

    session: str
    plan: str
    nonce: str
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class DataFrame:
    """`width` tokens at `position`, for the next stage to compute.

    Attributes:
        session, epoch: whose, and in which epoch; a stage drops frames of epochs that are over.
        position: index in the session of the frame's first token.
        width: tokens in the frame, at least 1.
        tokens: their ids: to the head always, further on only for runtimes that need them everywhere.
        tensors: the previous stage's output, with gaps as None; () to the head.

    """

    session: str
    epoch: int
    position: int
    width: int
    tokens: tuple[int, ...] | None
    tensors: tuple[WireTensor | None, ...]


@dataclass(frozen=True, slots=True)
class VerifiedFrame:
    """From the tail to the coordinator: tokens[i] is what the model chooses to follow position + i."""

    session: str
    epoch: int
    position: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishFrame:
    """Ends a session that went well: each stage appends its receipt, passes the frame on and frees the session.

    Attributes:
        session: the session.
        epoch, position: a last fence: what was computed in earlier epochs at or behind the position does not count.
        receipts: those of the stages that the frame has passed.

    """

    session: str
    epoch: int
    position: int
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """Ends a session that did not go well: each stage frees it; no receipts."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """A failure on its way downstream to the coordinator.

    Attributes:
        session: the session that failed, or "" for all of the ring's.
        stage: PeerId of the stage that failed.
        code: stable name of the failure; message: one line for people.

    """

    session: str
    stage: str
    code: str
    message: str


Frame = OpenFrame | DataFrame | VerifiedFrame | FinishFrame | CloseFrame | ErrorFrame


def one_line(text: str) -> str:
    """Return a text as it may stand in a frame's message or reason: one printable line of at most 4,096 characters."""
    return "".join(c if c.isprintable() else " " for c in text)[:MAX_TEXT]


def encode(frame: Frame) -> list[bytes | memoryview]:
    """Return the frame as parts whose concatenation is the message; tensor bytes are not copied.

    Raises:
        FrameError: a tensor's bytes do not fit its dtype and shape, or the header exceeds 1 MiB.

    """
    tensors = frame.tensors if isinstance(frame, DataFrame) else ()
    try:
        header = pack(_header(frame))
    except FieldError as error:
        raise FrameError(f"{_KIND[type(frame)]} frame: {error}") from error
    if len(header) > MAX_HEADER:
        raise FrameError(f"the frame's header has {len(header)} bytes, more than the {MAX_HEADER} allowed")
    body = [memoryview(tensor.data).cast("B") for tensor in tensors if tensor is not None]
    return [len(header).to_bytes(_LENGTH_BYTES, "big") + header, *body]


def decode(message: bytes | memoryview) -> Frame:
    """Return the frame that a message holds; its tensors are memoryviews into the message.

    Raises:
        FrameError: the message is not exactly one valid frame; the text names the field, the value and what is allowed.

    """
    whole = memoryview(message)
    length = int.from_bytes(whole[:_LENGTH_BYTES], "big")
    end = _LENGTH_BYTES + length
    if length > MAX_HEADER or len(whole) < end:
        raise FrameError(
            f"the frame says that its header has {length} bytes, but at most {MAX_HEADER} are allowed "
            f"and {max(0, len(whole) - _LENGTH_BYTES)} are there"
        )
    try:
        return _frame(unpack_map(bytes(whole[_LENGTH_BYTES:end]), limit=MAX_HEADER), whole[end:])
    except FieldError as error:
        raise FrameError(f"frame: {error}") from error


def _header(frame: Frame) -> dict[str, object]:
    header: dict[str, object] = {"kind": _KIND[type(frame)]}
    for name in frame.__dataclass_fields__:
        header[name] = getattr(frame, name)
    if isinstance(frame, OpenFrame):
        del header["sampling"]
        if frame.sampling != GREEDY:
            header["sampling"] = frame.sampling.to_map()
    if isinstance(frame, DataFrame):
        header["tensors"] = [None if tensor is None else _described(tensor) for tensor in frame.tensors]
    return header


def _described(tensor: WireTensor) -> list[object]:
    size = memoryview(tensor.data).nbytes
    _check_size("tensors", tensor.dtype, tensor.shape, size)
    return [tensor.dtype, list(tensor.shape), size]


def _frame(raw: dict[str, object], body: memoryview) -> Frame:
    kind = raw.get("kind")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise FieldError(f"kind is {str(kind)[:60]!r}, but must be one of {', '.join(_READERS)}")
    if kind != "data" and len(body):
        raise FieldError(
            f"{len(body)} bytes follow the header of a {kind} frame, but only a data frame has any"
        )
    return reader(raw, body)


def _read_open(raw: dict[str, object], _body: memoryview) -> OpenFrame:
    sampling = as_sampling("sampling", raw.get("sampling", {}))
    if sampling.temperature > 0 and sampling.seed is None:
        raise FieldError("sampling has a temperature, but no seed")
    return OpenFrame(
        session=as_id("session", required(raw, "session")),
        plan=as_id("plan", required(raw, "plan")),
        nonce=as_id("nonce", required(raw, "nonce")),
        prompt_tokens=as_count("prompt_tokens", required(raw, "prompt_tokens"), 1),
        max_tokens=as_count("max_tokens", required(raw, "max_tokens"), 1),
        sampling=sampling,
    )


def _read_data(raw: dict[str, object], body: memoryview) -> DataFrame:
    width = as_count("width", required(raw, "width"), 1, MAX_WIDTH)
    ids = required(raw, "tokens")
    tokens = None if ids is None else as_counts("tokens", ids, MAX_WIDTH)
    if tokens is not None and len(tokens) != width:
        raise FieldError(f"tokens has {len(tokens)} entries, but must have as many as width says, {width}")
    return DataFrame(
        session=as_id("session", required(raw, "session")),
        epoch=as_count("epoch", required(raw, "epoch")),
        position=as_count("position", required(raw, "position")),
        width=width,
        tokens=tokens,
        tensors=_read_tensors(as_list("tensors", required(raw, "tensors"), MAX_TENSORS), body),
    )


def _read_tensors(entries: list[object], body: memoryview) -> tuple[WireTensor | None, ...]:
    tensors: list[WireTensor | None] = []
    start = 0
    for index, entry in enumerate(entries):
        if entry is None:
            tensors.append(None)
            continue
        name = f"tensors[{index}]"
        dtype, shape, size = _read_described(name, entry)
        left = len(body) - start
        if size > left:
            raise FieldError(f"{name} has {size} bytes, but only {left} are left of the message")
        tensors.append(WireTensor(dtype, shape, body[start : start + size]))
        start += size
    if start != len(body):
        raise FieldError(f"{len(body)} bytes follow the header, but the tensors have {start}")
    return tuple(tensors)


def _read_described(name: str, entry: object) -> tuple[str, tuple[int, ...], int]:
    parts = as_list(name, entry, 3)
    if len(parts) != 3:
        raise FieldError(f"{name} has {len(parts)} entries, but must be nil or [dtype, shape, nbytes]")
    dtype = as_text(f"{name}.dtype", parts[0], 32)
    shape = as_counts(f"{name}.shape", parts[1], MAX_DIMS)
    size = as_count(f"{name}.nbytes", parts[2])
    _check_size(name, dtype, shape, size)
    return dtype, shape, size


def _check_size(name: str, dtype: str, shape: tuple[int, ...], size: int) -> None:
    if dtype not in ITEM_BYTES:
        raise FieldError(f"{name}.dtype is {dtype!r}, but must be one of {', '.join(ITEM_BYTES)}")
    due = math.prod(shape) * ITEM_BYTES[dtype]
    if size != due:
        raise FieldError(f"{name} has {size} bytes, but {dtype}{list(shape)} must have {due}")


def _read_verified(raw: dict[str, object], _body: memoryview) -> VerifiedFrame:
    tokens = as_counts("tokens", required(raw, "tokens"), MAX_WIDTH)
    if not tokens:
        raise FieldError("tokens is empty, but must hold at least one token id")
    return VerifiedFrame(
        session=as_id("session", required(raw, "session")),
        epoch=as_count("epoch", required(raw, "epoch")),
        position=as_count("position", required(raw, "position")),
        tokens=tokens,
    )


def _read_finish(raw: dict[str, object], _body: memoryview) -> FinishFrame:
    return FinishFrame(
        session=as_id("session", required(raw, "session")),
        epoch=as_count("epoch", required(raw, "epoch")),
        position=as_count("position", required(raw, "position")),
        receipts=as_receipts("receipts", required(raw, "receipts")),
    )


def _read_close(raw: dict[str, object], _body: memoryview) -> CloseFrame:
    return CloseFrame(
        session=as_id("session", required(raw, "session")),
        reason=as_text("reason", required(raw, "reason"), MAX_TEXT),
    )


def _read_error(raw: dict[str, object], _body: memoryview) -> ErrorFrame:
    session = required(raw, "session")
    return ErrorFrame(
        session="" if session == "" else as_id("session", session),
        stage=as_peer("stage", required(raw, "stage")),
        code=as_id("code", required(raw, "code")),
        message=as_text("message", required(raw, "message"), MAX_TEXT),
    )


_READERS: Final[Mapping[str, Callable[[dict[str, object], memoryview], Frame]]] = MappingProxyType(
    {
        "open": _read_open,
        "data": _read_data,
        "verified": _read_verified,
        "finish": _read_finish,
        "close": _read_close,
        "error": _read_error,
    }
)
_KIND: Final[Mapping[type, str]] = MappingProxyType(
    {
        OpenFrame: "open",
        DataFrame: "data",
        VerifiedFrame: "verified",
        FinishFrame: "finish",
        CloseFrame: "close",
        ErrorFrame: "error",
    }
)
