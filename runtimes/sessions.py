"""The sessions of a loaded block: who is open, and which frames may be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from runtimes.base import (
    BlockLimits,
    ContextExceeded,
    FrameInput,
    FrameMalformed,
    FrameOutOfOrder,
    MemoryExceeded,
    SessionUnknown,
)


class SessionCache(Protocol):
    """A session's KV cache, as far as the bookkeeping cares."""

    @property
    def length(self) -> int:
        """Tokens held."""
        ...


CacheT = TypeVar("CacheT", bound=SessionCache)


class SessionTable(Generic[CacheT]):
    """The open sessions of one block, bounded by its limits.

    Args:
        limits: what the block has been promised.
        make: builds the cache of a new session.

    """

    def __init__(self, limits: BlockLimits, make: Callable[[], CacheT]) -> None:
        self._limits = limits
        self._make = make
        self._caches: dict[str, CacheT] = {}

    def open(self, session: str) -> None:
        """Make room for a session; one that is open is left as it is. Raises MemoryExceeded when full."""
        if session in self._caches:
            return
        if len(self._caches) >= self._limits.sessions:
            raise MemoryExceeded(
                f"session {session!r} cannot be opened: {self._limits.sessions} are open already, "
                "which is all that this block was promised memory for"
            )
        self._caches[session] = self._make()

    def close(self, session: str) -> None:
        """Free a session; unknown ones are ignored."""
        self._caches.pop(session, None)

    def close_all(self) -> None:
        """Free all sessions."""
        self._caches.clear()

    def lengths(self) -> dict[str, int]:
        """Return tokens held by session."""
        return {session: cache.length for session, cache in self._caches.items()}

    def __getitem__(self, session: str) -> CacheT:
        """Return an open session's cache. Raises SessionUnknown."""
        try:
            return self._caches[session]
        except KeyError:
            raise SessionUnknown(f"session {session!r} is not open on this host: start it anew") from None

    def check(self, frames: Sequence[FrameInput], widths: Sequence[int]) -> None:
        """Check that the frames can be computed one after the other.

        Raises:
            SessionUnknown, FrameMalformed, FrameOutOfOrder, ContextExceeded: naming the frame.

        """
        reached: dict[str, int] = {}
        for frame, width in zip(frames, widths, strict=True):
            held = reached.get(frame.session, self[frame.session].length)
            if width < 1 or frame.position < 0:
                raise FrameMalformed(
                    f"session {frame.session!r}: a frame has width {width} and position {frame.position}; "
                    "it needs at least one token and a position from 0"
                )
            if frame.position > held:
                raise FrameOutOfOrder(
                    f"session {frame.session!r}: a frame begins at position {frame.position}, but only {held} tokens are held"
                )
            end = frame.position + width
            if end > self._limits.context:
                raise ContextExceeded(
                    f"session {frame.session!r}: a frame reaches to position {end}, the context is {self._limits.context}"
                )
            reached[frame.session] = end
