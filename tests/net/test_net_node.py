"""Two real nodes over loopback."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
from nacl.signing import SigningKey

from ring.identity import peer_id_of
from swarmd.net import (
    AddressInvalid,
    CallFailed,
    CallTimeout,
    Channel,
    ChannelBroken,
    DialFailed,
    ListenFailed,
    MessageMalformed,
    MessageTooLarge,
    Node,
    PeerDown,
    PeerUp,
    ProtocolRefused,
    open_node,
)

Pair = tuple[Node, Node]
NodeOf = Callable[..., AbstractAsyncContextManager[Node]]
BULK = 16 << 20
GOSSIP_STREAMS = 2  # one each way, for as long as the connection


def streams_of(node: Node, peer: Node) -> int:
    return len(node._connections.newest(peer.peer_id).muxed_conn.streams)


async def settled(node: Node, peer: Node, expected: int) -> None:
    with trio.fail_after(20):
        while streams_of(node, peer) != expected:  # noqa: ASYNC110 - yamux's table has no event
            await trio.sleep(0.02)


async def test_a_message_of_megabytes_comes_back_whole(pair: Pair) -> None:
    left, right = pair
    data = os.urandom(3 << 20)
    async with await left.open(right.peer_id, "/echo/1", max_message=8 << 20) as channel:
        await channel.send(b"head", data)
        assert await channel.receive() == b"head" + data
        assert channel.peer == right.peer_id


async def test_bulk_both_ways_at_once_does_not_deadlock(pair: Pair) -> None:
    left, right = pair
    block = os.urandom(1 << 20)
    got = {"left": 0, "right": 0}

    async def pump(channel: Channel) -> None:
        for _ in range(BULK // len(block)):
            await channel.send(block)
        await channel.end()

    async def drain(channel: Channel, who: str) -> None:
        async for message in channel:
            got[who] += len(message)

    async def both(channel: Channel, who: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, channel)
            nursery.start_soon(drain, channel, who)

    done = trio.Event()

    async def serve(channel: Channel) -> None:
        await both(channel, "right")
        done.set()

    right.handle("/bulk/1", serve, max_message=1 << 20)
    with trio.fail_after(120):
        async with await left.open(right.peer_id, "/bulk/1", max_message=1 << 20) as channel:
            await both(channel, "left")
        await done.wait()
    assert got == {"left": BULK, "right": BULK}


async def test_cancelled_sends_and_receives_leave_the_connection_alive(pair: Pair) -> None:
    left, right = pair
    data = os.urandom(1 << 20)
    async with await left.open(right.peer_id, "/echo/1", max_message=8 << 20) as channel:
        asked = 0
        for _ in range(20):
            with trio.move_on_after(0.002):
                await channel.send(data)
                asked += 1
            with trio.move_on_after(0.002):
                assert await channel.receive() == data
                asked -= 1
        while asked > 0:
            assert await channel.receive() == data
            asked -= 1
    assert await echoes(left, right)


async def test_an_aborted_channel_in_mid_transfer_leaves_the_connection_alive(pair: Pair) -> None:
    left, right = pair
    for _ in range(5):
        channel = await left.open(right.peer_id, "/echo/1", max_message=8 << 20)
        await channel.send(bytes(4 << 20))
        await channel.send(bytes(4 << 20))  # goes on in the background when abort() is called
        await channel.receive()
        await channel.abort()
    assert await echoes(left, right)
    await settled(left, right, GOSSIP_STREAMS)


async def echoes(left: Node, right: Node) -> bool:
    async with await left.open(right.peer_id, "/echo/1", max_message=8 << 20) as channel:
        await channel.send(b"alive")
        return await channel.receive() == b"alive"


async def test_many_short_calls_leave_no_stream_behind(pair: Pair) -> None:
    left, right = pair

    async def answer(peer: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"twice": 2 * request["n"], "peer": peer}

    right.serve("/calls/1", answer)
    for number in range(300):  # more than the 256 streams that yamux lets be open at once
        reply = await left.call(right.peer_id, "/calls/1", {"n": number})
        assert reply == {"twice": 2 * number, "peer": left.peer_id}
    await settled(left, right, GOSSIP_STREAMS)
    await settled(right, left, GOSSIP_STREAMS)
    assert left._connections.newest(right.peer_id).muxed_conn.stream_backlog_semaphore.value >= 250


async def test_refused_timed_out_and_failed_calls_leave_no_stream_behind(pair: Pair) -> None:
    left, right = pair

    async def never(peer: str, request: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    right.serve("/never/1", never)
    for _ in range(8):
        with pytest.raises(ProtocolRefused):
            await left.call(right.peer_id, "/unknown/1", {})
        with pytest.raises(CallTimeout, match="did not answer /never/1 within"):
            await left.call(right.peer_id, "/never/1", {}, timeout=0.05)
    await settled(left, right, GOSSIP_STREAMS)


async def hold(channel: Channel) -> None:
    await trio.sleep_forever()


class Refused(Exception):
    code: ClassVar[str] = "not_today"


async def test_an_error_with_a_code_reaches_the_caller(pair: Pair) -> None:
    left, right = pair

    async def refuse(peer: str, request: dict[str, Any]) -> dict[str, Any]:
        raise Refused("come back tomorrow")

    right.serve("/calls/1", refuse)
    with pytest.raises(CallFailed, match="come back tomorrow") as caught:
        await left.call(right.peer_id, "/calls/1", {})
    assert caught.value.code == "not_today"


async def test_any_other_error_is_logged_there_and_called_internal(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    left, right = pair

    async def fail(peer: str, request: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("secret detail")

    right.serve("/calls/1", fail)
    with pytest.raises(CallFailed) as caught:
        await left.call(right.peer_id, "/calls/1", {})
    assert caught.value.code == "internal"
    assert "secret" not in str(caught.value)
    assert any(record.exc_info for record in caplog.records if record.name == "swarmd.net")
    assert await echoes(left, right)


async def test_a_reply_that_is_no_map_with_reply_or_error_is_malformed(pair: Pair) -> None:
    left, right = pair

    async def odd(channel: Channel) -> None:
        await channel.receive()
        await channel.send(b"\x81\xa1x\x01")

    right.handle("/odd/1", odd, max_message=1000)
    with pytest.raises(MessageMalformed, match="neither reply nor error"):
        await left.call(right.peer_id, "/odd/1", {})


async def test_an_exception_in_a_handler_breaks_its_channel_and_nothing_else(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    left, right = pair

    async def bug(channel: Channel) -> None:
        raise RuntimeError("a bug")

    right.handle("/bug/1", bug, max_message=100)
    async with await left.open(right.peer_id, "/echo/1", max_message=8 << 20) as other:
        channel = await left.open(right.peer_id, "/bug/1", max_message=100)
        with pytest.raises(ChannelBroken):
            await channel.receive()
        await other.send(b"x")
        assert await other.receive() == b"x"
    assert any("a bug" in str(record.exc_info) for record in caplog.records if record.exc_info)


async def test_channels_over_the_limit_of_a_protocol_are_refused(pair: Pair) -> None:
    left, right = pair
    release = trio.Event()

    async def stay(channel: Channel) -> None:
        await channel.send(b"in")
        await release.wait()

    right.handle("/held/1", stay, max_message=10, max_channels_per_peer=2)
    held = [await left.open(right.peer_id, "/held/1", max_message=10) for _ in range(2)]
    assert [await channel.receive() for channel in held] == [b"in", b"in"]
    third = await left.open(right.peer_id, "/held/1", max_message=10)
    with pytest.raises(ChannelBroken):
        await third.receive()
    release.set()
    for channel in held:
        async with channel:
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
    async with await left.open(right.peer_id, "/held/1", max_message=10) as again:
        assert await again.receive() == b"in"


async def test_a_message_over_the_limit_of_the_receiver_breaks_the_channel(pair: Pair) -> None:
    left, right = pair
    seen: list[Exception] = []
    done = trio.Event()

    async def small(channel: Channel) -> None:
        try:
            await channel.receive()
        except MessageTooLarge as error:
            seen.append(error)
            raise
        finally:
            done.set()

    right.handle("/small/1", small, max_message=100)
    channel = await left.open(right.peer_id, "/small/1", max_message=1000)
    await channel.send(bytes(101))
    with pytest.raises(ChannelBroken):
        await channel.receive()
    await done.wait()
    assert "101 bytes" in str(seen[0])


async def test_a_peer_that_goes_in_mid_conversation_breaks_it_and_is_reported(node_of: NodeOf) -> None:
    async with node_of(1) as left, left.connection_events() as events:
        async with node_of(2) as right:
            right.handle("/hold/1", hold, max_message=10)
            await left.connect(right.peer_id, right.addresses())
            assert await events.receive() == PeerUp(right.peer_id)
            assert left.connected() == {right.peer_id}
            channel = await left.open(right.peer_id, "/hold/1", max_message=10)
        with trio.fail_after(10):
            with pytest.raises(ChannelBroken):
                await channel.receive()
            assert await events.receive() == PeerDown(right.peer_id)
        assert left.connected() == frozenset()


async def test_every_listener_hears_every_event(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        async with left.connection_events() as one, left.connection_events() as two:
            await left.connect(right.peer_id, right.addresses())
            await left.disconnect(right.peer_id)
            for events in (one, two):
                assert await events.receive() == PeerUp(right.peer_id)
                assert await events.receive() == PeerDown(right.peer_id)
        assert right.peer_id not in left.connected()


async def test_a_dead_address_in_front_of_a_good_one_does_not_matter(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        await left.connect(right.peer_id, ["/ip4/127.0.0.1/tcp/1", *right.addresses()])
        assert right.peer_id in left.connected()
        good = right.addresses()[0].partition("/p2p/")[0]
        assert left.address_book.addresses(right.peer_id) == (good, "/ip4/127.0.0.1/tcp/1")
        assert left.remote_address(right.peer_id) == good


async def test_a_failed_dial_names_every_address_and_is_not_remembered_against_the_peer(
    node_of: NodeOf,
) -> None:
    async with node_of(1) as left:
        async with node_of(2) as right:
            peer = right.peer_id
        with pytest.raises(DialFailed) as caught:
            await left.connect(peer, ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"])
        assert [address for address, _ in caught.value.attempts] == [
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/127.0.0.1/tcp/2",
        ]
        assert "/ip4/127.0.0.1/tcp/2: Connection refused" in str(caught.value)
        async with node_of(2) as right:  # back on another port
            await left.connect(peer, right.addresses())
            assert peer in left.connected()


async def test_another_host_at_the_address_is_not_taken_for_the_peer(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right, node_of(3) as other:
        address = other.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(DialFailed, match="no address answered"):
            await left.connect(right.peer_id, [address])
        assert left.connected() == frozenset()


async def test_a_peer_without_known_addresses_cannot_be_reached_and_says_so(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        with pytest.raises(DialFailed, match="no address of it is known"):
            await left.call(right.peer_id, "/echo/1", {})
        with pytest.raises(DialFailed, match="this host itself"):
            await left.connect(left.peer_id)


async def test_an_address_that_accepts_but_never_answers_is_given_up_in_time(node_of: NodeOf) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"/ip4/127.0.0.1/tcp/{mute.getsockname()[1]}"
        async with node_of(1) as left, node_of(2) as right:
            with pytest.raises(DialFailed, match=rf"within 0\.2 s \({address}: no answer so far\)"):
                await left.connect(right.peer_id, [address], timeout=0.2)
            await left.connect(right.peer_id, right.addresses())  # the first dial is gone, not in the way


async def test_concurrent_connects_share_one_dial(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(left.connect, right.peer_id, right.addresses())
        assert len(left._connections._open[right.peer_id]) == 1


async def test_two_hosts_that_dial_each_other_at_once_end_up_connected(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        right.handle("/hold/1", hold, max_message=10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.connect, right.peer_id, right.addresses())
            nursery.start_soon(right.connect, left.peer_id, left.addresses())
        channel = await left.open(right.peer_id, "/hold/1", max_message=10)
        async with left.connection_events() as events:
            await left.disconnect(right.peer_id)
            with trio.fail_after(10):
                assert await events.receive() == PeerDown(right.peer_id)
        with pytest.raises(ChannelBroken):
            await channel.receive()


async def test_one_cancelled_caller_does_not_cancel_the_dial_of_another(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        left.address_book.add(right.peer_id, right.addresses())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.connect, right.peer_id)
            with trio.CancelScope() as scope:
                scope.cancel()
                await left.connect(right.peer_id)
        assert right.peer_id in left.connected()


async def test_a_port_in_use_is_an_error_that_names_the_address(node_of: NodeOf) -> None:
    async with node_of(1) as first:
        taken = first.addresses()[0].partition("/p2p/")[0]
        with pytest.raises(
            ListenFailed, match=f"{taken}: Address already in use; choose another swarm.listen"
        ) as caught:
            async with open_node(bytes(32), [taken]):
                pass
        assert caught.value.code == "listen_failed"


@pytest.mark.parametrize(
    "address", ["nonsense", "/ip4/127.0.0.1/udp/1/quic-v1", "/dns4/localhost/tcp/1", "/ip4/127.0.0.1"]
)
async def test_an_address_that_cannot_be_listened_on_is_refused(address: str) -> None:
    with pytest.raises(AddressInvalid, match=r"/ip4/192\.0\.2\.7/tcp/4001"):
        async with open_node(bytes(32), [address]):
            pass


async def test_a_wildcard_is_advertised_as_the_real_addresses_and_announced_ones_come_first() -> None:
    async with open_node(bytes(32), ["/ip4/0.0.0.0/tcp/0"], announce=["/dns4/host.example/tcp/4001"]) as node:
        addresses = node.addresses()
        assert addresses[0] == f"/dns4/host.example/tcp/4001/p2p/{node.peer_id}"
        assert len(addresses) > 1
        assert not any("/0.0.0.0/" in address for address in addresses)


async def test_opening_a_node_leaves_the_root_logger_without_a_new_handler(node_of: NodeOf) -> None:
    before = list(logging.getLogger().handlers)
    async with node_of(1), node_of(2):
        pass
    assert logging.getLogger().handlers == before


async def test_a_connection_that_ended_gives_its_inbound_slot_back(node_of: NodeOf) -> None:
    async with node_of(1) as left, node_of(2) as right:
        for _ in range(3):
            await left.connect(right.peer_id, right.addresses())
            await left.disconnect(right.peer_id)
        with trio.fail_after(20):
            while right._host.get_network()._inbound_limiter.borrowed_tokens:  # noqa: ASYNC110 - no event for it
                await trio.sleep(0.02)


async def test_an_error_inside_the_block_comes_out_as_it_is(node_of: NodeOf) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with node_of(1):
            raise KeyError("mine")


async def test_a_dial_that_is_given_up_closes_its_socket(node_of: NodeOf) -> None:
    """A peer that accepts and then says nothing; the caller loses patience in the middle of the handshake."""
    ended = trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass
        ended.set()

    stranger = peer_id_of(bytes(SigningKey(b"s" * 32).verify_key))
    async with node_of(1) as node, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        with pytest.raises(DialFailed):
            await node.connect(stranger, [f"/ip4/127.0.0.1/tcp/{port}"], timeout=0.3)
        with trio.fail_after(3):  # well before libp2p itself would give the handshake up
            await ended.wait()
        nursery.cancel_scope.cancel()
