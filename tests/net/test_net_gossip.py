from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from ring.identity import PeerId
from swarmd.net import MessageTooLarge, Node

Pair = tuple[Node, Node]
NodeOf = Callable[[int], AbstractAsyncContextManager[Node]]


async def subscribed(node: Node, *others: Node, topic: str = "t") -> None:
    """Wait until a node knows that others subscribe."""
    with trio.fail_after(20):
        for other in others:
            await node._gossip._pubsub.wait_for_subscription(ID.from_base58(other.peer_id), topic, timeout=20)


async def first_received(
    messages: trio.MemoryReceiveChannel[tuple[PeerId, bytes]], publish: Callable[[], Awaitable[None]]
) -> tuple[PeerId, bytes]:
    """Publish until something arrives: before the mesh is built, gossip reaches nobody."""
    with trio.fail_after(30):
        while True:
            await publish()
            with trio.move_on_after(1):
                return await messages.receive()


async def test_a_message_reaches_subscribers_with_its_publisher(pair: Pair) -> None:
    left, right = pair
    async with left.subscribe("t") as at_left, right.subscribe("t") as at_right:
        await subscribed(left, right)
        news = partial(left.publish, "t", b"news")
        assert await first_received(at_right, news) == (left.peer_id, b"news")
        with trio.fail_after(20):
            assert await at_left.receive() == (left.peer_id, b"news")


async def test_a_message_is_passed_on_by_a_host_between(node_of: NodeOf) -> None:
    async with node_of(1) as a, node_of(2) as b, node_of(3) as c:
        await a.connect(b.peer_id, b.addresses())
        await c.connect(b.peer_id, b.addresses())
        async with a.subscribe("t"), b.subscribe("t"), c.subscribe("t") as at_c:
            await subscribed(b, a, c)
            await subscribed(a, b)
            assert await first_received(at_c, partial(a.publish, "t", b"far")) == (a.peer_id, b"far")


async def test_what_the_validator_refuses_or_fails_on_is_not_delivered_and_kills_nothing(pair: Pair) -> None:
    left, right = pair

    def validate(peer: PeerId, data: bytes) -> bool:
        if data == b"bug":
            raise RuntimeError("validator bug")
        return data != b"bad"

    async with left.subscribe("t"), right.subscribe("t", validate=validate, max_message=100) as at_right:
        await subscribed(left, right)

        async def publish() -> None:
            for data in (b"bad", b"bug", bytes(101), b"good"):
                await left.publish("t", data)

        assert await first_received(at_right, publish) == (left.peer_id, b"good")


def forged(sender: Node, claimed: Node, *, sign: bool) -> rpc_pb2.Message:
    message = rpc_pb2.Message(
        data=b"lie",
        topicIDs=["t"],
        from_id=ID.from_base58(claimed.peer_id).to_bytes(),
        seqno=time.time_ns().to_bytes(8, "big"),
    )
    if sign:
        key = sender._host.get_private_key()
        message.signature = key.sign(b"libp2p-pubsub:" + message.SerializeToString())
        message.key = sender._host.get_public_key().serialize()
    return message


@pytest.mark.parametrize("sign", [False, True], ids=["unsigned", "signed with another key"])
async def test_a_message_with_a_forged_sender_is_not_delivered(node_of: NodeOf, sign: bool) -> None:
    async with node_of(1) as left, node_of(2) as right, node_of(3) as victim:
        await left.connect(right.peer_id, right.addresses())
        async with left.subscribe("t"), right.subscribe("t") as at_right:
            await subscribed(left, right)

            async def publish() -> None:
                lie = forged(left, victim, sign=sign)
                await left._gossip._router.publish(ID.from_base58(left.peer_id), lie)
                await left.publish("t", b"truth")

            assert await first_received(at_right, publish) == (left.peer_id, b"truth")


async def test_a_slow_subscriber_loses_the_oldest_messages_and_they_are_counted(pair: Pair) -> None:
    left, _ = pair
    async with left.subscribe("t") as messages:
        for number in range(300):
            await left.publish("t", b"%d" % number)
            await trio.testing.wait_all_tasks_blocked(0.001)
        kept = [int((await messages.receive())[1]) for _ in range(messages.statistics().current_buffer_used)]
    assert kept == list(range(300 - len(kept), 300))
    assert left._gossip.dropped == 300 - len(kept)


async def test_gossip_too_large_to_be_carried_is_refused_at_once(pair: Pair) -> None:
    left, _ = pair
    with pytest.raises(MessageTooLarge, match="1048576"):
        await left.publish("t", bytes(1 << 20))


async def test_a_topic_is_subscribed_to_once_at_a_time(pair: Pair) -> None:
    left, _ = pair
    async with left.subscribe("t"):
        with pytest.raises(ValueError, match="already"):
            async with left.subscribe("t"):
                pass
    async with left.subscribe("t"):
        pass


async def test_numbers_of_messages_do_not_start_again_after_a_restart(node_of: NodeOf) -> None:
    async with node_of(1) as node:
        await node.publish("t", b"x")
        before = node._gossip._pubsub.counter
    async with node_of(1) as node:
        assert node._gossip._pubsub.counter > before
