"""Registries of the bundled model, signed by a key of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

import registry
from registry.signed import sign_document


def signed_registry(home: Path, rows: int = 1, **changes: Any) -> tuple[Path, str]:
    """Write a registry of the bundled model's row, signed by a key of our own; return its path and the key to pin."""
    bundled = json.loads((Path(registry.__file__).parent / "bundled" / "models.json").read_text())
    row = next(row for row in bundled["models"] if row["id"] == "tale") | changes
    document = sign_document(
        {"schema": "shard-models/1", "version": 1, "models": [row] * rows}, SigningKey(b"k" * 32)
    )
    path = home / "models.json"
    path.write_text(json.dumps(document))
    return path, str(document["publisher_pubkey"])
