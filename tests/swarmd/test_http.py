"""The HTTP door: what it answers, what it refuses, and what bad clients cannot do to it."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_swarm import reference_swarm

from ring.perf import PerfBook
from swarmd.http import body, tools
from swarmd.http.server import ListenHttp, listen_on, serve_http
from swarmd.http.tools import ToolRoutes

PLAN = {
    "nodes": [{"node_id": "a", "vram_gb": 24, "rtt_ms": 20}, {"node_id": "b", "vram_gb": 24, "rtt_ms": 30}],
    "total_layers": 32,
    "gb_per_layer": 1.0,
    "kv_gb_per_layer": 0.1,
    "objective": "tok_s",
}


class Door:
    """A served door; `ask` makes one request on a connection of its own."""

    def __init__(self, port: int, book: PerfBook) -> None:
        self.port = port
        self.book = book

    async def ask(
        self,
        method: str,
        path: str,
        document: object = None,
        *,
        headers: Sequence[str] = (),
        raw: bytes | None = None,
    ) -> tuple[int, dict[str, Any]]:
        content = raw if raw is not None else b"" if document is None else json.dumps(document).encode()
        lines = [f"{method} {path} HTTP/1.1", "Connection: close", f"Content-Length: {len(content)}"]
        given_names = {header.partition(":")[0] for header in headers}
        usual = {"Host": "127.0.0.1", "Content-Type": "application/json"}
        lines.extend(f"{name}: {value}" for name, value in usual.items() if name not in given_names)
        head = "\r\n".join([*lines, *headers, "", ""]).encode()
        return await self.send(head + content)

    async def send(self, data: bytes) -> tuple[int, dict[str, Any]]:
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                with contextlib.suppress(trio.BrokenResourceError):  # it has refused the rest, and said why
                    await stream.send_all(data)
                return parsed(await everything(stream))


async def everything(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    with contextlib.suppress(trio.BrokenResourceError):  # a reset where the request was not read to its end
        async for chunk in stream:
            received += chunk
    return bytes(received)


def parsed(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content) if content else {}


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    sock = listen_on("127.0.0.1:0")
    book = PerfBook()
    routes = ToolRoutes(book, lambda: {"hosts": 3}).routes()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, sock, routes)
        yield Door(sock.getsockname()[1], book)
        nursery.cancel_scope.cancel()


async def test_a_tool_gets_a_ring(door: Door) -> None:
    status, answer = await door.ask("POST", "/plan", PLAN)
    assert (status, answer["ok"]) == (200, True)
    assert sorted(answer["ring_order"]) == ["a", "b"]
    assert answer["coordinator"] == answer["ring_order"][0]
    assert set(answer["stages"][0]) == {"stage", "node_id", "lo", "hi", "n_layers"}
    assert answer["est_round_ms"] > 50
    assert answer["est_tok_s"] == pytest.approx(1000 / answer["est_round_ms"], rel=0.01)


async def test_what_does_not_fit_is_refused_with_the_reason(door: Door) -> None:
    status, answer = await door.ask("POST", "/plan", {**PLAN, "total_layers": 64})
    assert (status, answer["ok"], answer["code"]) == (400, False, "no_plan")
    assert "short by" in answer["reason"]


async def test_a_wrong_field_is_named(door: Door) -> None:
    status, answer = await door.ask("POST", "/plan", {**PLAN, "gb_per_layer": "much"})
    assert (status, answer["code"], answer["field"]) == (400, "bad_request", "gb_per_layer")
    status, answer = await door.ask("POST", "/telemetry", {"nodes": [{"node_id": "a", "speed": 3}]})
    assert (status, answer["field"]) == (400, "nodes[0].speed")


async def test_telemetry_changes_the_next_plan(door: Door) -> None:
    nodes = [{"node_id": name, "vram_gb": 40, "rtt_ms": 1} for name in ("a", "b")]
    assert (await door.ask("POST", "/plan", {**PLAN, "nodes": nodes}))[1]["ring_order"] == ["a"]
    told = {"model": "model", "nodes": [{"node_id": "a", "ms_per_layer": 50}]}
    assert await door.ask("POST", "/telemetry", told) == (200, {"ok": True, "nodes": 1})
    assert (await door.ask("POST", "/plan", {**PLAN, "nodes": nodes}))[1]["ring_order"] == ["b"]


async def test_health_is_told(door: Door) -> None:
    assert await door.ask("GET", "/health") == (200, {"ok": True, "hosts": 3})


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/plan", (), 405),
        ("POST", "/plans", (), 404),
        ("POST", "/plan", ("Content-Type: text/plain",), 415),
        ("POST", "/plan", ("Content-Type: application/x-www-form-urlencoded",), 415),
        ("GET", "/health", ("Host: evil.example",), 403),
        ("GET", "/health", ("Host: 127.0.0.1.evil.example:4711",), 403),
        ("GET", "/health", ("Host: localhost:4711",), 200),
        ("GET", "/health", ("Host: [::1]:4711",), 200),
        ("GET", "/health", ("Host: LOCALHOST",), 200),
    ],
)
async def test_only_this_machines_programs_are_answered(
    door: Door, method: str, path: str, headers: tuple[str, ...], status: int
) -> None:
    got, answer = await door.ask(method, path, PLAN, headers=headers)
    assert (got, answer["ok"]) == (status, status == 200)


async def test_a_body_has_a_limit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BYTES", 1000)
    status, answer = await door.ask("POST", "/plan", raw=b" " * 1001)
    assert (status, answer["reason"]) == (413, "the body is longer than 1000 bytes")
    assert (await door.ask("POST", "/plan", raw=b" " * 1000))[0] == 400


async def test_a_body_that_does_not_come_is_given_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "WITHIN", 0.05)
    head = (
        b"POST /plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    status, _ = await door.send(head + b'Content-Length: 100\r\n\r\n{"nodes"')
    assert status == 408


async def test_two_ask_at_once_and_too_many_are_sent_away(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_WAITING", 1)
    statuses: list[int] = []

    async def ask() -> None:
        statuses.append((await door.ask("POST", "/plan", {**PLAN, "nodes": many}))[0])

    many = [{"node_id": f"n{n}", "vram_gb": 5, "rtt_ms": n} for n in range(30)]
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(ask)
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) >= 2
    assert (await door.ask("POST", "/plan", PLAN))[0] == 200


@settings(deadline=None, max_examples=40)
@given(
    st.binary(max_size=200)
    | st.binary(max_size=60).map(lambda tail: b"POST /plan HTTP/1.1\r\nHost: localhost\r\n" + tail)
    | st.sampled_from(
        [b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99]
    )
)
async def test_garbage_ends_a_connection_and_nothing_else(data: bytes) -> None:
    sock = listen_on("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, sock, ToolRoutes(PerfBook(), dict).routes())
        port = sock.getsockname()[1]
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(data)
                    await stream.send_eof()
                await everything(stream)
        assert (await Door(port, PerfBook()).ask("GET", "/health"))[0] == 200
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_in_mid_request_leaves_nothing_behind(door: Door) -> None:
    for _ in range(5):
        async with await trio.open_tcp_stream("127.0.0.1", door.port) as stream:
            await stream.send_all(b"POST /plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    assert (await door.ask("GET", "/health"))[0] == 200


async def test_an_address_in_use_is_named(door: Door) -> None:
    with pytest.raises(ListenHttp, match=rf"http.listen 127.0.0.1:{door.port} cannot be had"):
        listen_on(f"127.0.0.1:{door.port}")


def test_connections_inherit_the_limit_for_clients_that_do_not_read() -> None:
    with listen_on("127.0.0.1:0") as sock, socket.create_connection(sock.getsockname()):
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


async def test_a_daemon_answers_where_its_configuration_says() -> None:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        async with reference_swarm(Path(home)) as swarm:
            running = await swarm.add(http__listen="127.0.0.1:0")
            log = running.daemon._activity.recent(200)
            address = next(str(entry.fields["address"]) for entry in log if entry.event == "http_listening")
            port = int(address.rpartition(":")[2])
            status, answer = await Door(port, PerfBook()).ask("GET", "/health")
            assert (status, answer["peer"], answer["hosts"]) == (200, running.node.peer_id, 1)
            assert (await Door(port, PerfBook()).ask("POST", "/plan", PLAN))[0] == 200
