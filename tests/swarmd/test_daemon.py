"""Daemons among themselves: joining, planning, refusing, losing each other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from reference_swarm import CONTEXT, SESSIONS, ReferenceSwarm, RunningDaemon, reference_swarm

from ring.generation import Done, ErrorEvent, TokenEvent, verify_done
from ring.generation_codec import MAX_EVENT, event_from_map
from runtimes import open_runtime
from runtimes.base import ModelSource
from runtimes.reference import generate
from swarmd import control
from swarmd.demo import tightest_limit
from swarmd.net import CallFailed, ChannelBroken, NetError, open_node, pack, unpack


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as directory:
        yield Path(directory)


def source(home: Path) -> ModelSource:
    return ModelSource("ref", home / "model", 6, "ReferenceForCausalLM")


def limit_for(home: Path, hosts: int) -> int:
    shape = open_runtime("hf", name="reference").shape(source(home))
    return tightest_limit(shape, hosts, context=CONTEXT, sessions=SESSIONS)


async def until(daemon: RunningDaemon, op: str, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    with trio.fail_after(40):
        while True:
            answer = await control.request(daemon.socket, op)
            if wanted(answer):
                return answer
            await trio.sleep(0.05)


def has_plan(answer: dict[str, Any]) -> bool:
    return answer["plan"] is not None


async def start(swarm: ReferenceSwarm, home: Path, hosts: int) -> dict[str, Any]:
    """Start daemons that can serve only together; return the plan's answer."""
    limit = limit_for(home, hosts)
    for _ in range(hosts):
        await swarm.add(runtime__memory_limit=limit)
    answers = [await until(daemon, "plan", has_plan) for daemon in swarm.running]
    assert len({answer["id"] for answer in answers}) == 1
    return answers[0]


