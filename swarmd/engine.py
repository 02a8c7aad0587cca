"""The engine: one ModelRuntime behind one worker thread, so that loading and computing never block the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
import trio

from registry.shape import ModelShape
from runtimes import open_runtime
from runtimes.base import (
    BlockLimits,
    FrameInput,
    FrameOutput,
    Inventory,
    LoadProgress,
    ModelRuntime,
    ModelSource,
    Probe,
    RuntimeFailure,
)

T = TypeVar("T")
_log = structlog.get_logger("swarmd.engine")

# One token, a small chunk as speculation will use it, and a prefill chunk: enough for a line through the costs.
PROBE_WIDTHS = (1, 5, 64)


class Engine:
    """Serialises all use of a runtime. Errors of the runtime (RuntimeFailure) pass through unchanged."""

    def __init__(
        self, source: ModelSource, adapter: str, *, name: str, threads: int, dtype: str, numerics: str
    ) -> None:
        self.source = source
        self._open = lambda: open_runtime(adapter, name=name, threads=threads, dtype=dtype, numerics=numerics)
        self._runtime: ModelRuntime | None = None
        self._thread = trio.CapacityLimiter(1)
        self.device = ""
        self.numerics = ""  # of the block held, for people
        self.held: Inventory | None = None
        self._limits: BlockLimits | None = None

    @property
    def runtime_name(self) -> str:
        """The plugin in use, or "" before start()."""
        return "" if self._runtime is None else self._runtime.name

    @property
    def needs_tokens_everywhere(self) -> bool:
        """Whether every stage, not just the head, must be given the token ids."""
        return self._loaded().needs_tokens_everywhere

    async def start(self) -> ModelShape:
        """Open the runtime (this imports torch) and return the model's shape."""
        self._runtime = await self._in_thread(self._open, abandon=True)
        self.device = await self._in_thread(self._runtime.device)
        return await self._in_thread(lambda: self._loaded().shape(self.source), abandon=True)

    async def memory_free(self) -> int:
        """Return the bytes that this process may still use on the device."""
        return await self._in_thread(self._loaded().memory_free)

    async def probe(self) -> Probe:
        """Measure one layer at PROBE_WIDTHS."""
        return await self._in_thread(lambda: self._loaded().probe(self.source, PROBE_WIDTHS), abandon=True)

    async def load(
        self, lo: int, hi: int, limits: BlockLimits, progress: Callable[[LoadProgress], None]
    ) -> Inventory:
        """Load layers [lo, hi). `progress` is called in the event loop's thread; cancelling ends the load at its next step."""
        token = trio.lowlevel.current_trio_token()

        def report(step: LoadProgress) -> None:
            trio.from_thread.check_cancelled()
            token.run_sync_soon(progress, step)

        if self.held is not None and (self.held.lo, self.held.hi, self._limits) == (lo, hi, limits):
            return self.held  # a new plan with the old block: nothing to move
        self.held = None
        self.held = await self._in_thread(lambda: self._loaded().load(self.source, lo, hi, limits, report))
        self.numerics = await self._in_thread(self._loaded().numerics)
        self._limits = limits
        return self.held

    async def open_session(self, session: str) -> None:
        """Make room for a session."""
        await self._in_thread(lambda: self._loaded().open_session(session))

    async def close_session(self, session: str) -> None:
        """Free a session's KV cache."""
        await self._in_thread(lambda: self._loaded().close_session(session))

    async def forward(self, frames: Sequence[FrameInput]) -> tuple[list[FrameOutput], int]:
        """Compute frames; returns what came of them, and the nanoseconds that the runtime took."""

        def work() -> tuple[list[FrameOutput], int]:
            began = time.perf_counter_ns()
            outputs = self._loaded().forward(frames)
            return outputs, time.perf_counter_ns() - began

        return await self._in_thread(work)

    def _loaded(self) -> ModelRuntime:
        if self._runtime is None:
            raise RuntimeError("the engine has not been started")
        return self._runtime

    async def _in_thread(self, work: Callable[[], T], *, abandon: bool = False) -> T:
        """Do work in the runtime's thread. Whatever a plugin did not foresee becomes a RuntimeFailure here.

        abandon: when cancelled, leave the thread to itself. Only for work that nothing else waits for: a daemon that is
        told to leave while it measures leaves at once.
        """
        try:
            return await trio.to_thread.run_sync(  # type: ignore[call-arg]  # trio_typing knows an older name
                work, limiter=self._thread, abandon_on_cancel=abandon
            )
        except RuntimeFailure:
            raise
        except Exception as error:
            _log.exception("runtime_fault", runtime=self.runtime_name)
            raise RuntimeFailure(
                f"the runtime failed ({type(error).__name__}: {error}); its log has the details"
            ) from error
