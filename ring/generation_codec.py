"""Codec of the generate messages: strict reading of what a client or a daemon sent, as msgpack or as plain maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from ring.fields import FieldError, as_choice, as_list, as_map, as_peer, as_text, pack, required, unpack_map
from ring.frame import MAX_TEXT, MAX_WIDTH
from ring.generation import (
    DRAFTS,
    Assigned,
    ChatMessage,
    Done,
    ErrorEvent,
    Event,
    GenerateRequest,
    RequestError,
    Started,
    TokenEvent,
)
from ring.identity import PeerId
from ring.ids import as_count, as_counts, as_id
from ring.receipts import TokenFrame, as_receipts
from ring.sampling import as_sampling
from ring.session import FinishReason
from ring.session_stats import SpeculationStats, Tried

MAX_REQUEST: Final = 4 << 20
MAX_EVENT: Final = 16 << 20
MAX_MESSAGES: Final = 1024
MAX_TOKENS: Final = 1 << 20
MAX_STOPS: Final = 16
MAX_STOP: Final = 256

_MAX_NAME: Final = 256
_MAX_ROLE: Final = 32
_MAX_STAGES: Final = 256
_MAX_BUCKETS: Final = 64
_SPECULATION_COUNTS: Final = (
    "drafted",
    "judged",
    "accepted",
    "sent",
    "wasted",
    "mean_depth_milli",
    "confidence_milli",
)
_REASONS: Final[tuple[FinishReason, ...]] = ("stop", "length")


def encode(message: GenerateRequest | Event) -> bytes:
    """Return a request or an event in msgpack.

    Raises:
        RequestError: it is larger than its reader accepts (MAX_REQUEST, MAX_EVENT), or its text is not Unicode.

    """
    limit = MAX_REQUEST if isinstance(message, GenerateRequest) else MAX_EVENT
    try:
        data = pack(message.to_map())
    except UnicodeEncodeError as error:
        raise RequestError(f"the message holds text that UTF-8 cannot say: {error}") from error
    if len(data) > limit:
        raise RequestError(f"the message has {len(data)} bytes, more than the {limit} that are allowed")
    return data


def decode_request(data: bytes) -> GenerateRequest:
    """Return the request in `data`. Raises RequestError naming the field."""
    return request_from_map(_unpacked(data, MAX_REQUEST))


def decode_event(data: bytes) -> Event:
    """Return the event in `data`. Raises RequestError naming the field."""
    return event_from_map(_unpacked(data, MAX_EVENT))


def request_from_map(raw: Mapping[str, object]) -> GenerateRequest:
    """Return the request that a map holds; unknown keys are ignored.

    Raises:
        RequestError: a field is missing or wrong; the text names it.

    """
    try:
        return _read_request(raw)
    except FieldError as error:
        raise RequestError(f"generate request: {error}") from error


def event_from_map(raw: Mapping[str, object]) -> Event:
    """Return the event that a map holds; unknown keys are ignored.

    Raises:
        RequestError: a field is missing or wrong; the text names it.

    """
    try:
        name = as_choice("event", required(raw, "event"), tuple(_EVENTS))
        return _EVENTS[name](raw)
    except FieldError as error:
        raise RequestError(f"generate event: {error}") from error


def _unpacked(data: bytes, limit: int) -> dict[str, object]:
    try:
        return unpack_map(data, limit=limit)
    except FieldError as error:
        raise RequestError(f"generate message: {error}") from error


def _read_request(raw: Mapping[str, object]) -> GenerateRequest:
    given = [name for name in ("prompt", "messages", "tokens") if raw.get(name) is not None]
    if len(given) != 1:
        said = " and ".join(given) or "none of them"
        raise FieldError(f"{said} given, but exactly one of prompt, messages and tokens must be")
    value = raw[given[0]]
    nonce = raw.get("nonce", "")
    return GenerateRequest(
        model=as_text("model", raw.get("model", ""), _MAX_NAME),
        max_tokens=as_count("max_tokens", required(raw, "max_tokens"), 1, MAX_TOKENS),
        prompt=_as_prose("prompt", value, MAX_REQUEST) if given == ["prompt"] else None,
        messages=_as_messages(value) if given == ["messages"] else None,
        tokens=as_counts("tokens", value, MAX_TOKENS) if given == ["tokens"] else None,
        nonce="" if nonce == "" else as_id("nonce", nonce),
        draft=as_choice("draft", raw.get("draft", "auto"), DRAFTS),
        sampling=as_sampling("sampling", raw.get("sampling", {})),
        stop=_as_stops(raw.get("stop", [])),
        forwarded=_as_boolean("forwarded", raw.get("forwarded", False)),
    )


def _as_boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise FieldError(f"{name} is {str(value)[:60]!r}, but must be true or false")
    return value


def _as_prose(name: str, value: object, limit: int) -> str:
    """Return `value` if it is text, line breaks and all, that UTF-8 can say."""
    if not isinstance(value, str):
        raise FieldError(f"{name} is a {type(value).__name__}, but must be text")
    if len(value) > limit:
        raise FieldError(f"{name} has {len(value)} characters, more than the {limit} that are allowed")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise FieldError(f"{name} holds a lone surrogate, which is no character")
    return value


def _as_stops(value: object) -> tuple[str, ...]:
    stops = [
        _as_prose(f"stop[{i}]", text, MAX_STOP) for i, text in enumerate(as_list("stop", value, MAX_STOPS))
    ]
    if "" in stops:
        raise FieldError(f"stop[{stops.index('')}] is empty, but must be at least one character")
    return tuple(stops)


def _as_messages(value: object) -> tuple[ChatMessage, ...]:
    messages = as_list("messages", value, MAX_MESSAGES)
    if not messages:
        raise FieldError("messages is empty, but must hold at least one message")
    return tuple(_as_message(f"messages[{i}]", message) for i, message in enumerate(messages))


def _as_message(name: str, value: object) -> ChatMessage:
    fields = as_map(name, value)
    role = as_text(f"{name}.role", required(fields, "role"), _MAX_ROLE)
    return ChatMessage(role, _as_prose(f"{name}.content", required(fields, "content"), MAX_REQUEST))


def _read_started(raw: Mapping[str, object]) -> Started:
    return Started(
        job=as_id("job", required(raw, "job")),
        model=as_text("model", required(raw, "model"), _MAX_NAME),
        prompt_tokens=as_count("prompt_tokens", required(raw, "prompt_tokens"), 1),
        coordinator=as_peer("coordinator", required(raw, "coordinator")),
        plan=as_id("plan", required(raw, "plan")),
        seed=None if raw.get("seed") is None else as_count("seed", raw["seed"]),
    )


def _read_token(raw: Mapping[str, object]) -> TokenEvent:
    return TokenEvent(
        tokens=as_counts("tokens", required(raw, "tokens"), MAX_WIDTH),
        text=_as_prose("text", required(raw, "text"), MAX_EVENT),
    )


def _read_done(raw: Mapping[str, object]) -> Done:
    usage = as_map("usage", required(raw, "usage"))
    timing = as_map("timing", required(raw, "timing"))
    speculation = as_map("speculation", required(raw, "speculation"))
    assignment = as_list("assignment", required(raw, "assignment"), _MAX_STAGES)
    return Done(
        job=as_id("job", required(raw, "job")),
        swarm=as_text("swarm", required(raw, "swarm"), _MAX_NAME),
        nonce=as_id("nonce", required(raw, "nonce")),
        finish_reason=as_choice("finish_reason", required(raw, "finish_reason"), _REASONS),
        prompt_tokens=as_count("usage.prompt_tokens", required(usage, "prompt_tokens"), 1),
        completion_tokens=as_count("usage.completion_tokens", required(usage, "completion_tokens"), 1),
        layer_count=as_count("layer_count", required(raw, "layer_count"), 1),
        assignment=tuple(_as_assigned(f"assignment[{i}]", stage) for i, stage in enumerate(assignment)),
        frames=_as_frames(as_map("frames", required(raw, "frames"))),
        receipts=as_receipts("receipts", required(raw, "receipts")),
        ttft_us=as_count("timing.ttft_us", required(timing, "ttft_us")),
        total_us=as_count("timing.total_us", required(timing, "total_us")),
        traversals=as_count("speculation.traversals", required(speculation, "traversals")),
        speculation=_as_speculation(speculation),
    )


def _as_speculation(raw: Mapping[str, object]) -> SpeculationStats:
    counts = {name: as_count(f"speculation.{name}", required(raw, name)) for name in _SPECULATION_COUNTS}
    return SpeculationStats(
        drafter=as_text("speculation.drafter", required(raw, "drafter"), _MAX_NAME),
        by_depth=_as_tried("speculation.by_depth", required(raw, "by_depth")),
        by_context=_as_tried("speculation.by_context", required(raw, "by_context")),
        **counts,
    )


def _as_tried(name: str, value: object) -> tuple[Tried, ...]:
    rows = [as_counts(f"{name}[{i}]", row, 3) for i, row in enumerate(as_list(name, value, _MAX_BUCKETS))]
    if any(len(row) != 3 for row in rows):
        raise FieldError(f"{name} has an entry that is not [at, judged, accepted]")
    return tuple(Tried(*row) for row in rows)


def _as_assigned(name: str, value: object) -> Assigned:
    parts = as_list(name, value, 3)
    if len(parts) != 3:
        raise FieldError(f"{name} has {len(parts)} entries, but must be [peer, lo, hi]")
    lo = as_count(f"{name}.lo", parts[1])
    return Assigned(as_peer(f"{name}.peer", parts[0]), lo, as_count(f"{name}.hi", parts[2], lo + 1))


def _as_frames(raw: Mapping[str, object]) -> tuple[TokenFrame, ...]:
    positions, widths, tokens, chosen = (
        as_counts(f"frames.{name}", required(raw, name), MAX_TOKENS)
        for name in ("positions", "widths", "tokens", "chosen")
    )
    if len(widths) != len(positions):
        raise FieldError(f"frames has {len(positions)} positions, but {len(widths)} widths")
    if not sum(widths) == len(tokens) == len(chosen):
        raise FieldError(
            f"frames has {len(tokens)} tokens and {len(chosen)} chosen, but its widths sum to {sum(widths)}"
        )
    given, picked = iter(tokens), iter(chosen)
    return tuple(
        TokenFrame(position, tuple(islice(given, width)), tuple(islice(picked, width)))
        for position, width in zip(positions, widths, strict=True)
    )


def _read_error(raw: Mapping[str, object]) -> ErrorEvent:
    stage = required(raw, "stage")
    return ErrorEvent(
        code=as_id("code", required(raw, "code")),
        message=as_text("message", required(raw, "message"), MAX_TEXT),
        stage=PeerId("") if stage == "" else as_peer("stage", stage),
    )


_EVENTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = MappingProxyType(
    {"started": _read_started, "token": _read_token, "done": _read_done, "error": _read_error}
)
