"""Links of the assignment protocol: how leader and member talk, over a channel or inside one process.

Messages are maps with a key "op"; docs/protocols.md (`/swarmd/assign/1`) lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import trio

from ring.identity import PeerId
from swarmd.net import Channel, NetError, pack, unpack

_LOCAL_BOUND = 64


class LinkLost(Exception):
    """The other side went away in mid-assignment."""


class Link(Protocol):
    """One conversation between a leader and a member."""

    peer: PeerId

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises LinkLost."""
        ...

    async def receive(self) -> dict[str, Any]:
        """Return the next message. Raises LinkLost when there will be none."""
        ...

    async def close(self) -> None:
        """End the conversation from this side."""
        ...


class RemoteLink:
    """A link over a channel of `/swarmd/assign/1`."""

    def __init__(self, channel: Channel) -> None:
        self.peer = channel.peer
        self._channel = channel

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        try:
            await self._channel.send(pack(message))
        except NetError as error:
            raise LinkLost(str(error)) from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message."""
        try:
            return unpack(await self._channel.receive())
        except trio.EndOfChannel as error:
            raise LinkLost("it ended the conversation") from error
        except NetError as error:
            raise LinkLost(str(error)) from error

    async def close(self) -> None:
        """End the conversation from this side; what was sent still arrives."""
        try:
            async with self._channel:
                pass
        except NetError:
            return  # there is nothing left to end


class LocalLink:
    """A link to oneself: the leader is as a rule a member, too."""

    def __init__(
        self,
        peer: PeerId,
        sender: trio.MemorySendChannel[dict[str, Any]],
        receiver: trio.MemoryReceiveChannel[dict[str, Any]],
    ) -> None:
        self.peer = peer
        self._sender, self._receiver = sender, receiver

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        try:
            await self._sender.send(dict(message))
        except trio.BrokenResourceError as error:
            raise LinkLost("it ended the conversation") from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message."""
        try:
            return await self._receiver.receive()
        except trio.EndOfChannel as error:
            raise LinkLost("it ended the conversation") from error

    async def close(self) -> None:
        """End the conversation from this side."""
        self._sender.close()
        self._receiver.close()


def local_pair(peer: PeerId) -> tuple[LocalLink, LocalLink]:
    """Return the two ends of a link of a host to itself."""
    to_member, from_leader = trio.open_memory_channel[dict[str, Any]](_LOCAL_BOUND)
    to_leader, from_member = trio.open_memory_channel[dict[str, Any]](_LOCAL_BOUND)
    return LocalLink(peer, to_member, from_member), LocalLink(peer, to_leader, from_leader)
