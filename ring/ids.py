"""Ids: how names (of sessions, plans, nonces, failures) and token ids stand in the messages of the data plane."""

from __future__ import annotations

import re
from typing import Final

from ring.fields import FieldError, as_integer, as_list

MAX_COUNT: Final = 2**53 - 1
"""Largest integer in frames and generate messages: exact in every language, JavaScript included."""

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def as_id(name: str, value: object) -> str:
    """Return `value` if it is an id: 1 to 128 of the characters A-Z a-z 0-9 . _ : -"""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise FieldError(f"{name} is {str(value)[:60]!r}, but must be an id: 1 to 128 of A-Z a-z 0-9 . _ : -")
    return value


def as_count(name: str, value: object, low: int = 0, high: int = MAX_COUNT) -> int:
    """Return `value` if it is an integer in [low, high]."""
    return as_integer(name, value, low, high)


def as_counts(name: str, value: object, limit: int) -> tuple[int, ...]:
    """Return `value` if it is a list of at most `limit` integers in [0, 2**53), such as token ids."""
    return tuple(
        as_integer(f"{name}[{i}]", entry, 0, MAX_COUNT) for i, entry in enumerate(as_list(name, value, limit))
    )
