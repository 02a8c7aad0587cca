"""The activity log: transitions with their reasons, for `ctl status`. Not a message log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

_KEPT = 200


@dataclass(frozen=True, slots=True)
class Transition:
    """Something changed at `at` seconds of the daemon's monotonic clock; fields say whom or what it was about."""

    at: float
    event: str
    reason: str
    fields: Mapping[str, object]


class Activity:
    """Keeps the last transitions and writes each to the log once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: deque[Transition] = deque(maxlen=_KEPT)
        self._log = structlog.get_logger("swarmd")

    def note(self, event: str, reason: str = "", **fields: object) -> None:
        """Record a transition; one that repeats the last word for word is dropped."""
        last = self._kept[-1] if self._kept else None
        if last is not None and (last.event, last.reason, last.fields) == (event, reason, fields):
            return
        self._kept.append(Transition(self._clock(), event, reason, dict(fields)))
        if reason:
            fields["reason"] = reason
        self._log.info(event, **fields)

    def recent(self, count: int = 20) -> list[Transition]:
        """Return the newest transitions, oldest of them first."""
        return list(self._kept)[-count:]
