"""The daemon's end of the control socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import structlog
import trio

from swarmd.control.lock import DaemonLock
from swarmd.control.wire import (
    REPLY_LIMIT,
    REQUEST_LIMIT,
    SOCKET_NAME,
    BadRequest,
    ControlDenied,
    LineReader,
    Message,
    check_path,
    decode,
    encode,
)
from swarmd.failure import failure_of

if TYPE_CHECKING:
    from trio_typing import TaskStatus

Emit = Callable[[Message], Awaitable[None]]
Handler = Callable[[Message, Emit], Awaitable[Message]]
"""Answers one request: may emit events on the way and returns the fields of the final reply. It is cancelled when its
client goes away. An exception with a `code` becomes an error reply of that code."""

REQUEST_SECONDS = 10.0
"""A client must have sent its request by then."""

WRITE_SECONDS = 30.0
"""A client that does not take a line for so long is given up, and its operation cancelled."""

_CLIENTS = 64
_HALF_CLOSED_POLL_SECONDS = 0.25
_UCRED = struct.Struct("=iII")  # struct ucred: pid, uid, gid (unix(7))

_log = structlog.get_logger("swarmd.control")


class StateDirUnsafe(Exception):
    """The state directory belongs to someone else or others may write to it. Do the `chmod` that the text names."""

    code: ClassVar[str] = "state_dir_unsafe"


class TooManyClients(Exception):
    """All places for local programs are taken. Close one, or try again later."""

    code: ClassVar[str] = "busy"


class ControlServer:
    """Serves operations by name on a Unix socket that only this user may use. Made by claimed().

    A connection carries one request: a JSON line {"op": NAME, …}; the answer is any number of {"event": …} lines
    and one final line with "ok".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handlers: Mapping[str, Handler] = {}
        self._free_places = _CLIENTS

    @classmethod
    @contextlib.asynccontextmanager
    async def claimed(cls, state_dir: Path) -> AsyncIterator[Self]:
        """Be the one daemon of `state_dir` (made if need be) within the block: the lock is the truth about it.

        Raises:
            AlreadyRunning: another daemon is; names its pid.
            SocketPathTooLong: the kernel takes no socket path of this length.
            StateDirUnsafe: others could replace the socket.

        """
        path = state_dir / SOCKET_NAME
        check_path(_draft(path))
        _prepare_directory(state_dir)
        with DaemonLock(state_dir / "daemon.lock"):
            yield cls(path)

    async def run(
        self, handlers: Mapping[str, Handler], *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve handlers (operation → handler) until cancelled; started once clients can connect.

        A socket that a dead daemon left behind is replaced: whoever holds the lock may do so.
        """
        self._handlers = dict(handlers)
        with _socket_at(self.path) as listener:
            task_status.started()
            await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            with self._place() as is_free:
                try:
                    reply = await self._answer(stream, is_free)
                except trio.BrokenResourceError:
                    return  # the client went away before it had asked anything
                except Exception as error:  # noqa: BLE001 - one client's trouble is told to that client
                    reply = _error_reply(error)
                if reply is not None:
                    await _send(stream, reply)

    async def _answer(self, stream: trio.SocketStream, is_free: bool) -> bytes | None:
        if _peer_uid(stream) not in {os.geteuid(), 0}:
            raise ControlDenied("this socket serves its owner only")
        if not is_free:
            raise TooManyClients(f"{_CLIENTS} clients are connected already: close one of them")
        with trio.move_on_after(REQUEST_SECONDS) as deadline:
            line = await LineReader(stream, REQUEST_LIMIT).read()
        if deadline.cancelled_caught:
            raise BadRequest(f"no request came within {REQUEST_SECONDS:g} s")
        if line is None:
            return None
        request = decode(line)
        handler = self._handler(request.get("op"))
        return await _while_connected(stream, handler, request)

    def _handler(self, name: object) -> Handler:
        if isinstance(name, str) and name in self._handlers:
            return self._handlers[name]
        known = ", ".join(sorted(self._handlers))
        raise BadRequest(f"op is {name!r}, must be one of: {known}")

    @contextlib.contextmanager
    def _place(self) -> Iterator[bool]:
        is_free = self._free_places > 0
        self._free_places -= is_free
        try:
            yield is_free
        finally:
            self._free_places += is_free


async def _while_connected(stream: trio.SocketStream, handler: Handler, request: Message) -> bytes | None:
    """Return the final line, or None where the client went away and the handler was cancelled for it."""

    async def emit(event: Message) -> None:
        if not await _send(stream, _line(event)):
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()

    reply: bytes | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, stream, nursery.cancel_scope)
        try:
            reply = _line({"ok": True, **await handler(request, emit)})
        except Exception as error:  # noqa: BLE001 - told to the client, logged where it is a bug
            reply = _error_reply(error)
        nursery.cancel_scope.cancel()
    return reply


async def _cancel_when_gone(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Cancel when the client has gone. One that closes only its sending half (`nc -N`) still reads."""
    try:
        while await stream.receive_some(4096):
            pass  # a connection carries one request: what follows it has no meaning
        while not _hung_up(stream.socket):  # noqa: ASYNC110 - the kernel has no event for it once EOF is read
            await trio.sleep(_HALF_CLOSED_POLL_SECONDS)
    except trio.BrokenResourceError:
        pass
    scope.cancel()


def _hung_up(sock: trio.socket.SocketType) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


async def _send(stream: trio.SocketStream, line: bytes) -> bool:
    """Return whether the client has taken the line; False: it is gone, or does not read."""
    with trio.move_on_after(WRITE_SECONDS) as deadline:
        try:
            await stream.send_all(line)
        except trio.BrokenResourceError:
            return False
    return not deadline.cancelled_caught


def _line(message: Message) -> bytes:
    line = encode(message)
    if len(line) > REPLY_LIMIT:
        raise ValueError(f"a reply of {len(line)} bytes exceeds {REPLY_LIMIT}")
    return line


def _error_reply(error: Exception) -> bytes:
    failure = failure_of(error)
    if failure.is_bug:
        _log.error("control request failed unexpectedly", exc_info=error)
    return encode({"ok": False, "error": {"code": failure.code, "message": failure.message}})


def _peer_uid(stream: trio.SocketStream) -> int:
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(raw)
    return int(uid)


def _prepare_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise StateDirUnsafe(
            f"state.dir {directory} must belong to you and to nobody else's pen: run `chmod 700 {directory}`, "
            "or set another state.dir"
        )


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".new")


@contextlib.contextmanager
def _socket_at(path: Path) -> Iterator[trio.SocketListener]:
    """Bind under another name and rename when the mode is set: whatever the umask, nobody else can ever connect."""
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(draft))
        draft.chmod(0o600)
        sock.listen(_CLIENTS)
        draft.rename(path)
        try:
            yield trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        finally:
            path.unlink(missing_ok=True)
