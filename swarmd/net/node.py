"""Node: this host on the network. Peers, channels, calls and gossip; libp2p does not show through."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from ring.identity import PeerId
from swarmd.net import rpc
from swarmd.net.address_book import AddressBook
from swarmd.net.addresses import advertised, parse
from swarmd.net.channel import Channel
from swarmd.net.connections import Connections, Events
from swarmd.net.dialling import Dialling
from swarmd.net.errors import CallTimeout, ChannelBroken, DialFailed, NetError
from swarmd.net.gossip import Gossip, Messages, Validator
from swarmd.net.host import build_host, reset_quietly
from swarmd.net.listening import bound_addresses, listen_on
from swarmd.net.streams import MuxedBytes, open_stream
from swarmd.net.yamux import DEAD_AFTER

log = logging.getLogger("swarmd.net")

_MAX_CALL = 1 << 20  # bytes of a request or reply


class Node:
    """A host among its peers. Made by open_node().

    Attributes:
        peer_id: this host.
        address_book: where peers were found.

    """

    def __init__(self, host: Any, gossip: Gossip, nursery: trio.Nursery, announce: Sequence[str]) -> None:
        self.peer_id = PeerId(host.get_id().to_base58())
        self.address_book = AddressBook(self.peer_id)
        self._host = host
        self._gossip = gossip
        self._nursery = nursery
        self._announce = tuple(announce)
        self._connections = Connections(nursery)
        self._dialling = Dialling(host.get_network(), self.address_book, self._connections, nursery)
        self._inbound: Counter[tuple[PeerId, str]] = Counter()
        host.get_network().register_notifee(self._connections)

    def addresses(self) -> tuple[str, ...]:
        """Return full multiaddrs of this host, with /p2p/…, those to be tried first in front."""
        return advertised(bound_addresses(self._host), self._announce, self.peer_id)

    def connected(self) -> frozenset[PeerId]:
        """Return the peers that are connected."""
        return self._connections.peers()

    def connection_events(self) -> AbstractAsyncContextManager[Events]:
        """Yield a channel of PeerUp and PeerDown from here on; connected() says what was before."""
        return self._connections.events()

    def remote_address(self, peer: PeerId) -> str | None:
        """Return where a connected peer's packets come from, as a multiaddr without /p2p, else None."""
        connection = self._connections.newest(peer)
        place = connection.muxed_conn.get_remote_address() if connection is not None else None
        if place is None:
            return None
        return f"/{'ip6' if ':' in place[0] else 'ip4'}/{place[0]}/tcp/{place[1]}"

    async def connect(self, peer: PeerId, addresses: Sequence[str] = (), *, timeout: float = 10) -> None:
        """Be connected to a peer, at these addresses or those in the book; at once if it is connected already.

        Raises:
            AddressInvalid: one of `addresses` cannot be dialled.
            DialFailed: no address led to the peer; it names those tried and why each failed.

        """
        if peer == self.peer_id:
            raise DialFailed(peer, "that is this host itself")
        for address in addresses:
            parse(address, peer)
        self.address_book.add(peer, addresses)
        await self._dialling.connect(peer, timeout=timeout)

    async def disconnect(self, peer: PeerId) -> None:
        """End the connections to a peer, if there are any."""
        await self._connections.close(peer)

    def handle(
        self,
        protocol: str,
        handler: Callable[[Channel], Awaitable[None]],
        *,
        max_message: int,
        max_inbound: int | None = None,
        max_channels_per_peer: int = 16,
    ) -> None:
        """Serve a protocol. When the handler returns the channel is ended; when it raises, aborted and the error logged.

        Args:
            protocol: such as "/swarmd/frames/1".
            handler: called in a task of its own for each channel that a peer opens.
            max_message: bytes of a message either way.
            max_inbound: bytes of a message from the peer, if that is less; Channel.admit() may raise it.
            max_channels_per_peer: channels of this protocol that one peer may have open; more are reset.

        """

        async def accept(stream: Any) -> None:
            self._connections.add(stream.swarm_conn)
            peer = PeerId(stream.muxed_conn.peer_id.to_base58())
            key = (peer, protocol)
            if self._inbound[key] >= max_channels_per_peer:
                log.warning(
                    "%s has %d channels of %s open: one was refused", peer, self._inbound[key], protocol
                )
                await reset_quietly(stream)
                return
            self._inbound[key] += 1
            try:
                channel = self._channel(stream, peer, protocol, max_message, max_inbound)
                await self._serve(channel, handler)
            finally:
                self._inbound[key] -= 1
                if not self._inbound[key]:
                    del self._inbound[key]

        self._host.set_stream_handler(protocol, accept)

    async def _serve(self, channel: Channel, handler: Callable[[Channel], Awaitable[None]]) -> None:
        try:
            async with channel:
                await handler(channel)
        except NetError as error:
            log.info("%r ended: %s", channel, error)
        except trio.EndOfChannel:
            log.info("%r ended: the peer ended it early", channel)
        except Exception:
            log.exception("the handler of %r failed", channel)

    async def open(self, peer: PeerId, protocol: str, *, max_message: int, timeout: float = 10) -> Channel:
        """Open a channel, connecting first if need be.

        Raises:
            DialFailed: the peer cannot be reached.
            ProtocolRefused: the peer does not speak the protocol.
            ChannelBroken: the connection was lost, or the peer did not answer in time.

        """
        deadline = trio.current_time() + timeout
        await self.connect(peer, timeout=timeout)
        connection = self._connections.newest(peer)
        if connection is None:
            raise ChannelBroken(f"connection to {peer} was lost")
        with trio.move_on_at(deadline):
            stream = await open_stream(connection, protocol)
            return self._channel(stream, peer, protocol, max_message)
        raise ChannelBroken(f"{peer} did not answer to {protocol} within {timeout:g} s")

    def _channel(
        self, stream: Any, peer: PeerId, protocol: str, max_message: int, max_inbound: int | None = None
    ) -> Channel:
        channel = Channel(
            MuxedBytes(stream), peer, protocol, max_message=max_message, max_inbound=max_inbound
        )
        self._nursery.start_soon(channel.run)
        return channel

    def serve(self, protocol: str, handler: rpc.Handler, *, max_message: int = _MAX_CALL) -> None:
        """Answer calls. An exception with a `code` is given to the caller; any other is logged and called "internal"."""
        self.handle(protocol, rpc.server(handler, max_message), max_message=max_message)

    async def call(
        self,
        peer: PeerId,
        protocol: str,
        request: Mapping[str, Any],
        *,
        timeout: float = 10,
        max_message: int = _MAX_CALL,
    ) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            CallFailed: the peer's handler refused or failed; `code` is its code.
            CallTimeout: there was no reply in time.
            DialFailed, ProtocolRefused, ChannelBroken: as open().
            MessageMalformed: the reply is not what it should be.

        """
        with trio.move_on_after(timeout):
            channel = await self.open(peer, protocol, max_message=max_message, timeout=timeout)
            async with channel:
                return await rpc.call(channel, request)
        raise CallTimeout(f"{peer} did not answer {protocol} within {timeout:g} s")

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to everybody who subscribes to the topic, this host included.

        Raises:
            MessageTooLarge: gossip cannot carry so much.

        """
        await self._gossip.publish(topic, data)

    def subscribe(
        self, topic: str, *, max_message: int = 256 << 10, validate: Validator | None = None
    ) -> AbstractAsyncContextManager[Messages]:
        """Yield a channel of (publisher, data), the publisher proved by the message's signature.

        A message that is too large, or that `validate` refuses or fails on, is neither delivered nor passed on. If the
        receiver is slow, the oldest messages are dropped.
        """
        return self._gossip.subscribe(topic, max_message=max_message, validate=validate)


