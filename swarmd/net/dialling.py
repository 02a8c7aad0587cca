"""Dialling: one address at a time, one dial a peer, no memory of failures but the address book's."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from ring.identity import PeerId
from swarmd.net.address_book import AddressBook
from swarmd.net.connections import Connections
from swarmd.net.errors import DialFailed

log = logging.getLogger("swarmd.net")

_ADDRESS_SECONDS = 5.0  # one address: TCP, Noise and yamux negotiation
_MAX_REASON = 200

# The TCP connections that the dial of this task has opened.
_opened: ContextVar[list[Any] | None] = ContextVar("_opened", default=None)


def note_opened(dial: Callable[[Multiaddr], Awaitable[Any]]) -> Callable[[Multiaddr], Awaitable[Any]]:
    """Wrap a transport's dial(), so that Dialling can close what libp2p forgets."""

    async def noting(address: Multiaddr) -> Any:
        connection = await dial(address)
        if (opened := _opened.get()) is not None:
            opened.append(connection)
        return connection

    return noting


@dataclass(slots=True)
class _Dial:
    """A dial that one or more callers wait for."""

    attempts: list[tuple[str, str]] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    waiting: int = 0
    trying: str | None = None


class Dialling:
    """Makes connections."""

    def __init__(
        self, swarm: Any, book: AddressBook, connections: Connections, nursery: trio.Nursery
    ) -> None:
        self._swarm = swarm
        self._book = book
        self._connections = connections
        self._nursery = nursery
        self._dials: dict[PeerId, _Dial] = {}

    async def connect(self, peer: PeerId, *, timeout: float) -> None:
        """Connect to a peer at one of its addresses in the book; callers for the same peer share the dial.

        Raises:
            DialFailed: none of the addresses led to the peer in time.

        """
        if self._connections.newest(peer) is not None:
            return
        dial = self._dials.get(peer)
        if dial is None:
            dial = self._dials[peer] = _Dial()
            self._nursery.start_soon(self._run, peer, dial)
        dial.waiting += 1
        try:
            with trio.move_on_after(timeout):
                await dial.over.wait()
        finally:
            dial.waiting -= 1
            if dial.waiting == 0:
                if dial.trying is not None:
                    self._book.failed(peer, dial.trying)  # so that the next dial starts with another address
                self._give_up(peer, dial)
        if self._connections.newest(peer) is None:
            waited_for = [(dial.trying, "no answer so far")] if dial.trying else []
            raise DialFailed(peer, self._reason(peer, dial, timeout), (*dial.attempts, *waited_for))

    def _reason(self, peer: PeerId, dial: _Dial, timeout: float) -> str:
        if not self._book.addresses(peer):
            return "no address of it is known"
        return "no address answered" if dial.over.is_set() else f"no connection within {timeout:g} s"

    async def _run(self, peer: PeerId, dial: _Dial) -> None:
        try:
            with dial.scope:
                for address in self._book.addresses(peer):
                    dial.trying = address
                    if await self._try(peer, address, dial) or self._connections.newest(peer) is not None:
                        break
                dial.trying = None
        finally:
            dial.over.set()
            self._give_up(peer, dial)

    def _give_up(self, peer: PeerId, dial: _Dial) -> None:
        """Let the next caller start anew."""
        dial.scope.cancel()
        if self._dials.get(peer) is dial:
            del self._dials[peer]

    async def _try(self, peer: PeerId, address: str, dial: _Dial) -> bool:
        opened: list[Any] = []
        noting = _opened.set(opened)
        connection: Any = None
        try:
            connection = await self._dial(peer, address, dial)
        finally:
            _opened.reset(noting)
            if connection is None:
                await _close(opened)
        if connection is not None:
            self._nursery.start_soon(_close_after, connection, opened)
        return connection is not None

    async def _dial(self, peer: PeerId, address: str, dial: _Dial) -> Any:
        try:
            with trio.move_on_after(_ADDRESS_SECONDS) as patience:
                connection = await self._swarm.dial_addr(Multiaddr(address), ID.from_base58(peer))
                self._connections.add(connection)
                self._book.succeeded(peer, address)
                return connection
        except Exception as error:  # noqa: BLE001 - libp2p wraps whatever the peer or the network did
            dial.attempts.append((address, _why(error)))
        if patience.cancelled_caught:
            dial.attempts.append((address, f"no answer within {_ADDRESS_SECONDS:g} s"))
        self._book.failed(peer, address)
        return None


async def _close_after(connection: Any, opened: list[Any]) -> None:
    """Close the socket of a connection that has ended, whoever ended it: libp2p leaves it to the garbage collector."""
    try:
        await connection.event_closed.wait()
    finally:
        await _close(opened)


async def _close(opened: list[Any]) -> None:
    with trio.CancelScope(shield=True):
        for connection in opened:
            await connection.close()


def _why(error: BaseException) -> str:
    """Return the innermost reason: libp2p's outer ones only say that it failed."""
    while inner := error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__:
        error = inner
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return (str(error) or type(error).__name__)[:_MAX_REASON]
