"""Msgpack maps on channels: ring.fields reads and writes them, its errors become the network's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ring import fields
from swarmd.net.errors import MessageMalformed

_MAX_UNPACKED = 64 << 20  # bytes


def pack(message: Mapping[str, object]) -> bytes:
    """Encode a map of None, bool, int, float, str, bytes, lists and maps with text keys.

    Raises:
        TypeError: a value is of another type.
        OverflowError: an integer does not fit in 64 bits.

    """
    return fields.pack(dict(message))


def unpack(data: bytes, *, limit: int = _MAX_UNPACKED) -> dict[str, Any]:
    """Decode a map with text keys, within the bounds of ring.fields.unpack_map.

    Raises:
        MessageMalformed: `data` is longer than `limit` bytes, or is anything else.

    """
    try:
        return fields.unpack_map(data, limit=limit)
    except fields.FieldError as error:
        raise MessageMalformed(str(error)) from error
