"""Make a checkpoint that runtimes serve out of a GGUF file or another checkpoint directory."""

from __future__ import annotations

from runtimes.importer.importing import Imported, import_model

__all__ = ["Imported", "import_model"]
