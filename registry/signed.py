"""Signed JSON documents: an object that carries the public key of its signer and the signature of all the rest."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import ClassVar

from nacl.signing import SigningKey

from registry.canonical import CanonicalError, canonical_bytes, strict_base64
from registry.keys import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, public_key_text, sign, verify


class SignatureError(ValueError):
    """The document is not what its key signed. Get it anew from its publisher; never use it."""

    code: ClassVar[str] = "signature_bad"


def sign_document(
    document: Mapping[str, object],
    key: SigningKey,
    *,
    signature_field: str = "signature",
    key_field: str = "publisher_pubkey",
) -> dict[str, object]:
    """Return a copy of `document` that carries the public key and the signature, both standard base64.

    The signature covers canonical_bytes of everything but itself, the public key included.

    Raises:
        CanonicalError: the document has no canonical form.

    """
    signed = {**document, key_field: public_key_text(key)}
    signature = sign(key, canonical_bytes(signed, without=signature_field))
    return {**signed, signature_field: base64.b64encode(signature).decode()}


def verify_document(
    document: Mapping[str, object], *, signature_field: str = "signature", key_field: str = "publisher_pubkey"
) -> bytes:
    """Check a document against the key that it carries, and return that key (32 bytes).

    Whether the key is one to trust is for the caller to say.

    Raises:
        SignatureError: a field is missing or malformed, or the signature is not the key's.

    """
    public_key = _field_bytes(document, key_field, PUBLIC_KEY_BYTES)
    signature = _field_bytes(document, signature_field, SIGNATURE_BYTES)
    try:
        data = canonical_bytes(document, without=signature_field)
    except CanonicalError as error:
        raise SignatureError(str(error)) from error
    if not verify(public_key, signature, data):
        raise SignatureError(f"`{signature_field}` is not the signature of this document by `{key_field}`")
    return public_key


def _field_bytes(document: Mapping[str, object], field: str, length: int) -> bytes:
    text = document.get(field)
    if not isinstance(text, str):
        raise SignatureError(f"`{field}` is missing or not text: the document is unsigned")
    try:
        return strict_base64(text, length)
    except ValueError as error:
        raise SignatureError(f"`{field}` is not the standard base64 of {length} bytes: {error}") from error
