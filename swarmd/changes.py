"""A flag that wakes whoever waits for "something changed": the daemon's services re-decide, they don't queue events."""

from __future__ import annotations

import trio


class Changes:
    """Counts changes; a waiter that saw count n wakes as soon as the count is beyond n. Nothing is ever missed."""

    def __init__(self) -> None:
        self.count = 0
        self._event = trio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self.count += 1
        self._event.set()
        self._event = trio.Event()

    async def wait(self, seen: int, *, at_most: float) -> None:
        """Return once the count is beyond `seen`, or after at_most seconds."""
        if self.count != seen:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(at_most):
            await self._event.wait()
