"""The whole model in one process, by transformers alone: what a ring's output is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def generate_whole(path: Path, prompt: Sequence[int], max_tokens: int, *, threads: int = 0) -> list[int]:
    """Return what transformers generates greedily after `prompt` (token ids), the end token included.

    Args:
        path: checkpoint directory; the model is loaded in the checkpoint's own dtype, on the CPU.
        prompt: token ids.
        max_tokens: most tokens to generate.
        threads: CPU threads; 0 leaves torch's choice.

    """
    if threads:
        torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True).eval()
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
    return [int(token) for token in out[0, ids.shape[1] :]]