@asynccontextmanager
async def open_node(
    seed: bytes, listen: Sequence[str], *, announce: Sequence[str] = (), dead_after: float = DEAD_AFTER
) -> AsyncIterator[Node]:
    """Run this host while the block runs.

    Args:
        seed: 32 bytes, the host's Ed25519 key.
        listen: multiaddrs such as /ip4/0.0.0.0/tcp/4001; port 0 lets the system choose.
        announce: further addresses by which others can reach this host, named first.
        dead_after: s of silence after which a connection is closed.

    Raises:
        AddressInvalid: an address is not what it must be.
        ListenFailed: an address cannot be listened on.

    """
    for address in announce:
        parse(address)
    host = build_host(seed, dead_after=dead_after)
    gossip = Gossip(host)
    failure: Exception | None = None
    async with host.run([]), gossip.running(), trio.open_nursery() as nursery:
        await host.get_network().auto_connector.stop()  # it dials everybody it ever heard of
        node = Node(host, gossip, nursery, announce)
        try:
            for address in listen:
                await listen_on(host, address)
            yield node
        except Exception as error:  # noqa: BLE001 - raised below, where libp2p's nurseries do not wrap it in groups
            failure = error
        finally:
            with trio.CancelScope(shield=True):
                await node._connections.close_all()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