async def ask(daemon: RunningDaemon, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    tokens: list[int] = []
    final: dict[str, Any] = {}
    async with control.stream(daemon.socket, "generate", **fields) as reply:
        async for message in reply:
            tokens += message.get("tokens", []) if message.get("event") == "token" else []
            final = message
    return tokens, final


@pytest.mark.parametrize("hosts", [1, 2, 3])
async def test_any_daemon_can_be_asked_and_every_ring_says_the_same(hosts: int, home: Path) -> None:
    async with reference_swarm(home) as swarm:
        plan = await start(swarm, home, hosts)
        assert len(plan["plan"]["ring"]) == hosts
        expected = generate(home / "model", (5, 6, 7), 10)
        for daemon in swarm.running:
            tokens, final = await ask(daemon, tokens=[5, 6, 7], max_tokens=10)
            assert tokens == expected[: len(tokens)]
            assert len(tokens) == 10 or tokens[-1] == 1
            assert final["receipts_verified"] == hosts


async def test_all_follow_one_leader_and_all_say_so(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        await start(swarm, home, 3)
        leaders = [(await control.request(d.socket, "status"))["leader"] for d in swarm.running]
        assert len({(leader["peer"], leader["term"]) for leader in leaders}) == 1
        assert sum(leader["me"] for leader in leaders) == 1


async def test_a_leader_that_leaves_is_replaced_and_the_rest_plan_anew(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        for _ in range(3):
            await swarm.add(runtime__memory_limit=limit_for(home, 2))
        await until(swarm.running[0], "plan", has_plan)
        status = await control.request(swarm.running[0].socket, "status")
        first = status["leader"]
        leader = next(d for d in swarm.running if d.node.peer_id == first["peer"])
        others = [d for d in swarm.running if d is not leader]
        leader.scope.cancel()

        def replaced(answer: dict[str, Any]) -> bool:
            return bool(answer["leader"]) and answer["leader"]["peer"] != first["peer"]

        terms = {(await until(d, "status", replaced))["leader"]["term"] for d in others}
        assert len(terms) == 1
        assert terms.pop() > first["term"]

        def without(answer: dict[str, Any]) -> bool:
            ring = answer["plan"]["ring"] if answer["plan"] else []
            return bool(ring) and leader.node.peer_id not in {stage["peer"] for stage in ring}

        for daemon in others:
            await until(daemon, "plan", without)
        _, final = await ask(others[0], tokens=[3, 4], max_tokens=4)
        assert final["ok"]


async def test_a_member_that_leaves_breaks_the_ring_and_its_return_mends_it(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        plan = await start(swarm, home, 2)
        tail = next(d for d in swarm.running if d.node.peer_id == plan["plan"]["ring"][-1]["peer"])
        other = next(d for d in swarm.running if d is not tail)
        tail.scope.cancel()
        answer = await until(other, "plan", lambda answer: not has_plan(answer))
        assert answer["reason"]
        swarm.running.remove(tail)
        await swarm.add(runtime__memory_limit=limit_for(home, 2))
        await until(other, "plan", has_plan)
        _, final = await ask(other, tokens=[3, 4], max_tokens=4)
        assert final["receipts_verified"] == 2


async def test_a_stranger_can_generate_over_libp2p_and_verify_the_receipts(home: Path) -> None:
    async with reference_swarm(home) as swarm, open_node(b"c" * 32, ["/ip4/127.0.0.1/tcp/0"]) as client:
        await start(swarm, home, 2)
        for daemon in swarm.running:
            await client.connect(daemon.node.peer_id, daemon.node.addresses())
            channel = await client.open(daemon.node.peer_id, "/swarmd/generate/1", max_message=MAX_EVENT)
            async with channel:
                await channel.send(
                    pack({"model": "ref", "tokens": [9, 8], "max_tokens": 6, "nonce": "ab" * 8})
                )
                await channel.end()
                events = [event_from_map(unpack(message)) async for message in channel]
            tokens = [token for event in events if isinstance(event, TokenEvent) for token in event.tokens]
            done = events[-1]
            assert isinstance(done, Done)
            assert verify_done([9, 8], tokens, done, nonce="ab" * 8) == 2
        peers = await control.request(swarm.running[0].socket, "peers")
        assert client.peer_id not in {row["peer"] for row in peers["peers"]}


@pytest.mark.parametrize(
    "request_map",
    [
        {},
        {"model": 5, "prompt": "x", "max_tokens": 1},
        {"model": "", "prompt": "x", "tokens": [1], "max_tokens": 1},
        {"model": "", "tokens": [1], "max_tokens": 0},
        {"model": "", "tokens": [], "max_tokens": 1},
    ],
)
async def test_a_bad_request_gets_a_named_error(home: Path, request_map: dict[str, Any]) -> None:
    async with reference_swarm(home) as swarm, open_node(b"c" * 32, ["/ip4/127.0.0.1/tcp/0"]) as client:
        await start(swarm, home, 1)
        host = swarm.running[0].node
        await client.connect(host.peer_id, host.addresses())
        async with await client.open(host.peer_id, "/swarmd/generate/1", max_message=MAX_EVENT) as channel:
            await channel.send(pack(request_map))
            event = event_from_map(unpack(await channel.receive()))
        assert isinstance(event, ErrorEvent)
        assert event.code == "bad_request"


async def test_more_sessions_than_promised_are_refused_as_busy(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        await start(swarm, home, 2)
        codes: list[str] = []

        async def one() -> None:
            try:
                _, final = await ask(swarm.running[1], tokens=[4, 5, 6], max_tokens=100)
                codes.append("ok" if final["ok"] else "?")
            except control.RemoteError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(SESSIONS + 3):
                nursery.start_soon(one)
        assert set(codes) == {"ok", "busy"}
        for daemon in swarm.running:
            await until(daemon, "status", lambda answer: answer["sessions"]["held"] == 0)


async def test_hosts_of_another_swarm_are_refused_by_name(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        first = await swarm.add()
        second = await swarm.add(swarm__name="other")
        status = await until(
            second, "status", lambda answer: any(e["event"] == "host_refused" for e in answer["log"])
        )
        reason = next(e["reason"] for e in status["log"] if e["event"] == "host_refused")
        assert "'other'" in reason
        assert "'reference'" in reason
        assert (await control.request(first.socket, "status"))["hosts"] == 1


async def test_a_stranger_can_neither_assign_nor_open_edges_nor_ask_for_the_ring(home: Path) -> None:
    async with reference_swarm(home) as swarm, open_node(b"m" * 32, ["/ip4/127.0.0.1/tcp/0"]) as stranger:
        plan = await start(swarm, home, 2)
        host = swarm.running[0].node
        await stranger.connect(host.peer_id, host.addresses())
        async with await stranger.open(host.peer_id, "/swarmd/ring/1", max_message=1 << 20) as edge:
            await edge.send(pack({"plan": plan["id"], "role": "forward"}))
            assert unpack(await edge.receive()) == {"ok": False, "code": "ring_changed"}
        for garbage in (b"\xc1", b"\x07", pack({"plan": 7}), pack({"plan": "x", "role": "sideways"})):
            edge = await stranger.open(host.peer_id, "/swarmd/ring/1", max_message=1 << 20)
            await edge.send(garbage)
            with pytest.raises(ChannelBroken):
                await edge.receive()
        async with await stranger.open(host.peer_id, "/swarmd/assign/1", max_message=5 << 20) as link:
            served = await stranger.call(host.peer_id, "/swarmd/plan/1", {}, max_message=5 << 20)
            await link.send(pack({"op": "prepare", "plan": served["plan"]}))
            answer = unpack(await link.receive())
            assert answer["op"] == "refused"
            assert "leader" in answer["message"]
        async with await stranger.open(host.peer_id, "/swarmd/assign/1", max_message=5 << 20) as link:
            await link.send(pack({"op": "prepare", "plan": b"{}"}))
            assert unpack(await link.receive())["op"] == "refused"
        with pytest.raises(CallFailed):
            await stranger.call(host.peer_id, "/swarmd/hello/1", {"wire": 1})
        with pytest.raises(CallFailed) as mismatch:
            await stranger.call(
                host.peer_id,
                "/swarmd/hello/1",
                {"wire": 99, "version": "9.9.9", "swarm": "reference", "announcement": None, "peers": []},
            )
        assert mismatch.value.code == "version_mismatch"
        assert "9.9.9" in str(mismatch.value)
        _, final = await ask(swarm.running[1], tokens=[4], max_tokens=3)
        assert final["ok"]


async def test_a_client_that_breaks_off_frees_its_session(home: Path) -> None:
    async with reference_swarm(home) as swarm, open_node(b"c" * 32, ["/ip4/127.0.0.1/tcp/0"]) as client:
        await start(swarm, home, 2)
        host = swarm.running[1].node
        await client.connect(host.peer_id, host.addresses())
        channel = await client.open(host.peer_id, "/swarmd/generate/1", max_message=MAX_EVENT)
        await channel.send(pack({"model": "", "tokens": [2, 3], "max_tokens": 120}))
        await channel.receive()
        await channel.abort()
        for daemon in swarm.running:
            await until(daemon, "status", lambda answer: answer["sessions"] == {"coordinated": 0, "held": 0})


async def test_hosts_on_one_network_find_each_other_without_any_address(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        first = await swarm.add(swarm__mdns="true", swarm__name="found-by-mdns", swarm__bootstrap="")
        await swarm.add(swarm__mdns="true", swarm__name="found-by-mdns", swarm__bootstrap="")
        await until(first, "status", lambda answer: answer["hosts"] == 2)


async def test_restarting_a_host_makes_one_host_not_two(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        first = await swarm.add()
        second = await swarm.add()
        await until(first, "status", lambda answer: answer["hosts"] == 2)
        second.scope.cancel()
        swarm.running.remove(second)
        swarm._count -= 1  # the same home, so the same identity
        again = await _retry(swarm)
        assert again.node.peer_id == second.node.peer_id
        await until(first, "status", lambda answer: answer["hosts"] == 2)
        answer = await control.request(first.socket, "peers")
        assert len([row for row in answer["peers"] if row["peer"] == second.node.peer_id]) == 1


async def _retry(swarm: ReferenceSwarm) -> RunningDaemon:
    """Start again as soon as the former daemon has given its lock back."""
    with trio.fail_after(20):
        while True:
            count = swarm._count
            try:
                return await swarm.add()
            except (control.AlreadyRunning, NetError):
                swarm._count = count
                await trio.sleep(0.1)
