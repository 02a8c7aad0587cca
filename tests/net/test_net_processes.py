"""Peers in their own processes that freeze, die and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from ring.identity import PeerId
from swarmd.net import Channel, ChannelBroken, Node, PeerDown, PeerUp, open_node, split_peer

HERE = Path(__file__).parent
GENEROUS = 30.0  # s; what is asserted is that it happens, not how fast


@contextmanager
def peer_process(number: int) -> Iterator[tuple[subprocess.Popen[str], PeerId, str]]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / "net_peer_process.py"), str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        peer, address = split_peer(process.stdout.readline().split()[0])
        yield process, peer, address
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def assert_breaks(
    node: Node, process: subprocess.Popen[str], peer: PeerId, address: str, how: int
) -> None:
    async with node.connection_events() as events:
        await node.connect(peer, [address])
        assert await events.receive() == PeerUp(peer)
        waiting = await node.open(peer, "/echo/1", max_message=1 << 20)
        await waiting.send(b"hello")
        assert await waiting.receive() == b"hello"
        sending = await node.open(peer, "/echo/1", max_message=1 << 20)
        os.kill(process.pid, how)
        with trio.fail_after(GENEROUS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_until_it_breaks, sending)
                with pytest.raises(ChannelBroken):
                    await waiting.receive()
            assert await events.receive() == PeerDown(peer)
    assert peer not in node.connected()


async def send_until_it_breaks(channel: Channel) -> None:
    with pytest.raises(ChannelBroken):
        await send_for_ever(channel)


async def send_for_ever(channel: Channel) -> None:
    while True:
        await channel.send(bytes(1 << 20))


async def test_a_frozen_peer_breaks_readers_and_writers_and_is_reported() -> None:
    with peer_process(50) as (process, peer, address):
        async with open_node(b"x" * 32, [], dead_after=1.0) as node:
            await assert_breaks(node, process, peer, address, signal.SIGSTOP)


async def test_a_killed_peer_is_broken_off_not_ended() -> None:
    with peer_process(51) as (process, peer, address):
        async with open_node(b"x" * 32, []) as node:
            await assert_breaks(node, process, peer, address, signal.SIGKILL)


async def test_a_frozen_peer_does_not_hold_up_closing() -> None:
    with peer_process(52) as (process, peer, address):
        with trio.fail_after(GENEROUS):
            async with open_node(b"x" * 32, []) as node:
                await node.connect(peer, [address])
                channel = await node.open(peer, "/echo/1", max_message=1 << 20)
                os.kill(process.pid, signal.SIGSTOP)
                with trio.move_on_after(0.5):
                    await send_for_ever(channel)


async def test_a_peer_restarted_on_another_port_is_reached_again() -> None:
    async with open_node(b"x" * 32, []) as node:
        with peer_process(53) as (process, peer, address):
            await assert_breaks(node, process, peer, address, signal.SIGKILL)
        with peer_process(53) as (_, again, new_address):
            assert again == peer
            await node.connect(peer, [new_address])
            async with await node.open(peer, "/echo/1", max_message=1000) as channel:
                await channel.send(b"back")
                assert await channel.receive() == b"back"
