"""The control socket with real Unix sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from swarmd.control import (
    AlreadyRunning,
    ControlProtocolError,
    ControlServer,
    DaemonLock,
    DaemonNotRunning,
    Emit,
    Handler,
    RemoteError,
    SocketPathTooLong,
    StateDirUnsafe,
    request,
    stream,
)
from swarmd.control import server as server_module
from swarmd.control.wire import REQUEST_LIMIT, BadRequest, LineReader, decode, encode

Message = dict[str, Any]


class NoRoom(Exception):
    """An error as a daemon's operation raises it."""

    code = "no_plan"


class DaemonDouble:
    """Operations that behave as a daemon's do: answer, stream, fail, hang."""

    def __init__(self) -> None:
        self.hanging = trio.Event()
        self.cancelled = trio.Event()

    def handlers(self) -> dict[str, Handler]:
        return {
            "echo": self.echo,
            "count": self.count,
            "refuse": self.refuse,
            "break": self.fail,
            "hang": self.hang,
            "flood": self.flood,
            "odd": self.odd,
            "lose": self.lose_link,
        }

    async def echo(self, message: Message, emit: Emit) -> Message:
        return {"heard": message}

    async def count(self, message: Message, emit: Emit) -> Message:
        for number in range(message["to"]):
            await emit({"event": "number", "n": number})
        return {"counted": message["to"]}

    async def refuse(self, message: Message, emit: Emit) -> Message:
        raise NoRoom("memory is short by 3 GiB")

    async def fail(self, message: Message, emit: Emit) -> Message:
        raise ZeroDivisionError("nobody foresaw this")

    async def hang(self, message: Message, emit: Emit) -> Message:
        self.hanging.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def flood(self, message: Message, emit: Emit) -> Message:
        try:
            while True:
                await emit({"event": "drop", "water": "x" * 65536})
        finally:
            self.cancelled.set()

    async def lose_link(self, message: Message, emit: Emit) -> Message:
        raise trio.BrokenResourceError("some link of the daemon's own")

    async def odd(self, message: Message, emit: Emit) -> Message:
        return {"not json": object()}


@asynccontextmanager
async def serving(state_dir: Path, handlers: Mapping[str, Handler]) -> AsyncIterator[Path]:
    async with ControlServer.claimed(state_dir) as server, trio.open_nursery() as nursery:
        await nursery.start(server.run, handlers)
        yield server.path
        nursery.cancel_scope.cancel()


async def claim(state_dir: Path) -> None:
    async with ControlServer.claimed(state_dir):
        pass


@pytest.fixture
def double() -> DaemonDouble:
    return DaemonDouble()


@pytest.fixture
async def path(tmp_path: Path, double: DaemonDouble) -> AsyncIterator[Path]:
    async with serving(tmp_path / "state", double.handlers()) as socket_path:
        yield socket_path


async def raw(path: Path, sent: bytes) -> Message:
    connection = await trio.open_unix_socket(str(path))
    async with connection:
        await connection.send_all(sent)
        line = await LineReader(connection, 1 << 20).read()
    assert line is not None
    return decode(line)


async def test_a_request_reaches_its_handler_and_the_answer_comes_back(path: Path) -> None:
    assert await request(path, "echo", word="Grüße", n=3) == {
        "ok": True,
        "heard": {"op": "echo", "word": "Grüße", "n": 3},
    }


async def test_events_come_in_order_before_the_final_reply(path: Path) -> None:
    async with stream(path, "count", to=5) as reply:
        *events, final = [message async for message in reply]
    assert [event["n"] for event in events] == [0, 1, 2, 3, 4]
    assert final == {"ok": True, "counted": 5}


async def test_an_error_with_a_code_arrives_with_code_and_text(path: Path) -> None:
    with pytest.raises(RemoteError, match="short by 3 GiB") as caught:
        await request(path, "refuse")
    assert caught.value.code == "no_plan"


