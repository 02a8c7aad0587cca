"""Connections: who is connected, who hears of it, and how a connection is ended."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.abc import INotifee

from ring.identity import PeerId

log = logging.getLogger("swarmd.net")

_WAITING_EVENTS = 4096
_GOODBYE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The first connection to a peer is there."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The last connection to a peer is gone."""

    peer: PeerId


Event = PeerUp | PeerDown
Events = trio.MemoryReceiveChannel[Event]


class Connections(INotifee):  # type: ignore[misc]  # libp2p is untyped here
    """Follows libp2p's connections; registered as its notifee."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._open: dict[PeerId, list[Any]] = {}
        self._listeners: set[trio.MemorySendChannel[Event]] = set()

    def peers(self) -> frozenset[PeerId]:
        """Return the connected peers."""
        return frozenset(self._open)

    def newest(self, peer: PeerId) -> Any:
        """Return a peer's newest connection, or None."""
        open_ones = self._open.get(peer)
        return open_ones[-1] if open_ones else None

    def add(self, connection: Any) -> None:
        """Take note of a connection; a second time does nothing."""
        peer = PeerId(connection.muxed_conn.peer_id.to_base58())
        known = self._open.setdefault(peer, [])
        if connection.is_closed or connection in known:
            if not known:
                del self._open[peer]
            return
        known.append(connection)
        self._nursery.start_soon(self._watch, peer, connection)
        if len(known) == 1:
            self._tell(PeerUp(peer))

    async def close(self, peer: PeerId) -> None:
        """End all connections to a peer: orderly within a second, else by force."""
        async with trio.open_nursery() as nursery:
            for connection in tuple(self._open.get(peer, ())):
                nursery.start_soon(_close, connection)

    async def close_all(self) -> None:
        """End all connections."""
        async with trio.open_nursery() as nursery:
            for peer in self.peers():
                nursery.start_soon(self.close, peer)

    @asynccontextmanager
    async def events(self) -> AsyncIterator[Events]:
        """Yield a channel of what happens from here on."""
        send, receive = trio.open_memory_channel[Event](_WAITING_EVENTS)
        self._listeners.add(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._listeners.discard(send)

    async def _watch(self, peer: PeerId, connection: Any) -> None:
        await connection.event_closed.wait()
        known = self._open[peer]
        known.remove(connection)
        if not known:
            del self._open[peer]
            self._tell(PeerDown(peer))

    def _tell(self, event: Event) -> None:
        for send in tuple(self._listeners):
            try:
                send.send_nowait(event)
            except trio.WouldBlock:
                log.error("a listener left %d connection events unread and gets no more", _WAITING_EVENTS)
                self._listeners.discard(send)
                send.close()
            except trio.BrokenResourceError:
                self._listeners.discard(send)

    async def connected(self, network: Any, conn: Any) -> None:
        """Called by libp2p for every new connection."""
        self.add(conn)

    async def disconnected(self, network: Any, conn: Any) -> None:
        """Called by libp2p late; the connection itself says it at once."""

    async def opened_stream(self, network: Any, stream: Any) -> None:
        """Called by libp2p; of no interest."""

    async def closed_stream(self, network: Any, stream: Any) -> None:
        """Called by libp2p; of no interest."""

    async def listen(self, network: Any, multiaddr: Any) -> None:
        """Called by libp2p; of no interest."""

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        """Called by libp2p; of no interest."""


async def _close(connection: Any) -> None:
    async def force() -> None:
        await trio.sleep(_GOODBYE_SECONDS)
        await connection.muxed_conn.abort()

    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(force)
            await connection.close()
            nursery.cancel_scope.cancel()
