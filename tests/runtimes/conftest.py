from __future__ import annotations

import os

# Before torch is imported: the tests share their cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