@pytest.mark.parametrize(
    ("op", "told"),
    [("break", "ZeroDivisionError: nobody"), ("odd", "TypeError"), ("lose", "BrokenResourceError")],
)
async def test_an_unforeseen_error_is_told_and_the_server_lives_on(path: Path, op: str, told: str) -> None:
    with pytest.raises(RemoteError, match=told) as caught:
        await request(path, op)
    assert caught.value.code == "internal"
    assert (await request(path, "echo"))["ok"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\xff\xfe\n", "not JSON"),
        (b"hello\n", "not JSON"),
        (b"[1]\n", "must be a JSON object"),
        (b'{"op": NaN}\n', "NaN"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"{}\n", "op is None, must be one of: break, count, echo"),
        (b'{"op": ["echo"]}\n', "must be one of"),
        (b'{"op": "format-disk"}\n', "op is 'format-disk'"),
    ],
)
async def test_garbage_is_answered_by_name_of_what_is_wrong(path: Path, sent: bytes, told: str) -> None:
    reply = await raw(path, sent)
    assert reply["ok"] is False
    assert reply["error"]["code"] == "bad_request"
    assert told in reply["error"]["message"]


async def test_a_line_beyond_the_limit_is_refused(path: Path) -> None:
    connection = await trio.open_unix_socket(str(path))
    async with connection:
        with pytest.raises(
            trio.BrokenResourceError
        ):  # the server answers and hangs up before it has read all
            await connection.send_all(b"x" * (2 * REQUEST_LIMIT))
        line = await LineReader(connection, 1 << 20).read()
    assert line is not None
    assert f"longer than {REQUEST_LIMIT} bytes" in decode(line)["error"]["message"]


async def test_a_client_that_says_nothing_is_let_go(path: Path, autojump_clock: MockClock) -> None:
    reply = await raw(path, b'{"op": "echo"')
    assert "no request came within 10 s" in reply["error"]["message"]


async def test_a_client_that_leaves_cancels_its_operation(path: Path, double: DaemonDouble) -> None:
    async with stream(path, "hang"):
        await double.hanging.wait()
        assert not double.cancelled.is_set()
    with trio.fail_after(5):
        await double.cancelled.wait()


async def test_a_client_that_is_cancelled_cancels_its_operation(path: Path, double: DaemonDouble) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, path, "hang")
        await double.hanging.wait()
        nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        await double.cancelled.wait()


async def test_a_client_that_closes_its_sending_half_still_gets_its_answer(path: Path) -> None:
    connection = await trio.open_unix_socket(str(path))
    async with connection:
        await connection.send_all(encode({"op": "count", "to": 2}))
        await connection.send_eof()
        lines = LineReader(connection, 1 << 20)
        replies = [decode(line) for line in [await lines.read() for _ in range(3)] if line is not None]
    assert replies[-1] == {"ok": True, "counted": 2}


async def test_a_half_closed_client_that_leaves_cancels_its_operation(
    path: Path, double: DaemonDouble
) -> None:
    connection = await trio.open_unix_socket(str(path))
    async with connection:
        await connection.send_all(encode({"op": "hang"}))
        await connection.send_eof()
        await double.hanging.wait()
        assert not double.cancelled.is_set()
    with trio.fail_after(5):
        await double.cancelled.wait()


async def test_a_client_that_does_not_read_is_given_up_and_harms_no_other(
    path: Path, double: DaemonDouble, autojump_clock: MockClock
) -> None:
    connection = await trio.open_unix_socket(str(path))
    async with connection:
        await connection.send_all(encode({"op": "flood"}))
        assert (await request(path, "echo"))["ok"]
        await double.cancelled.wait()


async def test_many_clients_are_served_at_once(path: Path) -> None:
    answers: list[Message] = []

    async def ask(number: int) -> None:
        answers.append((await request(path, "echo", n=number))["heard"])

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, number)
    assert sorted(answer["n"] for answer in answers) == list(range(50))


