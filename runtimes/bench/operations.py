"""Where the time of a forward pass goes, operation by operation."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

from runtimes.hf.cache import FixedLayer

PARTS = ("projections", "attention", "cache", "elementwise")
_RUNS = 9
_PRODUCTS = ("mm", "addmm", "bmm", "linear", "matmul", "mkldnn")


def time_operations(once: Callable[[], object], clock: Callable[[], int]) -> dict[str, float]:
    """Return the median nanoseconds that each of PARTS takes in a call; Python between operations is in none.

    "cache" is storing keys and values in a FixedLayer, "elementwise" whatever is neither a product of matrices nor attention:
    norms, rotary positions, activations, copies.
    """
    runs: list[dict[str, float]] = []
    for _ in range(_RUNS):
        watch = _Watch(clock)
        with watch, patch.object(FixedLayer, "update", watch.storing(FixedLayer.update)):
            once()
        runs.append(watch.spent)
    return {part: median(run[part] for run in runs) for part in PARTS}


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch lacks the annotation
    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch lacks the annotation
        self._clock = clock
        self.spent = dict.fromkeys(PARTS, 0.0)
        self._storing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = self._clock()
        result = func(*args, **(kwargs or {}))
        self.spent[self._part(func)] += self._clock() - began
        return result

    def storing(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Return `update`, whose operations count as the cache's."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._storing = True
            try:
                return update(*args, **kwargs)
            finally:
                self._storing = False

        return timed

    def _part(self, func: Any) -> str:
        name = func.overloadpacket.__name__
        if self._storing:
            return "cache"
        if "attention" in name:
            return "attention"
        return "projections" if name.startswith(_PRODUCTS) else "elementwise"
