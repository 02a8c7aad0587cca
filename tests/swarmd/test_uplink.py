"""UplinkMeter: the receiver times, and a host that computes is left alone."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from reference_swarm import ReferenceSwarm, reference_swarm

from ring.identity import PeerId
from swarmd.daemon import Daemon
from swarmd.net import NetError
from swarmd.uplink import PROTOCOL, rate_of


@given(st.integers(1, 10**9), st.integers(4, 60), st.integers(1, 10**9))
def test_the_rate_is_that_of_the_later_half(apart_ns: int, count: int, slow_start_ns: int) -> None:
    pieces = [
        (slow_start_ns * (place < 1) + place * apart_ns + slow_start_ns, 1000) for place in range(count)
    ]
    assert rate_of(pieces) == 1000 * 10**9 // apart_ns


def test_too_few_pieces_say_nothing() -> None:
    assert rate_of([(place, 1000) for place in range(3)]) == 0
    assert rate_of([(5, 1000)] * 9) == 5000 * 10**9, "pieces that come at once are no division by zero"


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        await trio.sleep(0.05)
    pytest.fail("it did not come to pass within 30 s")


def announced(daemon: Daemon, peer: PeerId) -> int:
    host = daemon._view.announcement(peer)
    return 0 if host is None else host.uplink


@pytest.fixture
async def pair() -> AsyncIterator[ReferenceSwarm]:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        async with reference_swarm(Path(home)) as swarm:
            for _ in range(2):
                await swarm.add()
            first, second = swarm.running
            await eventually(lambda: all(one.daemon._meter.minimum_us() for one in swarm.running))
            await eventually(lambda: first.daemon._facts.state in ("standby", "member"))
            await eventually(lambda: first.daemon._uplink._is_idle_there(second.node.peer_id))
            yield swarm


async def test_an_uplink_is_measured_and_announced(pair: ReferenceSwarm) -> None:
    first, second = (one.daemon for one in pair.running)
    assert await first._uplink.measure()
    assert first._facts.uplink > 100_000
    await eventually(lambda: announced(second, pair.running[0].node.peer_id) == first._facts.uplink)
    assert not await first._uplink.measure(), "one peer does not time another twice in a minute"


async def test_a_host_that_computes_neither_measures_nor_times(pair: ReferenceSwarm) -> None:
    first, second = (one.daemon for one in pair.running)
    first._facts.update(sessions=1)
    assert not await first._uplink.measure()
    first._facts.update(sessions=0)
    second._facts.sessions = 1  # not announced yet
    assert not await first._uplink.measure()
    assert first._facts.uplink == 0


@pytest.mark.parametrize("message", [b"end", b"x"])
async def test_a_peer_that_sends_nothing_of_use_is_answered_or_cut_off(
    pair: ReferenceSwarm, message: bytes
) -> None:
    first, second = pair.running
    with trio.fail_after(20), contextlib.suppress(NetError, trio.EndOfChannel):
        async with await first.node.open(second.node.peer_id, PROTOCOL, max_message=1 << 16) as channel:
            for _ in range(200):
                await channel.send(message)
            await channel.receive()
    await eventually(lambda: not second.daemon._uplink._is_timing)
