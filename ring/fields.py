"""Fields: strict readers of what a peer packed with msgpack. Nothing is trusted before it has passed one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import count
from typing import TypeVar

import msgpack

from ring.identity import PeerId, PeerIdError, peer_id_of, public_key_of

MAX_INTEGER = 2**62
"""The largest integer in any message: sums of a few still fit into 64 signed bits in other languages."""

MAX_CONTAINERS = 1 << 16
"""Most lists and maps in one message: an empty one is a byte on the wire and dozens in memory."""

_PEER_LIMIT = 64
_SHOWN = 60  # characters of a wrong value in an error
_Choice = TypeVar("_Choice", bound=str)
_Container = TypeVar("_Container", list[object], dict[str, object])


class FieldError(ValueError):
    """A message or one of its fields is not as the protocol says. The text names the field and its value."""


def pack(value: object) -> bytes:
    """Return `value` in msgpack; equal values give equal bytes, as maps keep the order they were built in."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_map(data: bytes, *, limit: int) -> dict[str, object]:
    """Return the one msgpack map with text keys that `data` holds.

    Raises:
        FieldError: longer than `limit` bytes, not msgpack, trailing bytes, not a map, a key twice, or more than
            MAX_CONTAINERS lists and maps.

    """
    if len(data) > limit:
        raise FieldError(f"{len(data)} bytes are more than the {limit} that are allowed")
    containers = count()

    def admit(value: _Container) -> _Container:
        if next(containers) >= MAX_CONTAINERS:
            raise FieldError(f"it holds more than {MAX_CONTAINERS} lists and maps")
        return value

    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=lambda pairs: admit(_unique(pairs)),
            list_hook=admit,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=limit,
            max_map_len=limit,
            max_ext_len=0,
        )
    except FieldError:
        raise
    except (ValueError, msgpack.UnpackException) as error:
        raise FieldError(f"not one msgpack value: {error or type(error).__name__}") from error
    if not isinstance(value, dict):
        raise FieldError(f"a {type(value).__name__} where a map must be")
    return value


def _unique(pairs: list[tuple[object, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise FieldError(f"a map's key is {_shown(key)}, not text")
        if key in found:
            raise FieldError(f"the key {_shown(key)} stands twice in a map")
        found[key] = value
    return found


def as_integer(name: str, value: object, low: int = 0, high: int = MAX_INTEGER) -> int:
    """Return `value` if it is an integer (never a bool) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"{name} is {_shown(value)}, not an integer")
    if not low <= value <= high:
        raise FieldError(f"{name} is {value}, not in [{low}, {high}]")
    return value


def as_text(name: str, value: object, limit: int) -> str:
    """Return `value` if it is printable text of at most `limit` characters.

    Control characters are refused because people read these texts in a terminal.
    """
    if not isinstance(value, str):
        raise FieldError(f"{name} is {_shown(value)}, not text")
    if len(value) > limit:
        raise FieldError(f"{name} has {len(value)} characters, more than the {limit} that are allowed")
    if not value.isprintable():
        raise FieldError(f"{name} is {_shown(value)}: it holds characters that cannot be printed")
    return value


def as_choice(name: str, value: object, choices: tuple[_Choice, ...]) -> _Choice:
    """Return the member of `choices` that equals `value`."""
    for choice in choices:
        if value == choice:
            return choice
    raise FieldError(f"{name} is {_shown(value)}, not one of {', '.join(choices)}")


def as_peer(name: str, value: object) -> PeerId:
    """Return `value` if it is an Ed25519 PeerId in the one spelling that peer_id_of gives."""
    text = as_text(name, value, _PEER_LIMIT)
    try:
        return _peer(text)
    except PeerIdError as error:
        raise FieldError(f"{name}: {error}") from error


@lru_cache(maxsize=8192)
def _peer(text: str) -> PeerId:
    # base58 strips white space, so two texts may name one key; ids are compared as text, hence the second check.
    peer = peer_id_of(public_key_of(text))
    if peer != text:
        raise PeerIdError(f"{text!r} is not the usual spelling of {peer}")
    return peer


def as_list(name: str, value: object, limit: int) -> list[object]:
    """Return `value` if it is a list of at most `limit` entries."""
    if not isinstance(value, list):
        raise FieldError(f"{name} is {_shown(value)}, not a list")
    if len(value) > limit:
        raise FieldError(f"{name} has {len(value)} entries, more than the {limit} that are allowed")
    return value


def as_texts(name: str, value: object, count: int, limit: int) -> tuple[str, ...]:
    """Return the entries of `value` if it is a list of at most `count` texts of at most `limit` characters."""
    return tuple(as_text(name, entry, limit) for entry in as_list(name, value, count))


def as_pair(name: str, value: object) -> tuple[object, object]:
    """Return the two entries of `value` if it is a list of two."""
    pair = as_list(name, value, 2)
    if len(pair) != 2:
        raise FieldError(f"{name} has {len(pair)} entries, not 2")
    return pair[0], pair[1]


def as_map(name: str, value: object) -> dict[str, object]:
    """Return `value` if it is a map (its keys are text: unpack_map has seen to it)."""
    if not isinstance(value, dict):
        raise FieldError(f"{name} is {_shown(value)}, not a map")
    return value


def required(fields: Mapping[str, object], key: str) -> object:
    """Return the field `key`; a missing one is refused by name."""
    if key not in fields:
        raise FieldError(f"{key} is missing")
    return fields[key]


def refuse_other_keys(name: str, fields: Mapping[str, object], allowed: Collection[str]) -> None:
    """Refuse a map with a key that is not among those allowed; the first such key is named."""
    unknown = sorted(set(fields) - set(allowed))
    if unknown:
        raise FieldError(f"{name} has an unknown key {unknown[0]!r}")


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | bytes):
        value = value[:_SHOWN]  # a repr of megabytes would cost more than the message did
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"
