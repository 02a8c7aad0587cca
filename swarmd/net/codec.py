"""Msgpack with limits: the encoding of every structured message between hosts."""

from __future__ import annotations

from typing import Any

import msgpack

from swarmd.net.errors import MessageMalformed

_MAX_UNPACKED = 64 << 20  # bytes


def pack(value: object) -> bytes:
    """Encode None, bool, int, float, str, bytes, lists and maps.

    Raises:
        TypeError: a value is of another type.
        ValueError: an integer does not fit in 64 bits.

    """
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return packed


def unpack(data: bytes | memoryview, *, limit: int = _MAX_UNPACKED) -> Any:
    """Decode one value. Nothing in it can be longer than `data` itself, and extension types are refused.

    Raises:
        MessageMalformed: `data` is longer than `limit` bytes, or is not exactly one msgpack value.

    """
    size = len(data)
    if size > limit:
        raise MessageMalformed(f"{size} bytes exceed the limit of {limit}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size,
            max_map_len=size // 2,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MessageMalformed(f"not msgpack: {error or type(error).__name__}") from error


def unpack_map(data: bytes | memoryview, *, limit: int = _MAX_UNPACKED) -> dict[str, Any]:
    """Decode a map whose keys are strings.

    Raises:
        MessageMalformed: `data` is anything else.

    """
    value = unpack(data, limit=limit)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MessageMalformed("not a map with string keys")
    return value


def _refuse_extension(kind: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {kind}")
