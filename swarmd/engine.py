"""The engine: one ModelRuntime behind one worker thread, so that loading and computing never block the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
import trio

from registry.shape import ModelShape
from runtimes import open_runtime, select_runtime
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


class _Pulse:
    """What the runtime's thread is doing, and when it last showed progress. Written by that thread, read by others."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.at = time.monotonic()

    def beat(self) -> None:
        self.at = time.monotonic()


class Engine:
    """Serialises all use of a runtime. Errors of the runtime (RuntimeFailure) pass through unchanged."""

    def __init__(
        self, source: ModelSource, adapter: str, *, name: str, threads: int, dtype: str, numerics: str
    ) -> None:
        self.source = source
        self.adapter = adapter
        self._select = lambda: select_runtime(adapter, name=name)
        self._open = lambda: open_runtime(adapter, name=name, threads=threads, dtype=dtype, numerics=numerics)
        self._runtime: ModelRuntime | None = None
        self._thread = trio.CapacityLimiter(1)
        self._pulse: _Pulse | None = None
        self.instead_of = ""  # the runtime that the adapter would rather have, where it is not installed
        self.device = ""
        self.numerics = ""  # of the block held, for people
        self.held: Inventory | None = None
        self._limits: BlockLimits | None = None

    @property
    def runtime_name(self) -> str:
        """The plugin in use, or "" before start()."""
        return "" if self._runtime is None else self._runtime.name

    def working(self) -> tuple[str, float] | None:
        """Return what the runtime is doing and the seconds since it last showed progress; None if it does nothing."""
        pulse = self._pulse
        return None if pulse is None else (pulse.doing, time.monotonic() - pulse.at)

    @property
    def needs_tokens_everywhere(self) -> bool:
        """Whether every stage, not just the head, must be given the token ids."""
        return self._loaded().needs_tokens_everywhere

    async def start(self) -> ModelShape:
        """Open the runtime (this imports torch) and return the model's shape."""
        self.instead_of = (await self._in_thread("looking for runtimes", self._select)).instead_of
        self._runtime = await self._in_thread("starting", self._open, abandon=True)
        self.device = await self._in_thread("naming its device", self._runtime.device)
        return await self._in_thread(
            "sizing the model", lambda: self._loaded().shape(self.source), abandon=True
        )

    async def memory_total(self) -> int:
        """Return the bytes that the device has, within what this process is allowed."""
        return await self._in_thread("reading its memory", self._loaded().memory_total)

    async def memory_free(self) -> int:
        """Return the bytes that this process may still use on the device."""
        return await self._in_thread("reading the free memory", self._loaded().memory_free)

    async def probe(self) -> Probe:
        """Measure one layer at PROBE_WIDTHS."""
        return await self._in_thread(
            "timing a layer", lambda: self._loaded().probe(self.source, PROBE_WIDTHS), abandon=True
        )

    async def load(
        self, lo: int, hi: int, limits: BlockLimits, progress: Callable[[LoadProgress], None]
    ) -> Inventory:
        """Load layers [lo, hi). `progress` is called in the event loop's thread; cancelling ends the load at its next step."""
        token = trio.lowlevel.current_trio_token()

        def report(step: LoadProgress) -> None:
            trio.from_thread.check_cancelled()
            if self._pulse is not None:
                self._pulse.beat()
            token.run_sync_soon(progress, step)

        if self.held is not None and (self.held.lo, self.held.hi, self._limits) == (lo, hi, limits):
            return self.held  # a new plan with the old block: nothing to move
        self.held, runtime = None, self._loaded()
        try:
            self.held = await self._in_thread(
                f"loading layers [{lo}, {hi})", lambda: runtime.load(self.source, lo, hi, limits, report)
            )
            self._limits = limits
            self.numerics = await self._in_thread("naming its numerics", runtime.numerics)
        finally:
            if self.held is None:
                await self._see_what_is_left(runtime)
        return self.held

    async def _see_what_is_left(self, runtime: ModelRuntime) -> None:
        """After a failed load: the runtime may have kept the block before, under the limits of then."""
        with trio.CancelScope(shield=True):
            left = await self._in_thread("seeing what is left", runtime.inventory)
            self.numerics = await self._in_thread("naming its numerics", runtime.numerics)
        self.held = left if left.layers else None

    async def open_session(self, session: str) -> None:
        """Make room for a session."""
        await self._in_thread("opening a session", lambda: self._loaded().open_session(session))

    async def close_session(self, session: str) -> None:
        """Free a session's KV cache."""
        await self._in_thread("closing a session", lambda: self._loaded().close_session(session))

    async def forward(self, frames: Sequence[FrameInput]) -> tuple[list[FrameOutput], int]:
        """Compute frames; returns what came of each, and the nanoseconds that the runtime took."""

        def work() -> tuple[list[FrameOutput], int]:
            began = time.perf_counter_ns()
            outputs = self._loaded().forward(frames)
            if len(outputs) != len(frames):
                raise RuntimeFailure(f"the runtime gave {len(outputs)} results for {len(frames)} frames")
            return outputs, time.perf_counter_ns() - began

        return await self._in_thread("computing a frame", work)

    def _loaded(self) -> ModelRuntime:
        if self._runtime is None:
            raise RuntimeError("the engine has not been started")
        return self._runtime

    async def _in_thread(self, doing: str, work: Callable[[], T], *, abandon: bool = False) -> T:
        """Do work in the runtime's thread. Whatever a plugin did not foresee becomes a RuntimeFailure here.

        doing: what it is, for people.

        abandon: when cancelled, leave the thread to itself. Only for work that nothing else waits for: a daemon that is
        told to leave while it measures leaves at once.
        """

        def watched() -> T:
            self._pulse = _Pulse(doing)
            try:
                return work()
            finally:
                self._pulse = None

        try:
            return await trio.to_thread.run_sync(  # type: ignore[call-arg]  # trio_typing knows an older name
                watched, limiter=self._thread, abandon_on_cancel=abandon
            )
        except RuntimeFailure:
            raise
        except Exception as error:
            _log.exception("runtime_fault", runtime=self.runtime_name)
            raise RuntimeFailure(
                f"the runtime failed ({type(error).__name__}: {error}); its log has the details"
            ) from error
