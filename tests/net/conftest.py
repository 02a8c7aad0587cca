from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from swarmd.net import Channel, Node, open_node

LOCAL = ("/ip4/127.0.0.1/tcp/0",)

OpenNode = Callable[[int], AbstractAsyncContextManager[Node]]


@pytest.fixture
def node_of() -> OpenNode:
    def make(number: int) -> AbstractAsyncContextManager[Node]:
        return open_node(bytes([number]) * 32, LOCAL)

    return make


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes; the first is connected to the second, which echoes on /echo/1 up to 8 MiB."""
    async with open_node(b"a" * 32, LOCAL) as left, open_node(b"b" * 32, LOCAL) as right:
        right.handle("/echo/1", echo, max_message=8 << 20)
        await left.connect(right.peer_id, right.addresses())
        yield left, right


async def echo(channel: Channel) -> None:
    async for message in channel:
        await channel.send(message)
