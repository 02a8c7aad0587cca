"""One JSON object a line, bounded: what both ends of the control socket speak."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import trio

Message = dict[str, Any]

SOCKET_NAME = "control.sock"
"""The socket's name in the state directory."""

REQUEST_LIMIT = 4 << 20
"""Bytes of a request line, newline included."""

REPLY_LIMIT = 16 << 20
"""Bytes of a reply line, newline included: the largest is a plan, whose document may have 4 MiB before it is quoted."""

_CHUNK = 64 << 10
_SOCKET_PATH_LIMIT = 107  # sun_path of Linux has 108 bytes, one of them the closing NUL (unix(7))


class BadRequest(Exception):
    """A line on the control socket is not a request that the daemon understands. Correct what the text names."""

    code: ClassVar[str] = "bad_request"


class ControlDenied(Exception):
    """The daemon belongs to another user. Run the command as that user."""

    code: ClassVar[str] = "control_denied"


class SocketPathTooLong(Exception):
    """The state directory's path leaves no room for the socket's name. Set `state.dir` to a shorter path."""

    code: ClassVar[str] = "socket_path_too_long"


class LineTooLong(BadRequest):
    """A line exceeds its size limit. Send less in one request."""


def encode(message: Message) -> bytes:
    """Return a message as one line. Raises TypeError or ValueError where it holds what JSON does not know."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the JSON object on a line.

    Raises:
        BadRequest: it is not JSON, not an object, or nested beyond all reason.

    """
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the line is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadRequest(f"the line must be a JSON object, not {type(message).__name__}")
    return message


def check_path(path: Path) -> None:
    """Raise SocketPathTooLong where the kernel would refuse the path."""
    length = len(os.fsencode(path))
    if length > _SOCKET_PATH_LIMIT:
        raise SocketPathTooLong(
            f"the control socket's path {path} has {length} bytes, {_SOCKET_PATH_LIMIT} are possible: "
            "set state.dir to a shorter path"
        )


class LineReader:
    """Splits a stream into lines without ever holding much more than `limit` bytes."""

    def __init__(self, stream: trio.SocketStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._buffer = bytearray()

    async def read(self) -> bytes | None:
        """Return the next line without its newline, or None at the end of the stream.

        Raises:
            LineTooLong: no newline within the limit.
            trio.BrokenResourceError: the other end is gone.

        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched >= self._limit:
                raise LineTooLong(f"the line is longer than {self._limit} bytes")
            chunk = await self._stream.receive_some(min(_CHUNK, self._limit - searched))
            if not chunk:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
