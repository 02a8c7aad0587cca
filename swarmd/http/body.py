"""Request bodies: bounded in size and in time."""

from __future__ import annotations

from contextlib import aclosing

import trio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MAX_BYTES = 4 << 20
WITHIN = 10.0
"""Seconds for a whole body."""


async def json_body(request: Request) -> bytes:
    """Return the body of a request that says it is JSON.

    A page in a browser cannot make such a request to this machine unasked, while it could post a form.

    Raises:
        HTTPException: 415: it is not called JSON; 413: too long; 408: too slow.

    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise HTTPException(415, f"Content-Type is {media[:80]!r}, must be application/json")
    body = bytearray()
    with trio.move_on_after(WITHIN) as patience:
        try:
            async with aclosing(request.stream()) as chunks:  # trio leaves no generator half used
                async for chunk in chunks:
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise HTTPException(413, f"the body is longer than {MAX_BYTES} bytes")
        except ClientDisconnect as error:
            raise HTTPException(400, "the body ends early") from error
    if patience.cancelled_caught:
        raise HTTPException(408, f"the body did not come within {WITHIN:g} s")
    return bytes(body)
