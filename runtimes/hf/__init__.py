"""The Hugging Face runtime: blocks of any causal language model that transformers knows, without code per architecture.

How it works: docs/runtimes.md.
"""

from __future__ import annotations

import os

# Asynchronous loading reads with several threads ahead of what is converted: more memory at the peak, and progress
# could not be told from the calling thread. transformers looks at this variable whenever it loads.
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"

from runtimes.hf.runtime import HfRuntime

__all__ = ["HfRuntime"]
