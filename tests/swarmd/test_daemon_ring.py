"""What bad neighbours, bad files and bad prompts do to a ring: nothing but what is named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


async def test_a_seed_gives_the_same_tokens_with_any_drafter_and_any_number_of_hosts(home: Path) -> None:
    warm = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
    }
    question: dict[str, Any] = {"tokens": [3, 4, 3, 4], "max_tokens": 12}
    for name in ("one", "three"):
        (home / name).mkdir()
    async with reference_swarm(home / "one") as swarm:
        await start(swarm, home / "one", 1)
        alone, _ = await ask(swarm.running[0], **question, sampling=warm | {"seed": 5}, draft="none")
        other, _ = await ask(swarm.running[0], **question, sampling=warm | {"seed": 6})
        greedy, _ = await ask(swarm.running[0], **question)
        assert alone != other
        assert alone != greedy
    async with reference_swarm(home / "three") as swarm:
        await start(swarm, home / "three", 3)
        for draft in ("none", "ngram"):
            tokens, final = await ask(swarm.running[1], **question, sampling=warm | {"seed": 5}, draft=draft)
            assert tokens == alone
            assert final["receipts_verified"] == 3


async def test_what_a_request_says_of_sampling_is_checked(home: Path) -> None:
    async with reference_swarm(home) as swarm:
        await start(swarm, home, 1)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"sampling": {"temperature": -1}}, r"sampling\.temperature"),
            ({"sampling": {"logit_bias": [[1 << 20, 1]]}}, "logit_bias names token"),
            ({"stop": [""]}, r"stop\[0\] is empty"),
        ]
        for fields, named in wrong:
            with pytest.raises(control.RemoteError, match=named):
                await ask(swarm.running[0], tokens=[3], max_tokens=2, **fields)


async def test_text_ends_before_what_it_is_to_stop_at(home: Path) -> None:
    async def said(**fields: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        text, messages = "", []
        async with control.stream(
            swarm.running[0].socket, "generate", tokens=[3, 4], max_tokens=16, **fields
        ) as reply:
            async for message in reply:
                messages.append(message)
                text += message.get("text", "")
        return text, messages[0], messages[-1]

    async with reference_swarm(home) as swarm:
        await start(swarm, home, 1)
        whole, _, _ = await said()
        stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
        text, _, final = await said(stop=[stop, "never said"])
        assert text == whole[: whole.index(stop)]
        assert final["finish_reason"] == "stop"
        assert final["tokens"] < 16
        drawn, started, _ = await said(sampling={"temperature": 1.0})
        again, _, _ = await said(sampling={"temperature": 1.0, "seed": started["seed"]})
        assert again == drawn
