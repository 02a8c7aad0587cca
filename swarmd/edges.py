"""Edges: the persistent streams of a ring (`/swarmd/ring/1`), one for each hop and one from the tail to the coordinator.

The upstream side opens an edge and says in the first message which plan it belongs to and in which role; the downstream
side answers with one message, then frames flow one way. Errors of the downstream side flow back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import trio

from ring.frame import ErrorFrame, Frame, FrameError, decode, encode, one_line
from ring.identity import PeerId
from swarmd.net import Channel, ChannelBroken, NetError, Node, ProtocolRefused, first_message, pack, unpack

PROTOCOL: Final = "/swarmd/ring/1"
MAX_MESSAGE: Final = 256 << 20  # a prefill chunk of a wide model
_MAX_GREETING: Final = 4096  # all that a peer may send before it has shown its place in the ring
_GREETED_WITHIN: Final = 10.0  # s

EdgeRole = Literal["forward", "return"]


class Acceptor(Protocol):
    """Who takes edges in: the stage that serves a plan."""

    async def take_edge(self, role: EdgeRole, channel: Channel) -> None:
        """Read frames until the edge ends."""
        ...


class EdgeRefused(NetError):
    """The downstream host does not serve the plan, or not in that place. The ring has changed; a new plan follows."""

    code = "edge_refused"


async def open_edge(node: Node, peer: PeerId, plan: str, role: EdgeRole) -> Channel:
    """Open an edge to the next stage, or to the coordinator ("return").

    Raises:
        NetError: the host cannot be reached or refuses.

    """
    channel = await node.open(peer, PROTOCOL, max_message=MAX_MESSAGE)
    try:
        with trio.fail_after(_GREETED_WITHIN):
            await channel.send(pack({"plan": plan, "role": role}))
            answer = unpack(await channel.receive(), limit=_MAX_GREETING)
    except (trio.TooSlowError, trio.EndOfChannel) as error:
        await channel.abort()
        raise ChannelBroken(f"{peer} does not answer on the edge of plan {plan}") from error
    except BaseException:
        await channel.abort()
        raise
    if answer != {"ok": True}:
        await channel.abort()
        raise EdgeRefused(f"{peer} refuses the edge of plan {plan}: {answer!r:.200}")
    return channel


class EdgeServer:
    """Takes edges in for whoever serves their plan."""

    def __init__(self, node: Node, acceptor_for: Callable[[str, EdgeRole, PeerId], Acceptor | None]) -> None:
        """`acceptor_for(plan, role, upstream peer)` returns who takes the edge, or None to refuse it."""
        self._acceptor_for = acceptor_for
        node.handle(PROTOCOL, self._accept, max_message=MAX_MESSAGE, max_inbound=_MAX_GREETING)

    async def _accept(self, channel: Channel) -> None:
        greeting = unpack(await first_message(channel, _GREETED_WITHIN), limit=_MAX_GREETING)
        match greeting:
            case {"plan": str(plan), "role": ("forward" | "return") as role}:
                acceptor = self._acceptor_for(plan, role, channel.peer)
            case _:
                raise ProtocolRefused(f"{channel.peer} opened an edge without saying of which plan")
        if acceptor is None:
            await channel.send(pack({"ok": False, "code": "ring_changed"}))
            return
        channel.admit(MAX_MESSAGE)
        await channel.send(pack({"ok": True}))
        await acceptor.take_edge(role, channel)


async def receive_frame(channel: Channel) -> Frame:
    """Return the next frame of an edge.

    Raises:
        one of EDGE_ENDS: the edge is of no more use.

    """
    return decode(await channel.receive())


async def send_frame(channel: Channel, frame: Frame) -> None:
    """Send a frame along an edge. Raises ChannelBroken, MessageTooLarge."""
    await channel.send(*encode(frame))


def ring_error(stage: PeerId, code: str, message: str) -> ErrorFrame:
    """Return an error that ends all sessions of a ring."""
    return ErrorFrame("", stage, code, one_line(message))


EDGE_ENDS = (NetError, FrameError, trio.EndOfChannel)