async def test_more_clients_than_places_are_refused_until_one_leaves(
    path: Path, monkeypatch: pytest.MonkeyPatch, double: DaemonDouble
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(server_module._CLIENTS):
            nursery.start_soon(request, path, "hang")
        await double.hanging.wait()
        await wait_all_tasks_blocked(0.01)
        with pytest.raises(RemoteError, match="clients are connected already") as caught:
            await request(path, "echo")
        assert caught.value.code == "busy"
        nursery.cancel_scope.cancel()
    await wait_all_tasks_blocked(0.01)
    assert (await request(path, "echo"))["ok"]


async def test_another_users_connection_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_peer_uid", lambda stream: os.geteuid() + 1)
    with pytest.raises(RemoteError, match="serves its owner only"):
        await request(path, "echo")


@pytest.mark.parametrize("umask", [0o000, 0o777])
async def test_only_the_owner_may_touch_the_socket_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    former = os.umask(umask)
    try:
        async with serving(directory, {}) as path:
            mode = stat.S_IMODE(path.stat().st_mode)
    finally:
        os.umask(former)
    assert mode == 0o600


async def test_the_state_directory_is_made_for_the_owner_alone(path: Path) -> None:
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_state_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(StateDirUnsafe, match="chmod 700"):
        await claim(directory)


async def test_a_second_daemon_is_told_the_pid_of_the_first(path: Path) -> None:
    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}\b"):
        await claim(path.parent)
    assert (await request(path, "echo"))["ok"], "the first daemon's socket must survive the second's attempt"


async def test_a_socket_that_a_dead_daemon_left_behind_is_replaced(tmp_path: Path) -> None:
    socket_path = tmp_path / "control.sock"
    script = (
        "import sys, trio, os\n"
        "from pathlib import Path\n"
        "from swarmd.control import ControlServer\n"
        "async def main():\n"
        "    async with ControlServer.claimed(Path(sys.argv[1])) as server, trio.open_nursery() as nursery:\n"
        "        await nursery.start(server.run, {})\n"
        "        os._exit(9)\n"
        "trio.run(main)\n"
    )
    done = await trio.run_process([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 9
    assert socket_path.is_socket()
    with pytest.raises(DaemonNotRunning):
        await request(socket_path, "status")
    async with serving(tmp_path, DaemonDouble().handlers()):
        assert (await request(socket_path, "echo"))["ok"]
    assert not socket_path.exists()


async def test_without_a_daemon_the_client_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(DaemonNotRunning, match="swarmd join"):
        await request(tmp_path / "control.sock", "status")


async def test_a_path_too_long_for_the_kernel_names_the_setting(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "control.sock"
    with pytest.raises(SocketPathTooLong, match=r"state\.dir"):
        await claim(path.parent)
    with pytest.raises(SocketPathTooLong, match=r"state\.dir"):
        await request(path, "status")


@pytest.mark.parametrize("answer", [b"", b"{", b"nonsense\n", b'{"ok": 1}\n', b"[]\n"])
async def test_a_server_that_talks_nonsense_is_named_as_such(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "control.sock"

    async def talk(connection: trio.SocketStream) -> None:
        async with connection:
            await connection.receive_some()
            await connection.send_all(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, talk, [listener])
            with pytest.raises(ControlProtocolError):
                await request(path, "status")
            nursery.cancel_scope.cancel()


async def test_a_silent_daemon_is_given_up(
    path: Path, double: DaemonDouble, autojump_clock: MockClock
) -> None:
    with pytest.raises(ControlProtocolError, match="silent for 7 s"):
        await request(path, "hang", silence=7)


def test_a_lock_is_free_again_after_its_holder_left(tmp_path: Path) -> None:
    file = tmp_path / "daemon.lock"
    with DaemonLock(file):
        assert file.read_text() == f"{os.getpid()}\n"
        with pytest.raises(AlreadyRunning), DaemonLock(file):
            pass
    with DaemonLock(file):
        pass


def test_a_child_does_not_keep_its_dead_parents_lock(tmp_path: Path) -> None:
    file = tmp_path / "daemon.lock"
    with DaemonLock(file):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with DaemonLock(file):
            pass
    finally:
        child.communicate(b"\n")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), json_values))
def test_every_message_survives_the_wire_on_one_line(message: Message) -> None:
    line = encode(message)
    assert line.index(b"\n") == len(line) - 1
    assert decode(line[:-1]) == message == json.loads(line)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_bad_request(line: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert isinstance(decode(line), dict)
