"""What a user sees when something is wrong: a named error, a stated wait, an exit status; never a hang or a traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from nacl.signing import SigningKey
from safetensors.torch import load_file, save_file
from served_swarm import ServedModel, swarm_of
from signed_tale import signed_registry

from ring.identity import peer_id_of
from runtimes.base import ModelSource
from swarmd import control
from swarmd.local_swarm import LocalHost, local_swarm

pytestmark = pytest.mark.swarm

STORY = [{"role": "user", "content": "Tell me a story about small computers that work together."}]


def join(home: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Run `swarmd join` until it ends by itself."""
    sets = [part for setting in settings for part in ("--set", setting)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("SWARMD_")}
    return subprocess.run(
        [sys.executable, "-m", "swarmd", "join", "--set", f"state.dir={home / 'state'}", *sets],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=home,
        env=environment,
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a refusal."""
    lines = result.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("swarmd: error:")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return errors[0]


def test_a_registry_of_a_publisher_who_is_not_pinned_is_refused(swarm_home: Path) -> None:
    path, _ = signed_registry(swarm_home)
    result = join(swarm_home, f"registry.path={path}")
    assert result.returncode == 5
    assert "pinned" in refused(result)


def test_a_tampered_registry_is_refused(swarm_home: Path) -> None:
    path, key = signed_registry(swarm_home)
    path.write_text(path.read_text().replace('"layerCount": 8', '"layerCount": 9'))
    result = join(swarm_home, f"registry.path={path}", f"registry.publishers={key}")
    assert result.returncode == 5
    assert "signature" in refused(result)


@pytest.mark.parametrize(
    ("changes", "named"), [({"adapter": "magic"}, "magic"), ({"layerCount": 0}, "layerCount")]
)
def test_an_impossible_row_is_refused(swarm_home: Path, changes: dict[str, Any], named: str) -> None:
    path, key = signed_registry(swarm_home, **changes)
    result = join(swarm_home, f"registry.path={path}", f"registry.publishers={key}")
    assert result.returncode == 5
    assert named in refused(result)


def test_a_registry_with_a_model_twice_is_refused(swarm_home: Path) -> None:
    path, key = signed_registry(swarm_home, rows=2)
    result = join(swarm_home, f"registry.path={path}", f"registry.publishers={key}")
    assert result.returncode == 5
    assert "tale" in refused(result)


def test_a_port_in_use_is_named(swarm_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = join(swarm_home, f"swarm.listen=/ip4/127.0.0.1/tcp/{port}", "swarm.mdns=false")
    assert result.returncode == 6
    assert str(port) in refused(result)


def test_a_key_file_that_others_can_read_is_refused(swarm_home: Path) -> None:
    state = swarm_home / "state"
    state.mkdir(mode=0o700)
    key = state / "identity.key"
    key.write_text("x")
    key.chmod(0o644)
    result = join(swarm_home, "swarm.listen=/ip4/127.0.0.1/tcp/0", "swarm.mdns=false")
    assert result.returncode == 4
    assert "chmod 600" in refused(result)


async def eventually(host: LocalHost, op: str, wanted: Any) -> dict[str, Any]:
    """Ask until the answer is as wanted."""
    with trio.fail_after(90):
        while True:
            answer = await host.ask(op)
            if wanted(answer):
                return answer
            await trio.sleep(0.2)


async def test_a_host_alone_says_what_it_waits_for(swarm_home: Path) -> None:
    settings = {"runtime.memory_limit": "4MiB", "runtime.threads": 1, "plan.settle_seconds": 0.5}
    async with local_swarm(swarm_home, "test-alone", settings) as swarm:
        host = await swarm.add({"swarm.bootstrap": [_nobody()]})
        status = await eventually(
            host, "status", lambda answer: "bytes" in str(answer["waiting_for"]) and answer["leader"]
        )
        assert "no other host has been found yet" in status["waiting_for"]
        assert "bootstrap" in status["waiting_for"]
        with pytest.raises(control.RemoteError) as error:
            await host.ask("generate", messages=STORY, max_tokens=5)
        assert error.value.code == "no_plan"


def _nobody() -> str:
    return f"/ip4/127.0.0.1/tcp/1/p2p/{peer_id_of(bytes(SigningKey(b'n' * 32).verify_key))}"


async def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_name(
    swarm_home: Path, tale: ModelSource
) -> None:

    broken = swarm_home / "broken"
    broken.mkdir()
    for file in tale.path.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tale.path / "model.safetensors")
    del tensors["model.layers.5.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    settings = {"model.path": str(broken), "runtime.threads": 1, "plan.settle_seconds": 0.5}
    async with local_swarm(swarm_home, "test-broken", settings) as swarm:
        host = await swarm.add()
        answer = await eventually(host, "plan", lambda answer: "layers.5" in str(answer.get("reason")))
        assert "up_proj" in answer["reason"]
        assert host.running


async def test_a_stage_killed_in_mid_generation_gives_a_named_error_and_the_ring_returns(
    swarm_home: Path, served: ServedModel
) -> None:
    async with swarm_of(swarm_home, served, 3) as swarm:
        ring = (await swarm.ring(within=60))["plan"]["ring"]
        peers = {(await host.status())["peer"]: host for host in swarm.hosts}
        victim = peers[ring[1]["peer"]]
        client = peers[ring[2]["peer"]]
        with pytest.raises(control.RemoteError) as error:
            await _generate_and(victim.kill, client)
        assert error.value.code == "stage_lost"
        assert ring[1]["peer"] in str(error.value)

        await eventually(client, "plan", lambda answer: answer["plan"] is None)
        await swarm.start(victim, {})
        again = await eventually(client, "plan", lambda answer: answer["plan"] is not None)
        assert {stage["peer"] for stage in again["plan"]["ring"]} == set(peers)
        final = await client.ask("generate", messages=STORY, max_tokens=20)
        assert final["receipts_verified"] == 3


async def _generate_and(act: Callable[[], None], client: LocalHost) -> None:
    """Generate, and act at the third token."""
    count = 0
    async with control.stream(client.socket, "generate", messages=STORY, max_tokens=200) as reply:
        async for message in reply:
            count += message.get("event") == "token"
            if count == 3:
                act()


async def test_a_client_that_goes_away_frees_its_session(swarm_home: Path, served: ServedModel) -> None:
    async with swarm_of(swarm_home, served, 2) as swarm:
        async with control.stream(swarm.hosts[0].socket, "generate", messages=STORY, max_tokens=200) as reply:
            async for message in reply:
                if message.get("event") == "token":
                    break
        for host in swarm.hosts:
            await eventually(
                host, "status", lambda answer: answer["sessions"] == {"coordinated": 0, "held": 0}
            )


async def test_two_demos_at_once_do_not_meet(swarm_home: Path) -> None:
    results: list[dict[str, Any]] = []

    async def demo() -> None:
        process = await trio.run_process(
            [sys.executable, "-m", "swarmd", "demo", "--json", "--max-tokens", "24"],
            capture_stdout=True,
            cwd=swarm_home,
        )
        results.append(json.loads(process.stdout))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(demo)
        nursery.start_soon(demo)
    for result in results:
        assert result["ok"]
        assert result["hosts"] == len(result["ring"]) == result["receipts_verified"] == 3
    assert not {stage["peer"] for stage in results[0]["ring"]} & {
        stage["peer"] for stage in results[1]["ring"]
    }
