from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from registry.canonical import CanonicalError
from registry.signed import SignatureError, sign_document, verify_document

KEY = SigningKey(bytes(range(32)))
# Made once with the seed 00 01 … 1f: a change of the canonical form, of what is covered or of an encoding breaks it.
GOLDEN = (
    '{"schema": "example/1", "text": "Grüße ☃", "n": [1, 2.5, null, true, {"b": 1, "a": 2}], '
    '"publisher_pubkey": "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=", '
    '"signature": "zXzS+KviwSKiog7joJEeeNfyler9bPEBIkFd8lUrfhNuZRRNS5FVwppGn3ELGYNYK2PprVHGrd8DUf101SxEDw=="}'
)


def golden() -> dict[str, object]:
    document = json.loads(GOLDEN)
    assert isinstance(document, dict)
    return document


def test_the_golden_document_verifies() -> None:
    assert verify_document(golden()) == bytes(KEY.verify_key)


def test_signing_the_golden_document_gives_the_golden_signature() -> None:
    unsigned = {key: value for key, value in golden().items() if key not in ("publisher_pubkey", "signature")}
    assert sign_document(unsigned, KEY) == golden()


def test_signing_again_replaces_key_and_signature() -> None:
    other = SigningKey(bytes(32))
    again = sign_document(golden(), other)
    assert verify_document(again) == bytes(other.verify_key)


def test_the_fields_may_have_other_names() -> None:
    signed = sign_document({"a": 1}, KEY, signature_field="sig", key_field="pubkey")
    assert set(signed) == {"a", "sig", "pubkey"}
    assert verify_document(signed, signature_field="sig", key_field="pubkey") == bytes(KEY.verify_key)
    with pytest.raises(SignatureError, match="unsigned"):
        verify_document(signed)


@pytest.mark.parametrize(
    ("field", "value"),
    [("text", "Grüße"), ("n", [1]), ("schema", None), ("added", 1), ("n", [1, 2.5, None, 1, {}])],
)
def test_a_changed_document_is_refused(field: str, value: object) -> None:
    with pytest.raises(SignatureError, match="not the signature of this document"):
        verify_document({**golden(), field: value})


def test_true_and_one_are_different_documents() -> None:
    signed = sign_document({"a": 1}, KEY)
    with pytest.raises(SignatureError):
        verify_document({**signed, "a": True})


def test_the_public_key_is_covered_and_cannot_be_swapped() -> None:
    other = base64.b64encode(bytes(SigningKey(bytes(32)).verify_key)).decode()
    with pytest.raises(SignatureError):
        verify_document({**golden(), "publisher_pubkey": other})


@pytest.mark.parametrize("field", ["publisher_pubkey", "signature"])
@pytest.mark.parametrize(
    "value", [None, 7, b"raw", "", "AAAA", "no base64!", base64.urlsafe_b64encode(b"\xff" * 64).decode()]
)
def test_a_malformed_field_is_named(field: str, value: object) -> None:
    with pytest.raises(SignatureError, match=f"`{field}`") as caught:
        verify_document({**golden(), field: value})
    assert caught.value.code == "signature_bad"


def test_the_unused_bits_of_base64_are_checked() -> None:
    signature = str(golden()["signature"])
    assert signature.endswith("w==")
    with pytest.raises(SignatureError, match="last characters"):
        verify_document({**golden(), "signature": signature[:-3] + "x=="})


def test_a_document_without_canonical_form_is_neither_signed_nor_verified() -> None:
    with pytest.raises(CanonicalError):
        sign_document({"a": float("nan")}, KEY)
    with pytest.raises(SignatureError, match="canonical"):
        verify_document({**golden(), "n": float("nan")})


@given(
    st.dictionaries(
        st.text("abcü", max_size=3), st.integers() | st.booleans() | st.text('xyz\n"\\'), max_size=4
    )
)
def test_what_was_signed_verifies_after_a_trip_through_json(document: dict[str, object]) -> None:
    signed = sign_document(document, KEY)
    assert verify_document(json.loads(json.dumps(signed, indent=2))) == bytes(KEY.verify_key)
