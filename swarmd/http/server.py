"""The HTTP server: Starlette's routes on hypercorn, within the daemon's own event loop."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

import structlog
import trio
from hypercorn.config import Config, Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ring.planner import NoPlan
from swarmd.http.tools import bad_request, http_error
from swarmd.tool_request import ToolRequestBad

if TYPE_CHECKING:
    from trio_typing import TaskStatus

_BACKLOG = 64
_SILENT_FOR = 20  # s in which a client neither sends what it began nor takes what it asked for
_UNREAD_FOR_MS = 1000 * _SILENT_FOR
_KEPT_ALIVE = 5  # s
_HEADERS = 16 << 10  # bytes
_GRACE = 1.0  # s for answers under way when the daemon leaves
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


class ListenHttp(Exception):
    """The address of `http.listen` cannot be had. Free it, or set another one."""

    code: ClassVar[str] = "listen_http"


def listen_on(address: str) -> socket.socket:
    """Return a socket that listens on "HOST:PORT" with a literal IP address.

    Raises:
        ListenHttp: the address is in use, or not of this machine.

    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # hypercorn waits for ever for a client that does not read; connections inherit this limit from the kernel.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_FOR_MS)
        sock.bind((host, int(port)))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenHttp(f"http.listen {address} cannot be had: {error.strerror}") from error
    return sock


async def serve_http(
    sock: socket.socket,
    routes: Sequence[BaseRoute],
    *,
    task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve routes on a listening socket until cancelled, then close it."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={
            ToolRequestBad: bad_request,
            NoPlan: bad_request,
            HTTPException: http_error,
            500: _bug,
        },
    )
    config = Config()
    config.accesslog = config.errorlog = None
    config.keep_alive_timeout = _KEPT_ALIVE
    config.read_timeout = _SILENT_FOR
    config.h11_max_incomplete_size = _HEADERS
    config.graceful_timeout = _GRACE
    config.include_server_header = False
    with closing(sock):
        # Its serve() opens sockets of its own; this is what it calls with them.
        await worker_serve(
            wrap_app(_LocalOnly(app), config.wsgi_max_body_size, "asgi"),  # type: ignore[arg-type]  # its own types
            config,
            sockets=Sockets([], [sock], []),
            task_status=task_status,
        )


class _LocalOnly:
    """Refuses requests for another name than this machine's: a page whose name was rebound to it may not ask (DNS
    rebinding).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Request(scope).headers.get("host", "")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if name.strip("[]").lower() not in _LOCAL_NAMES:
                refusal = await http_error(
                    Request(scope), HTTPException(403, f"{host[:80]!r} is not this machine's name")
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    structlog.get_logger("swarmd.http").error("http request failed unexpectedly", exc_info=error)
    return JSONResponse(
        {"ok": False, "code": "internal", "reason": "a bug in swarmd; its log has the details"}, 500
    )
