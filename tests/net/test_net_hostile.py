"""What strangers and peers may send without doing harm: each case, and then an honest peer still gets its echo."""

from __future__ import annotations

import random
import socket
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
import trio.lowlevel
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID

from swarmd.net import Channel, Node

NodeOf = Callable[[int], AbstractAsyncContextManager[Node]]
Attack = Callable[[Any], Awaitable[None]]

MULTISTREAM = b"/multistream/1.0.0"
GOSSIP = "/meshsub/1.1.0"
JUNK = random.Random(1).randbytes(300)


def proposals(*names: bytes) -> bytes:
    return b"".join(bytes([len(name) + 1]) + name + b"\n" for name in names)


def yamux_header(kind: int, flags: int, stream: int, length: int, version: int = 0) -> bytes:
    return struct.pack("!BBHII", version, kind, flags, stream, length)


async def echo(channel: Channel) -> None:
    async for message in channel:
        await channel.send(message)


async def assert_serves(victim: Node, node_of: NodeOf) -> None:
    async with node_of(9) as honest:
        with trio.fail_after(20):
            await honest.connect(victim.peer_id, victim.addresses())
            async with await honest.open(victim.peer_id, "/echo/1", max_message=1000) as channel:
                await channel.send(b"alive")
                assert await channel.receive() == b"alive"


def port_of(node: Node) -> int:
    return int(node.addresses()[0].split("/")[4])


RAW = {
    "closed at once": [],
    "random bytes": [JUNK],
    "64 KB of random bytes": [random.Random(2).randbytes(65536)],
    "an HTTP request": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "a TLS hello": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + JUNK],
    "an endless varint": [b"\xff" * 20],
    "multistream and then junk": [proposals(MULTISTREAM), JUNK],
    "a proposal that is not UTF-8": [proposals(MULTISTREAM), bytes([5]) + b"\xff\xfe\xfd\xfc\n"],
    "a proposal of length zero": [b"\x00"],
    "noise and then junk": [proposals(MULTISTREAM, b"/noise"), JUNK],
    "noise and an empty frame": [proposals(MULTISTREAM, b"/noise"), b"\x00\x00"],
    "plaintext proposed": [proposals(MULTISTREAM, PLAINTEXT_PROTOCOL_ID.encode()), JUNK],
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", RAW)
async def test_a_stranger_on_the_port_harms_nobody(name: str, reset: bool, node_of: NodeOf) -> None:
    async with node_of(1) as victim:
        victim.handle("/echo/1", echo, max_message=1000)
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(victim))
        for payload in RAW[name]:
            try:
                await stream.send_all(payload)
            except trio.BrokenResourceError:
                break  # thrown out already
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        await assert_serves(victim, node_of)


async def test_a_client_that_offers_plaintext_is_told_no(node_of: NodeOf) -> None:
    async with node_of(1) as victim:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(victim))
        async with stream:
            await stream.send_all(proposals(MULTISTREAM, PLAINTEXT_PROTOCOL_ID.encode()))
            answer = b""
            with trio.fail_after(10):
                while len(answer) < len(proposals(MULTISTREAM, b"na")):
                    answer += await stream.receive_some()
        assert answer == proposals(MULTISTREAM, b"na")


async def test_a_proposal_that_claims_to_be_huge_is_refused_before_it_is_collected(node_of: NodeOf) -> None:
    async with node_of(1) as victim:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(victim))
        tracemalloc.start()
        try:
            await stream.send_all(b"\xff\xff\xff\xff\x0f")  # 4 GiB follow
            with trio.fail_after(30):
                try:
                    for _ in range(400):
                        await stream.send_all(bytes(1 << 18))
                    outcome = "all taken"
                except trio.BrokenResourceError:
                    outcome = "thrown out"
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await stream.aclose()
        assert outcome == "thrown out"
        assert peak < 32 << 20


def frames(*frames: bytes) -> Attack:
    async def attack(muxed: Any) -> None:
        for data in frames:
            await muxed.secured_conn.write(data)

    return attack


def on_stream(*payloads: bytes, end: str = "reset", times: int = 1) -> Attack:
    async def attack(muxed: Any) -> None:
        for _ in range(times):
            stream = await muxed.open_stream()
            for payload in payloads:
                await stream.write(payload)
                await trio.lowlevel.checkpoint()
            if end == "reset":
                await stream.reset()
            elif end == "close":
                await stream.close()

    return attack


def speaking(protocol: str, *payloads: bytes, end: str = "reset") -> Attack:
    return on_stream(proposals(MULTISTREAM, protocol.encode()), *payloads, end=end)


