"""The measurements behind docs/numerics.md: `PYTHONPATH=. python tests/runtimes/numerics_figures.py [hidden …]`.

Random Llama blocks of 4 layers. Prints what a block says of itself, how many rows of a frame have the bits that they have alone,
and what going row by row costs over one attention for the whole frame, interleaved, as a ratio of medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from runtimes_ring import ignore
from transformers import LlamaConfig

from runtimes.base import BlockLimits, ModelSource
from runtimes.hf import HfRuntime
from runtimes.hf.block import first_tensor

LAYERS = 4


def block_of(hidden: int, dtype: str, context: int) -> Any:
    """Return (runtime's block, what it says) of a random model."""
    folder = Path(tempfile.mkdtemp())
    heads = hidden // 64
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 3),
        head_dim=64,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
    )
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    runtime = HfRuntime(dtype=dtype)
    source = ModelSource("random", folder, LAYERS, "LlamaForCausalLM")
    runtime.load(source, 1, LAYERS - 1, BlockLimits(8 << 30, context + 64, 1), ignore)
    loaded: Any = runtime._loaded
    return loaded.block, runtime.numerics()


@torch.inference_mode()
def compare(block: Any, dtype: str, context: int, width: int) -> tuple[str, float]:
    """Return (rows with the bits that they have alone, of a frame as a whole), cost of rows over the whole frame."""
    generator = torch.Generator().manual_seed(2)
    state = block.takes.random(context + width, generator, block.device)
    cache = block.new_cache(context + width)
    for start in range(0, context, 512):
        part = state[:, start : min(start + 512, context)]
        block.run(None, part, part.shape[1], cache)
    frame = state[:, context:]

    def whole() -> torch.Tensor:
        block.rewind(cache, context)
        return first_tensor(block.run(None, frame, width, cache))

    def rows() -> torch.Tensor:
        block.rewind(cache, context)
        return first_tensor(block.run_packed([(None, frame, width, cache)])[0])

    block.rewind(cache, context)
    alone = torch.cat(
        [first_tensor(block.run(None, frame[:, i : i + 1], 1, cache)) for i in range(width)], dim=1
    )
    same = [int((made() == alone).all(-1).sum()) for made in (whole, rows)]
    ratio = _ratio(rows, whole)
    return f"{same[0]}/{width} as a frame, {same[1]}/{width} by rows", ratio


def _ratio(first: Callable[[], object], second: Callable[[], object], rounds: int = 31) -> float:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, into in zip((first, second), times, strict=True):
            start = time.perf_counter()
            run()
            into.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    for hidden in [int(size) for size in sys.argv[1:]] or [576, 1536]:
        for dtype in ("bfloat16", "float32"):
            for context in (128, 4096):
                block, says = block_of(hidden, dtype, context)
                if not block.packs:
                    block.adopt_rows()
                for width in (1, 5):
                    same, ratio = compare(block, dtype, context, width)
                    print(
                        f"{hidden} {dtype} context {context} width {width}: {same}; rows/frame {ratio:.2f}; {says}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
