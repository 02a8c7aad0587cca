"""The other end of the control socket: what the command line and other local programs use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import trio

from swarmd.control.wire import (
    REPLY_LIMIT,
    REQUEST_LIMIT,
    BadRequest,
    ControlDenied,
    LineReader,
    LineTooLong,
    Message,
    check_path,
    decode,
    encode,
)

SILENCE_SECONDS = 120.0
"""How long the daemon may be silent by default; every line that it sends renews this."""


class DaemonNotRunning(Exception):
    """No daemon serves this state directory. Start one with `swarmd join`."""

    code: ClassVar[str] = "not_running"


class ControlProtocolError(Exception):
    """The daemon hung up, fell silent, or sent what is no reply. Look at its log, restart it."""

    code: ClassVar[str] = "control_protocol"


class RemoteError(Exception):
    """The daemon answered with an error; `code` and text are the daemon's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Reply:
    """The answer to one request, to iterate over: its events as they come, at last the final message ("ok": true)."""

    def __init__(self, connection: trio.SocketStream, silence: float) -> None:
        self._lines = LineReader(connection, REPLY_LIMIT)
        self._silence = silence
        self._is_complete = False

    def __aiter__(self) -> Self:
        """Iterate over the messages."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message.

        Raises:
            RemoteError: the daemon reports an error.
            ControlProtocolError: it hung up, was silent for too long or sent nonsense.

        """
        if self._is_complete:
            raise StopAsyncIteration
        message = await self._read()
        if "event" in message:
            return message
        self._is_complete = True
        if message.get("ok") is True:
            return message
        error = message.get("error")
        if not isinstance(error, dict):
            raise ControlProtocolError("the daemon sent a line that is neither event nor reply")
        raise RemoteError(str(error.get("code")), str(error.get("message")))

    async def _read(self) -> Message:
        try:
            with trio.move_on_after(self._silence) as deadline:
                line = await self._lines.read()
        except (trio.BrokenResourceError, BadRequest) as error:
            raise ControlProtocolError(f"the daemon's reply broke off: {error}") from error
        if deadline.cancelled_caught:
            raise ControlProtocolError(f"the daemon has been silent for {self._silence:g} s")
        if line is None:
            raise ControlProtocolError(
                "the daemon hung up before its reply was complete: is it shutting down?"
            )
        try:
            return decode(line)
        except BadRequest as error:
            raise ControlProtocolError(f"the daemon's reply: {error}") from error


@asynccontextmanager
async def stream(
    path: Path, op: str, *, silence: float = SILENCE_SECONDS, **fields: Any
) -> AsyncIterator[Reply]:
    """Send a request and give its reply to iterate over. Leaving the block early cancels the operation.

    Raises:
        DaemonNotRunning: nobody listens at `path`.
        ControlDenied: the socket belongs to another user.

    """
    line = encode({**fields, "op": op})
    if len(line) > REQUEST_LIMIT:
        raise LineTooLong(
            f"the request has {len(line):,} bytes, more than the {REQUEST_LIMIT:,} allowed: send less"
        )
    connection = await _connect(path)
    async with connection:
        try:
            await connection.send_all(line)
        except trio.BrokenResourceError as error:
            raise ControlProtocolError("the daemon hung up on the request: is it shutting down?") from error
        yield Reply(connection, silence)


async def request(path: Path, op: str, *, silence: float = SILENCE_SECONDS, **fields: Any) -> Message:
    """Send a request and return its final reply; events on the way are skipped. Raises as stream() and Reply do."""
    async with stream(path, op, silence=silence, **fields) as reply:
        messages = [message async for message in reply]
    return messages[-1]


async def _connect(path: Path) -> trio.SocketStream:
    check_path(path)
    try:
        return await trio.open_unix_socket(str(path))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise DaemonNotRunning(
            f"no daemon is running (nobody listens at {path}): start it with `swarmd join`"
        ) from error
    except PermissionError as error:
        raise ControlDenied(f"the daemon at {path} belongs to another user: run this as that user") from error
