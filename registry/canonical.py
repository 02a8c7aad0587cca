"""The one byte form of a JSON document that signatures are made over, and the one text form of bytes inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import ClassVar


class CanonicalError(ValueError):
    """The document has no canonical form. Take out the value that the text names (NaN, a lone surrogate, a key that is no text)."""

    code: ClassVar[str] = "document_not_canonical"


def canonical_bytes(document: Mapping[str, object], *, without: str | None = None) -> bytes:
    """Return the bytes of a JSON document that are signed and hashed.

    The form is the one of the `shard-models/1`, `shard-manifest/1` and `shard-receipt/1` tools: keys sorted by code point
    at every level, separators "," and ":" without spaces, non-ASCII text as it is, UTF-8.

    Args:
        document: what json.loads gives for an object; tuples count as lists.
        without: a key of the outermost object to leave out, such as "signature".

    Raises:
        CanonicalError: JSON cannot say it, or not in one way only.

    """
    kept = {key: value for key, value in document.items() if key != without}
    try:
        _refuse_other_keys(kept)
        text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError) as error:
        raise CanonicalError(f"the document has no canonical JSON form: {error}") from error
    except RecursionError as error:
        raise CanonicalError("the document is nested too deeply to have a canonical JSON form") from error


def strict_base64(text: str, length: int) -> bytes:
    """Return the `length` bytes that standard base64 `text` stands for.

    Raises:
        ValueError: not base64, another length, or not the one text that encoding those bytes gives.

    """
    raw = base64.b64decode(text, validate=True)
    if len(raw) != length:
        raise ValueError(f"it stands for {len(raw)} bytes, not {length}")
    if base64.b64encode(raw).decode() != text:
        raise ValueError("its last characters are not those that encoding the same bytes gives")
    return raw


def _refuse_other_keys(value: object) -> None:
    # json.dumps would turn the keys 1 and None into text, so that two documents had the same bytes.
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not text")
            _refuse_other_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_other_keys(item)
