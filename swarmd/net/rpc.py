"""Calls: a channel with one request and one reply, both msgpack maps.

The reply is {"reply": map}, or {"error": {"code": text, "message": text}}.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from ring.identity import PeerId
from swarmd.net.channel import Channel, first_message
from swarmd.net.codec import pack, unpack
from swarmd.net.errors import CallFailed, MessageMalformed, MessageTooLarge

log = logging.getLogger("swarmd.net")

Handler = Callable[[PeerId, dict[str, Any]], Awaitable[dict[str, Any]]]

_REQUEST_SECONDS = 30.0
_MAX_ERROR_TEXT = 1000


def server(handler: Handler, max_message: int) -> Callable[[Channel], Awaitable[None]]:
    """Return a channel handler that answers one request with what `handler` returns or raises."""

    async def serve(channel: Channel) -> None:
        data = await first_message(channel, _REQUEST_SECONDS)
        reply = await _answer(handler, channel, data)
        try:
            await channel.send(pack(reply))
        except MessageTooLarge as error:
            log.error("%s: the reply is too large: %s", channel.protocol, error)
            await channel.send(pack(_refusal(error.code, str(error))))

    return serve


async def call(channel: Channel, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request and return the reply.

    Raises:
        CallFailed: the peer's handler raised.
        MessageMalformed: the reply is not of the form above.

    """
    await channel.send(pack(request))
    try:
        reply = unpack(await channel.receive())
    except trio.EndOfChannel:
        raise MessageMalformed(f"{channel.peer} ended {channel.protocol} without a reply") from None
    match reply:
        case {"reply": dict() as answer}:
            return answer
        case {"error": {"code": str() as code, "message": str() as message}}:
            raise CallFailed(code, message)
    raise MessageMalformed(f"the reply of {channel.peer} to {channel.protocol} has neither reply nor error")


async def _answer(handler: Handler, channel: Channel, data: bytes) -> dict[str, Any]:
    try:
        return {"reply": await handler(channel.peer, unpack(data))}
    except Exception as error:
        code = getattr(error, "code", None)
        if isinstance(code, str):
            return _refusal(code, str(error))
        log.exception("the handler of %s failed", channel.protocol)
        return _refusal(
            "internal", f"{channel.protocol} failed on {type(error).__name__}; see that host's log"
        )


def _refusal(code: str, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": text[:_MAX_ERROR_TEXT]}}
