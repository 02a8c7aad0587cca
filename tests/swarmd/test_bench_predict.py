"""`swarmd bench predict`: its report, and the switch that delays packets between namespaces."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import trio

from swarmd.bench.predict import Prediction, predict_report
from swarmd.bench.wan import DelayedHosts, WanUnavailable, delayed_hosts

PING = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7)) as connection:
    began = time.monotonic()
    for _ in range(3):
        connection.sendall(b"x")
        connection.recv(1)
    print((time.monotonic() - began) / 3)
"""
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1):
                connection.sendall(data)
"""


def prediction(learned: float, measured: float) -> Prediction:
    return Prediction(2, 5.0, 50.0, learned, measured)


def test_the_median_error_is_what_counts() -> None:
    report = predict_report([prediction(11, 10), prediction(10, 10), prediction(5, 10)])
    (check,) = report.checks
    assert check.value == pytest.approx(0.1)
    assert [row[-1] for row in report.tables[0].rows] == ["+10.0 %", "+0.0 %", "-50.0 %"]
    assert predict_report([prediction(10.5, 10)]).ok
    assert not predict_report([prediction(12, 10)]).ok


def test_nothing_measured_is_not_ok() -> None:
    report = predict_report([])
    assert math.isnan(report.checks[0].value)
    assert not report.ok


@pytest.fixture
async def wan() -> AsyncIterator[DelayedHosts]:
    stack = AsyncExitStack()
    try:
        hosts = await stack.enter_async_context(delayed_hosts(2))
    except WanUnavailable as error:
        pytest.skip(str(error))
    async with stack:
        yield hosts


async def test_packets_take_as_long_as_they_are_told_to(wan: DelayedHosts) -> None:
    """Only the least time is checked: a delay is never shorter than asked for, however busy the machine is."""
    async with trio.open_nursery() as nursery:
        await _echo(nursery, wan)
        for delay in (0.05, 0.1):
            await wan.delay(delay)
            with trio.fail_after(30):
                done = await trio.run_process(
                    [*wan.launch(1), sys.executable, "-c", PING, wan.address(2)], capture_stdout=True
                )
            assert float(done.stdout) >= 2 * delay
        nursery.cancel_scope.cancel()


async def _echo(nursery: trio.Nursery, wan: DelayedHosts) -> None:
    command = [*wan.launch(2), sys.executable, "-c", ECHO, wan.address(2)]
    process = await trio.lowlevel.open_process(command, stdout=-1)
    assert process.stdout is not None
    await process.stdout.receive_some()

    async def end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    nursery.start_soon(end)


async def test_a_machine_without_namespaces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(WanUnavailable, match="no network namespaces"):
        async with delayed_hosts(1):
            pass
