"""Greeter: on every new connection, exchange hellos: versions, swarm, announcements and known peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ring.hello import MAX_HELLO_BYTES, PROTOCOL, Hello, HelloError, HelloRefused, receive, to_map
from ring.identity import PeerId
from swarmd.activity import Activity
from swarmd.dialer import HEARSAY, Dialer
from swarmd.net import CallFailed, NetError, Node, PeerUp, ProtocolRefused
from swarmd.rtt import RttMeter
from swarmd.view import SwarmView

_ANSWER_WITHIN = 10.0  # s
_GREET_AGAIN = 2.0  # s
_HEARSAY_EACH = 32  # hosts that one hello may tell of
_LOOK_EVERY = 2.0  # s


class Greeter:
    """Decides who of the connected peers is a host of this swarm, and tells the other services."""

    def __init__(
        self,
        node: Node,
        view: SwarmView,
        dialer: Dialer,
        meter: RttMeter,
        activity: Activity,
        own_hello: Callable[[], Hello],
    ) -> None:
        self._node = node
        self._view = view
        self._dialer = dialer
        self._meter = meter
        self._activity = activity
        self._own_hello = own_hello
        self._greeted: dict[PeerId, trio.CancelScope] = {}
        node.serve(PROTOCOL, self._answer, max_message=MAX_HELLO_BYTES)

    async def run(self) -> None:
        """Follow connections for as long as the daemon lives."""
        async with self._node.connection_events() as events, trio.open_nursery() as nursery:
            nursery.start_soon(self._meet_announced)
            for peer in self._node.connected():
                nursery.start_soon(self._accompany, peer)
            async for event in events:
                if isinstance(event, PeerUp):
                    nursery.start_soon(self._accompany, event.peer)
                else:
                    self._gone(event.peer)

    async def _meet_announced(self) -> None:
        """Be connected to every host that is heard of by gossip: the planner uses measured edges only."""
        while True:
            for signed in self._view.alive():
                host = signed.announcement
                self._dialer.want(host.peer, host.addresses, source="announcement")
            await trio.sleep(_LOOK_EVERY)

    def _gone(self, peer: PeerId) -> None:
        if scope := self._greeted.pop(peer, None):
            scope.cancel()
        self._view.disconnected(peer)
        if self._view.life(peer) != "left":
            self._dialer.retry_now(peer)

    async def _accompany(self, peer: PeerId) -> None:
        """Greet a connected peer and, if it is a host of this swarm, measure it until it goes."""
        if peer in self._greeted:
            return
        scope = self._greeted[peer] = trio.CancelScope()
        with scope:
            is_host: bool | None = None
            while is_host is None:
                is_host = await self._greet(peer)
            if is_host:
                await self._meter.measure(peer)

    async def _greet(self, peer: PeerId) -> bool | None:
        """Return whether a peer is a host of this swarm, or None, after a pause, if it has not answered."""
        mine = to_map(self._own_hello())
        try:
            reply = await self._node.call(
                peer,
                PROTOCOL,
                mine,
                timeout=_ANSWER_WITHIN,
                max_message=MAX_HELLO_BYTES,
            )
            self._take(peer, reply)
        except ProtocolRefused:
            return False  # a client, not a host
        except CallFailed as error:
            await self._refuse(peer, f"it refused us: {error}")
            return False
        except (HelloRefused, HelloError) as error:
            await self._refuse(peer, str(error))
            return False
        except NetError as error:
            self._activity.note("hello_failed", str(error), peer=peer)
            await trio.sleep(_GREET_AGAIN)
            return None
        return True

    async def _answer(self, peer: PeerId, request: dict[str, Any]) -> dict[str, Any]:
        """Serve a hello: raise HelloRefused, which the caller gets by its code, or take what it says."""
        self._take(peer, request)
        return to_map(self._own_hello())

    def _take(self, peer: PeerId, fields: dict[str, Any]) -> None:
        theirs = receive(self._own_hello(), fields)
        if theirs.announcement is not None:
            self._view.heard_bytes(theirs.announcement)
        self._view.connected(peer)
        for other, addresses in theirs.peers[:_HEARSAY_EACH]:
            self._dialer.want(other, addresses, source=HEARSAY)

    async def _refuse(self, peer: PeerId, reason: str) -> None:
        self._activity.note("host_refused", reason, peer=peer)
        self._dialer.hold_off(peer, reason)
        await self._node.disconnect(peer)
