"""Watchdog: a runtime that shows no progress for long is said to be silent; slow is not dead, so nothing is ended for it."""

from __future__ import annotations

import trio

from swarmd.activity import Activity
from swarmd.engine import Engine

_LOOKS = 8  # per period of silence that is allowed


async def watch_runtime(engine: Engine, activity: Activity, silent_after: float) -> None:
    """Note when the runtime has been silent for `silent_after` seconds, and when it is heard again."""
    silent = ""
    while True:
        await trio.sleep(silent_after / _LOOKS)
        working = engine.working()
        now_silent = working[0] if working is not None and working[1] >= silent_after else ""
        if now_silent and now_silent != silent:
            activity.note("runtime_silent", f"{now_silent}, without progress for {silent_after:g} s")
        if silent and not now_silent:
            activity.note("runtime_heard", f"{silent} has gone on")
        silent = now_silent
