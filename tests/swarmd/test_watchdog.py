"""A runtime that hangs is seen: in the log, and in what `ctl status` shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from runtimes.base import LoadProgress, ModelSource
from runtimes.reference import ReferenceRuntime
from swarmd import engine as engine_module
from swarmd.activity import Activity
from swarmd.engine import Engine
from swarmd.watchdog import watch_runtime

SILENT_AFTER = 60.0  # s of the clock below


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The engine's clock; set `now` to let time pass."""
    fake = SimpleNamespace(now=0.0)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def engine_with(runtime: ReferenceRuntime) -> Engine:
    engine = Engine(
        ModelSource("m", Path("/"), 1, "A"),
        "reference",
        name="auto",
        threads=0,
        dtype="auto",
        numerics="auto",
    )
    engine._runtime = runtime
    return engine


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(20):
        while True:
            if condition():
                return
            await trio.sleep(0.01)


async def test_a_hanging_runtime_is_noted_once_and_so_is_its_return(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    runtime = ReferenceRuntime()
    monkeypatch.setattr(runtime, "memory_free", lambda: released.wait(30))
    engine, activity = engine_with(runtime), Activity(trio.current_time)
    looks = 0

    async def look_at_once(_: float) -> None:
        nonlocal looks
        looks += 1
        await trio.lowlevel.checkpoint()

    def more_looks() -> Callable[[], bool]:
        enough = looks + 3
        return lambda: looks > enough

    monkeypatch.setattr("swarmd.watchdog.trio", SimpleNamespace(sleep=look_at_once))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.memory_free)
        await until(engine.working)
        nursery.start_soon(watch_runtime, engine, activity, SILENT_AFTER)
        clock.now = SILENT_AFTER - 1
        await until(more_looks())
        assert activity.recent() == []
        clock.now = SILENT_AFTER
        await until(more_looks())
        assert [entry.event for entry in activity.recent()] == ["runtime_silent"]
        assert engine.working() == ("reading the free memory", SILENT_AFTER)
        released.set()
        await until(lambda: len(activity.recent()) == 2)
        nursery.cancel_scope.cancel()
    silent, heard = activity.recent()
    assert silent.reason == "reading the free memory, without progress for 60 s"
    assert (heard.event, engine.working()) == ("runtime_heard", None)


async def test_progress_of_a_load_is_a_sign_of_life(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    runtime = ReferenceRuntime()

    def load(
        source: object, lo: int, hi: int, limits: object, progress: Callable[[LoadProgress], None]
    ) -> None:
        for step in range(3):
            clock.now += 50
            seen.append(engine.working())
            progress(LoadProgress(step, 3, "x"))
            seen.append(engine.working())

    monkeypatch.setattr(runtime, "load", load)
    engine = engine_with(runtime)
    await engine.load(0, 2, None, lambda _: None)  # type: ignore[arg-type]
    doing = "loading layers [0, 2)"
    assert seen == [(doing, 50.0), (doing, 0.0)] * 3
