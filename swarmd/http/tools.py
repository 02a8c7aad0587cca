"""The routes for outside tools: `POST /plan`, `POST /telemetry`, `GET /health` (docs/http.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ring.perf import PerfBook
from ring.planner import NoPlan, compute_ring
from swarmd.http.body import json_body
from swarmd.tool_plan import in_tools_words, plan_request, take_telemetry
from swarmd.tool_request import ToolRequestBad, read_request, read_telemetry

_AT_ONCE = 1  # plans computed side by side: the host has a ring to serve
_WAITING = 8  # further requests that may wait for one


class ToolRoutes:
    """Answers outside tools from the book of estimates; nothing that they say reaches the swarm."""

    def __init__(self, book: PerfBook, health: Callable[[], dict[str, Any]]) -> None:
        self._book = book
        self._health = health
        self._threads = trio.CapacityLimiter(_AT_ONCE)
        self._taken = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/health", self._get_health, methods=["GET"]),
            Route("/plan", self._plan, methods=["POST"]),
            Route("/telemetry", self._telemetry, methods=["POST"]),
        ]

    async def _get_health(self, request: Request) -> JSONResponse:
        return JSONResponse({"ok": True, **self._health()})

    async def _plan(self, request: Request) -> JSONResponse:
        wanted = read_request(await json_body(request))
        if self._taken > _WAITING:
            raise HTTPException(503, f"{_WAITING} plans are waiting already: try again later")
        self._taken += 1
        try:
            asked, assumed = plan_request(wanted, self._book)
            ring = await trio.to_thread.run_sync(compute_ring, asked, limiter=self._threads)
        finally:
            self._taken -= 1
        return JSONResponse(in_tools_words(ring, assumed))

    async def _telemetry(self, request: Request) -> JSONResponse:
        telemetry = read_telemetry(await json_body(request))
        take_telemetry(telemetry, self._book)
        return JSONResponse({"ok": True, "nodes": len(telemetry.nodes)})


async def bad_request(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a request, or why it has no plan."""
    assert isinstance(error, ToolRequestBad | NoPlan)  # noqa: S101 - this is where these two come
    field = error.field if isinstance(error, ToolRequestBad) else ""
    return _refusal(400, error.code, str(error), field)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """Say what HTTP itself makes of a request, in the same form."""
    assert isinstance(error, HTTPException)  # noqa: S101 - this is where these come
    return _refusal(error.status_code, "http", error.detail, "")


def _refusal(status: int, code: str, reason: str, field: str) -> JSONResponse:
    body = {"ok": False, "code": code, "reason": reason}
    return JSONResponse(body | ({"field": field} if field else {}), status_code=status)
