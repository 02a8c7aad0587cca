from __future__ import annotations

import base64
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.canonical import CanonicalError, canonical_bytes, strict_base64

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(texts, values, max_size=5)


def reversed_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(documents)
def test_the_canonical_form_is_what_the_other_tools_of_the_format_make(document: dict[str, object]) -> None:
    assert canonical_bytes(document) == json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode("utf-8")


@given(documents)
def test_reading_the_canonical_form_gives_the_document_back(document: dict[str, object]) -> None:
    assert json.loads(canonical_bytes(document)) == document
    assert canonical_bytes(json.loads(canonical_bytes(document))) == canonical_bytes(document)


@given(documents)
def test_the_order_of_keys_does_not_matter_at_any_level(document: dict[str, object]) -> None:
    turned = reversed_keys(document)
    assert isinstance(turned, dict)
    assert canonical_bytes(turned) == canonical_bytes(document)


@given(documents, texts)
def test_one_key_can_be_left_out(document: dict[str, object], key: str) -> None:
    rest = {name: value for name, value in document.items() if name != key}
    assert canonical_bytes(document, without=key) == canonical_bytes(rest)


def test_a_key_is_left_out_of_the_outermost_object_only() -> None:
    assert canonical_bytes({"a": {"sig": 1}, "sig": 2}, without="sig") == b'{"a":{"sig":1}}'


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_say_is_refused(number: float) -> None:
    with pytest.raises(CanonicalError, match="canonical"):
        canonical_bytes({"a": [number]})


@pytest.mark.parametrize("document", [{"a": {1: 2}}, {"a": [{None: 2}]}, {"a": b"raw"}, {"a": "\ud800"}])
def test_a_document_that_is_no_json_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(CanonicalError):
        canonical_bytes(document)


def test_a_document_that_is_nested_without_end_is_refused() -> None:
    inner: list[object] = []
    for _ in range(100_000):
        inner = [inner]
    with pytest.raises(CanonicalError, match="deeply"):
        canonical_bytes({"a": inner})


@given(st.binary(min_size=32, max_size=32))
def test_base64_of_the_right_length_is_read(raw: bytes) -> None:
    assert strict_base64(base64.b64encode(raw).decode(), 32) == raw


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("AAA", "padding"),
        ("AAAA", "3 bytes"),
        ("AA==\n", "base64|padding|alphabet|data"),
        ("AB==", "last characters"),
        ("A-==", "base64|alphabet"),
        ("é===", "ASCII"),
    ],
)
def test_any_other_text_is_not_base64(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){why}"):
        strict_base64(text, 1)