async def bad_ciphertext(muxed: Any) -> None:
    await muxed.secured_conn.conn.read_writer.write_msg(JUNK)


async def vanish_in_mid_negotiation(muxed: Any) -> None:
    for protocol in (GOSSIP, "/ipfs/ping/1.0.0", "/ipfs/id/1.0.0", "/echo/1", "/unknown/1"):
        stream = await muxed.open_stream()
        await stream.write(proposals(MULTISTREAM, protocol.encode())[:-3])
    await muxed.abort()


PEER: dict[str, Attack] = {
    "yamux: unknown frame type": frames(yamux_header(9, 0, 1, 0)),
    "yamux: another version": frames(yamux_header(0, 0, 1, 0, version=7)),
    "yamux: data for no stream": frames(yamux_header(0, 0, 999, 5) + b"hello"),
    "yamux: a frame of 1 GiB": frames(yamux_header(0, 0, 1, 1 << 30)),
    "yamux: junk": frames(JUNK),
    "yamux: go away": frames(yamux_header(3, 0, 0, 1)),
    "yamux: one stream opened twice": frames(yamux_header(1, 1, 101, 0), yamux_header(1, 1, 101, 0)),
    "yamux: opened and reset in one": frames(yamux_header(1, 1 | 8, 103, 0)),
    "yamux: data after the end": frames(
        yamux_header(1, 1, 105, 0), yamux_header(1, 4, 105, 0), yamux_header(0, 0, 105, 3) + b"abc"
    ),
    "yamux: 700 streams": frames(*[yamux_header(1, 1, 201 + 2 * n, 0) for n in range(700)]),
    "yamux: 20000 pings": frames(*[yamux_header(2, 1, 0, n) * 1000 for n in range(20)]),
    "noise: bad ciphertext": bad_ciphertext,
    "stream: opened and reset": on_stream(),
    "stream: opened and closed": on_stream(end="close"),
    "stream: junk": on_stream(JUNK, end=""),
    "stream: not UTF-8": on_stream(bytes([5]) + b"\xff\xfe\xfd\xfc\n", end=""),
    "stream: protocol not UTF-8": on_stream(
        proposals(MULTISTREAM), bytes([5]) + b"\xff\xfe\xfd\xfc\n", end=""
    ),
    "stream: endless varint": on_stream(b"\xff" * 12, end=""),
    "stream: length zero": on_stream(b"\x00", end=""),
    "stream: no newline": on_stream(b"\x03abc", end=""),
    "stream: unknown protocol": speaking("/nope"),
    "stream: 60 half-negotiated and reset": on_stream(proposals(MULTISTREAM), times=60),
    "stream: vanished in mid negotiation": vanish_in_mid_negotiation,
    "ping: short": speaking("/ipfs/ping/1.0.0", b"abc", end="close"),
    "ping: reset": speaking("/ipfs/ping/1.0.0"),
    "identify: junk": speaking("/ipfs/id/1.0.0", JUNK),
    "identify push: bad protobuf": speaking("/ipfs/id/push/1.0.0", bytes([20]) + b"\xff" * 20, end="close"),
    "gossip: junk": speaking(GOSSIP, JUNK),
    "gossip: closed": speaking(GOSSIP, end="close"),
    "gossip: bad protobuf": speaking(GOSSIP, bytes([20]) + b"\xff" * 20, end=""),
    "gossip: huge": speaking(GOSSIP, b"\xff\xff\xff\xff\x7f", end=""),
    "gossip: empty": speaking(GOSSIP, b"\x00", end=""),
    "gossip: short": speaking(GOSSIP, b"\x10abc"),
    "echo: reset in mid message": speaking("/echo/1", b"\x00\x00\x10\x00abc"),
    "echo: closed in mid message": speaking("/echo/1", b"\x00\x00\x01\x00abc", end="close"),
    "echo: a message of 4 GiB": speaking("/echo/1", b"\xff\xff\xff\xff", end=""),
    "echo: bytes after the end mark": speaking("/echo/1", b"\x00\x00\x00\x00abc", end=""),
}


@pytest.mark.parametrize("name", PEER)
async def test_a_peer_that_misbehaves_harms_nobody_else(name: str, node_of: NodeOf) -> None:
    async with node_of(1) as victim, node_of(2) as attacker:
        victim.handle("/echo/1", echo, max_message=1000)
        await attacker.connect(victim.peer_id, victim.addresses())
        try:
            with trio.move_on_after(20):
                await PEER[name](attacker._connections.newest(victim.peer_id).muxed_conn)
        except Exception as error:  # noqa: BLE001 - thrown out in the middle of it
            print("the attacker saw", repr(error))
        await assert_serves(victim, node_of)
