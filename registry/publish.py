"""Sign a rows document: `python -m registry.publish ROWS.json --key KEYFILE --out models.json`."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nacl.signing import SigningKey

from registry.canonical import canonical_bytes
from registry.keys import KeyFileError, create_key, load_key
from registry.models import Registry, RegistryError, parse_registry
from registry.signed import sign_document


def publish(rows: bytes, key: SigningKey) -> tuple[bytes, Registry]:
    """Sign an unsigned registry document.

    Args:
        rows: JSON object with `schema`, `version` and `models`.
        key: the publisher's.

    Returns:
        The signed document in its canonical form, where every byte counts, and what it says.

    Raises:
        RegistryError: consumers would refuse the document.

    """
    try:
        document = json.loads(rows)
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
        signed = canonical_bytes(sign_document(document, key))
    except (ValueError, TypeError, RecursionError) as error:
        raise RegistryError(
            "json", f"the rows are not a JSON document that can be signed: {error}"
        ) from error
    return signed, parse_registry(signed, [bytes(key.verify_key)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m registry.publish", description="Sign a model registry.")
    parser.add_argument("rows", type=Path, help="the unsigned document: schema, version, models")
    parser.add_argument(
        "--key", type=Path, required=True, help="the publisher's key file; keep it out of the repository"
    )
    parser.add_argument("--create-key", action="store_true", help="create the key file; it must not exist")
    parser.add_argument("--out", type=Path, required=True, help="where the signed registry goes")
    options = parser.parse_args(arguments)
    try:
        rows = options.rows.read_bytes()
        key = create_key(options.key) if options.create_key else load_key(options.key)
        data, registry = publish(rows, key)
        _replace(options.out, data)
    except (OSError, KeyFileError, RegistryError) as error:
        sys.stderr.write(f"registry.publish: error: {error}\n")
        return 1
    publisher = base64.b64encode(registry.publisher).decode()
    sys.stdout.write(
        f"{options.out}: version {registry.version}, {len(registry.rows)} models, publisher {publisher}\n"
    )
    return 0


def _replace(path: Path, data: bytes) -> None:
    # Written beside and renamed: a reader sees the old registry or the new one, never half of one.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


if __name__ == "__main__":
    sys.exit(main())
