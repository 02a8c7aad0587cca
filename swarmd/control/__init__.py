"""The control socket: how programs on the same host talk to the daemon. See docs/commands.md for the protocol."""

from swarmd.control.client import (
    ControlProtocolError,
    DaemonNotRunning,
    RemoteError,
    Reply,
    request,
    stream,
)
from swarmd.control.lock import AlreadyRunning, DaemonLock
from swarmd.control.server import ControlServer, Emit, Handler, StateDirUnsafe, TooManyClients
from swarmd.control.wire import SOCKET_NAME, BadRequest, ControlDenied, SocketPathTooLong

__all__ = [
    "SOCKET_NAME",
    "AlreadyRunning",
    "BadRequest",
    "ControlDenied",
    "ControlProtocolError",
    "ControlServer",
    "DaemonLock",
    "DaemonNotRunning",
    "Emit",
    "Handler",
    "RemoteError",
    "Reply",
    "SocketPathTooLong",
    "StateDirUnsafe",
    "TooManyClients",
    "request",
    "stream",
]
