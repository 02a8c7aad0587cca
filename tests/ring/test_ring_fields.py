"""Strict readers of what a peer packed."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest

from ring.fields import MAX_CONTAINERS, FieldError, as_integer, unpack_map

LIMIT = 4 << 20


def test_millions_of_empty_lists_are_refused_before_they_fill_memory() -> None:
    count = LIMIT - 64
    data = b"\x81\xa1a\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    tracemalloc.start()
    with pytest.raises(FieldError, match="lists and maps"):
        unpack_map(data, limit=LIMIT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_as_many_containers_as_allowed_are_read() -> None:
    inner = MAX_CONTAINERS - 2
    assert unpack_map(msgpack.packb({"a": [[]] * inner}), limit=LIMIT) == {"a": [[]] * inner}
    with pytest.raises(FieldError):
        unpack_map(msgpack.packb({"a": [[]] * (inner + 1)}), limit=LIMIT)


@pytest.mark.parametrize("value", ["x" * 1_000_000, b"y" * 1_000_000, [1] * 100_000, {"a": 1}])
def test_an_error_shows_a_wrong_value_briefly(value: object) -> None:
    with pytest.raises(FieldError) as error:
        as_integer("count", value)
    assert len(str(error.value)) < 200
