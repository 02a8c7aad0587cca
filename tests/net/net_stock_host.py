"""Faults of a stock libp2p host, each in a process of its own that does not import the adapter. Prints what happened."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import IncompleteReadError
from libp2p.io.utils import read_exactly
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID
from libp2p.stream_muxer.yamux import yamux
from multiaddr import Multiaddr

LOCAL = Multiaddr("/ip4/127.0.0.1/tcp/0")


def host(number: int, **options: Any) -> Any:
    return new_host(key_pair=create_new_key_pair(bytes([number]) * 32), **options)


async def plaintext() -> str:
    victim = host(1)
    return (
        "offered"
        if PLAINTEXT_PROTOCOL_ID in victim.get_network().upgrader.security_multistream.transports
        else "not"
    )


async def handler_exception() -> str:
    one, two = host(1), host(2)
    reached = False

    async def bug(stream: Any) -> None:
        raise RuntimeError("bug")

    two.set_stream_handler("/bug/1", bug)
    try:
        async with two.run([LOCAL]), one.run([LOCAL]):
            peer = info_from_p2p_addr(two.get_addrs()[0])
            await one.connect(peer)
            await one.new_stream(peer.peer_id, ["/bug/1"])
            await trio.sleep(5)
            reached = True
    except BaseException as error:  # noqa: BLE001 - whatever comes out is the outcome
        return f"host ended: {type(error).__name__}"
    return f"host survived: {reached}"


async def huge_negotiation() -> str:
    victim = host(1)
    async with victim.run([LOCAL]):
        port = int(victim.get_addrs()[0].value_for_protocol("tcp"))
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"\xff\xff\xff\xff\x0f")
            for _ in range(64):
                try:
                    with trio.fail_after(5):
                        await stream.send_all(bytes(1 << 18))
                except trio.BrokenResourceError:
                    return "thrown out"
        return "took 16 MiB"


async def short_reads() -> str:
    class Drip:
        async def read(self, n: int | None = None) -> bytes:
            return b"x"

    try:
        return f"read {len(await read_exactly(Drip(), 500))}"
    except IncompleteReadError:
        return "gave up"


async def shared_port() -> str:
    one, two = host(1), host(2)
    async with one.run([LOCAL]):
        taken = Multiaddr(str(one.get_addrs()[0]).partition("/p2p/")[0])
        async with two.run([taken]):
            return "both listen" if two.get_addrs() else "refused"


async def inbound_slots() -> str:
    config = ConnectionConfig(min_connections=0, low_watermark=0, max_connections=300)
    victim = host(1, connection_config=config)
    async with victim.run([LOCAL]):
        limiter = victim.get_network()._inbound_limiter
        other = host(2)
        async with other.run([]):
            await other.connect(info_from_p2p_addr(victim.get_addrs()[0]))
            await other.disconnect(victim.get_id())
            with trio.move_on_after(5):
                while victim.get_network().get_connections():  # noqa: ASYNC110 - nothing to wait for
                    await trio.sleep(0.05)
        return (
            f"connections {len(victim.get_network().get_connections())}, slots held {limiter.borrowed_tokens}"
        )


async def muxer_choice() -> str:
    one, two = host(1), host(2)

    class Chosen(yamux.Yamux):  # type: ignore[misc]  # libp2p is untyped here
        pass

    three = host(3, muxer_opt={"/yamux/1.0.0": Chosen})
    async with two.run([LOCAL]), three.run([LOCAL]), one.run([]):
        peer = info_from_p2p_addr(two.get_addrs()[0])
        await three.connect(peer)
        return type(three.get_network().get_connections()[0].muxed_conn).__name__


FAULTS: dict[str, Callable[[], Awaitable[str]]] = {
    function.__name__: function
    for function in (
        plaintext, handler_exception, huge_negotiation, short_reads, shared_port, inbound_slots, muxer_choice,
    )
}  # fmt: skip

if __name__ == "__main__":
    print("outcome:", trio.run(FAULTS[sys.argv[1]]), flush=True)
