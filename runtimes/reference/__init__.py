"""The reference runtime: a model made of integer arithmetic, exact on every machine and free of torch.

It has what a transformer has, and nothing else: an embedding, layers in order that look back on a KV cache, and a
head that chooses a token. Every choice depends on all tokens before it, on their positions and on every layer, so a
wrong split, a stale cache entry or a skipped layer shows at once. Swarms are tested and demonstrated with it.

A model directory holds reference.json
    {"arch": "ReferenceForCausalLM", "layers": 8, "vocab": 2048, "hidden": 16, "context": 1024, "seed": "any text"}
and tokenizer files. The weights are not stored: tensor `name` is SHAKE-256 of "seed/name", read as little-endian
int64, so that they can be recomputed in any language.
"""

from __future__ import annotations

from runtimes.reference.model import ReferenceConfig, generate
from runtimes.reference.runtime import ReferenceRuntime

__all__ = ["ReferenceConfig", "ReferenceRuntime", "generate"]
