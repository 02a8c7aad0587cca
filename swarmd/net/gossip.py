"""Gossip: signed messages to everybody who subscribes to a topic, over libp2p's gossipsub."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service

from ring.identity import PeerId
from swarmd.net.errors import MessageTooLarge
from swarmd.net.host import reset_quietly

log = logging.getLogger("swarmd.net")

Validator = Callable[[PeerId, bytes], bool]
Messages = trio.MemoryReceiveChannel[tuple[PeerId, bytes]]

# gossipsub drops an RPC of 1 MiB or more without a word; the rest of the RPC needs room too.
_MAX_GOSSIP = (1 << 20) - (64 << 10)
_GOODBYE_SECONDS = 1.0
_WAITING = 256  # messages that a slow subscriber may leave waiting


class SafePubsub(Pubsub):  # type: ignore[misc]  # libp2p is untyped here
    """A malformed message costs the message or its stream, not the daemon."""

    async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
        """Process one message."""
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:  # noqa: BLE001 - stock, it would end the host
            log.info("bad gossip message from %s: %r", msg_forwarder, error)

    async def continuously_read_stream(self, stream: Any) -> None:
        """Process the RPCs of one peer."""
        try:
            await super().continuously_read_stream(stream)
        except Exception as error:  # noqa: BLE001 - stock, it would end the host
            log.info("bad gossip from %s: %r", stream.muxed_conn.peer_id, error)
            await reset_quietly(stream)


class Gossip:
    """The topics of one node.

    Attributes:
        dropped: messages that slow subscribers lost.

    """

    def __init__(self, host: Any) -> None:
        # v1.1: later versions cost twice the CPU. The spam protection drops, silently, more than ten a second of a topic.
        self._router = GossipSub(
            [PROTOCOL_ID_V11], 6, 4, 12, heartbeat_interval=1, spam_protection_enabled=False
        )
        self._pubsub = SafePubsub(host, self._router, strict_signing=True)
        # Peers take a (publisher, number) pair for seen. Counting from seconds, the stock way, repeats numbers after a
        # restart if more than one message a second was published.
        self._pubsub.counter = time.time_ns()
        self._topics: set[str] = set()
        self.dropped = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve gossip while the block runs."""
        async with background_trio_service(self._pubsub), background_trio_service(self._router):
            await self._pubsub.wait_until_ready()
            yield

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to everybody who subscribes to the topic, this host included.

        Raises:
            MessageTooLarge: gossip cannot carry so much.

        """
        if len(data) > _MAX_GOSSIP:
            raise MessageTooLarge(
                f"gossip of {len(data)} bytes on {topic!r} exceeds the limit of {_MAX_GOSSIP}"
            )
        await self._pubsub.publish(topic, data)

    @asynccontextmanager
    async def subscribe(
        self, topic: str, *, max_message: int, validate: Validator | None
    ) -> AsyncIterator[Messages]:
        """Yield the channel of (publisher, data); see Node.subscribe."""
        if topic in self._topics:
            raise ValueError(f"topic {topic!r} is already subscribed to")
        self._topics.add(topic)
        self._pubsub.set_topic_validator(topic, _checker(max_message, validate), False)
        try:
            subscription = await self._pubsub.subscribe(topic)
            send, receive = trio.open_memory_channel[tuple[PeerId, bytes]](_WAITING)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, subscription, send, receive)
                with receive:
                    yield receive
                nursery.cancel_scope.cancel()
        finally:
            self._topics.discard(topic)
            self._pubsub.remove_topic_validator(topic)
            with trio.CancelScope(deadline=trio.current_time() + _GOODBYE_SECONDS, shield=True):
                await self._pubsub.unsubscribe(topic)

    async def _forward(
        self, subscription: Any, send: trio.MemorySendChannel[tuple[PeerId, bytes]], receive: Messages
    ) -> None:
        with send:
            async for message in subscription:
                item = (PeerId(ID(message.from_id).to_base58()), bytes(message.data))
                try:
                    send.send_nowait(item)
                except trio.WouldBlock:
                    self.dropped += 1
                    receive.receive_nowait()
                    send.send_nowait(item)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return


def _checker(max_message: int, validate: Validator | None) -> Callable[[Any, Any], bool]:
    def check(_forwarder: Any, message: Any) -> bool:
        if len(message.data) > max_message:
            return False
        if validate is None:
            return True
        try:
            return validate(PeerId(ID(message.from_id).to_base58()), bytes(message.data))
        except Exception:
            log.exception("the validator of a gossip topic failed; the message is refused")
            return False

    return check
