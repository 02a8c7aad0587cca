"""What bad neighbours, bad files and bad prompts do to a ring: nothing but what is named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from reference_swarm import reference_swarm
from test_daemon import ask, has_plan, limit_for, start, until

from ring.generation import ErrorEvent
from ring.generation_codec import MAX_EVENT, decode_event
from swarmd import control
from swarmd.net import ChannelBroken, open_node, pack


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as directory:
        yield Path(directory)


async def test_junk_on_an_edge_costs_the_ring_and_not_the_daemon(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        first = await start(swarm, home, 2)
        for daemon in swarm.running:
            runner = daemon.daemon._serving._runner
            assert runner is not None
            edge = runner._upstream or runner._downstream
            assert edge is not None
            await edge._stream.write(b"\xff\xff\xff\xff")
        for daemon in swarm.running:
            await until(daemon, "plan", lambda answer: has_plan(answer) and answer["id"] != first["id"])
        _, final = await ask(swarm.running[0], tokens=[3, 4], max_tokens=4)
        assert final["receipts_verified"] == 2


async def test_a_stranger_can_send_no_more_than_a_greeting_to_the_ring(home: Path) -> None:
    async with reference_swarm(home) as swarm, open_node(b"s" * 32, ["/ip4/127.0.0.1/tcp/0"]) as stranger:
        await start(swarm, home, 1)
        host = swarm.running[0].node
        await stranger.connect(host.peer_id, host.addresses())
        edge = await stranger.open(host.peer_id, "/swarmd/ring/1", max_message=1 << 20)
        await edge.send(b"x" * 5000)
        with pytest.raises(ChannelBroken):
            await edge.receive()


async def test_a_head_without_a_tokenizer_is_refused_by_name(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        (home / "model" / "tokenizer.json").unlink()
        host = await swarm.add()
        answer = await until(host, "plan", lambda answer: "tokenizer.json" in str(answer["reason"]))
        assert answer["plan"] is None
        assert (await control.request(host.socket, "status"))["block"]["state"] == "ready"


@pytest.mark.parametrize(
    "prompt", [{"prompt": "a b " * 900_000}, {"tokens": [5] * 900_000}], ids=["text", "tokens"]
)
async def test_a_prompt_that_cannot_fit_is_refused_without_being_encoded(
    home: Path, prompt: dict[str, object]
) -> None:
    async with reference_swarm(home) as swarm, open_node(b"c" * 32, ["/ip4/127.0.0.1/tcp/0"]) as client:
        await start(swarm, home, 2)
        for daemon in swarm.running:
            host = daemon.node
            await client.connect(host.peer_id, host.addresses())
            async with await client.open(
                host.peer_id, "/swarmd/generate/1", max_message=MAX_EVENT
            ) as channel:
                await channel.send(pack({"model": "", "max_tokens": 1, **prompt}))
                with trio.fail_after(20):
                    event = decode_event(await channel.receive())
            assert isinstance(event, ErrorEvent)
            assert event.code == "context_exceeded"
        await until(swarm.running[0], "plan", has_plan)


async def test_a_stage_whose_runtime_fails_ends_the_session_and_not_the_daemon(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtimes.reference.runtime import ReferenceRuntime

    async with reference_swarm(home) as swarm:
        await start(swarm, home, 2)

        def broken(self: object, frames: object) -> None:
            raise ZeroDivisionError("as a faulty plugin would")

        with monkeypatch.context() as patch:
            patch.setattr(ReferenceRuntime, "forward", broken)
            with pytest.raises(control.RemoteError) as error:
                await ask(swarm.running[0], tokens=[3, 4], max_tokens=4)
        assert error.value.code == "runtime_failed"
        _, final = await ask(swarm.running[1], tokens=[3, 4], max_tokens=4)
        assert final["receipts_verified"] == 2


async def test_hosts_that_cannot_serve_do_not_keep_the_others_from_it(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        useless = await swarm.add(runtime__name="hf")  # the checkpoint is none of its
        await until(useless, "status", lambda answer: "runtime" in str(answer["waiting_for"]))
        able = [await swarm.add(runtime__memory_limit=limit_for(home, 2)) for _ in range(2)]
        for daemon in able:
            await until(daemon, "plan", has_plan)
        _, final = await ask(able[0], tokens=[3, 4], max_tokens=4)
        assert final["receipts_verified"] == 2
