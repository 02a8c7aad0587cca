"""`swarmd ctl plan` and `swarmd plan`: what-ifs, explanations, verification and pictures."""

from __future__ import annotations

import hashlib
import json
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from reference_swarm import reference_swarm
from test_daemon import has_plan, until

from ring.announcement import signed, verified
from ring.identity import peer_id_of
from ring.perf import PerfBook
from ring.plan import Plan, make_plan
from swarmd import control
from swarmd.cli.plan_svg import plan_svg
from swarmd.cli.run import run
from swarmd.exit_status import ExitStatus
from swarmd.tool_plan import plan_request
from swarmd.tool_request import read_request
from swarmd.what_if import answer_what_if
from swarmd.what_if_form import NOTHING

NODES = [
    {"node_id": "a", "vram_gb": 3, "rtt_ms": 1, "ms_per_layer": 0.5, "uplink_mbps": 100},
    {"node_id": "b", "vram_gb": 3, "rtt_ms": 1, "ms_per_layer": 0.5, "uplink_mbps": 100},
    {"node_id": "c", "vram_gb": 9, "rtt_ms": 1, "ms_per_layer": 9},
]
REQUEST: dict[str, Any] = {"nodes": NODES, "total_layers": 6, "gb_per_layer": 1.0, "sessions": 2}


def signed_plan() -> Plan:
    """Return the plan for REQUEST as hosts with keys would make it."""
    request, _ = plan_request(read_request(json.dumps(REQUEST).encode()), PerfBook())
    keys = {host.peer: SigningKey(hashlib.sha256(host.peer.encode()).digest()) for host in request.hosts}
    names = {name: peer_id_of(bytes(key.verify_key)) for name, key in keys.items()}
    announcements = [
        replace(
            host,
            swarm="home",
            peer=names[host.peer],
            rtt_us=tuple(sorted((names[other], us) for other, us in host.rtt_us)),
        )
        for host in request.hosts
    ]
    inputs = [
        verified(signed(one, lambda data, key=key: key.sign(data).signature, bytes(key.verify_key)))  # type: ignore[misc]
        for one, key in zip(announcements, keys.values(), strict=True)
    ]
    return make_plan(
        keys[request.hosts[0].peer],
        swarm="home",
        term=3,
        number=1,
        shape=request.shape,
        context=1,
        sessions=2,
        inputs=inputs,
        excluded={},
    )


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(REQUEST))
    return file


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"ok": True, "plan": signed_plan().document(), "id": "x", "state": "active"}))
    return file


def test_a_request_is_planned_without_a_daemon(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(request_file)]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in ("plan for a request", "[0, 3)", "[3, 6)", "2 sessions", "the ring is faster without it"):
        assert told in out
    assert run(["plan", str(request_file), "--json"]) == ExitStatus.OK
    answer = json.loads(capsys.readouterr().out)
    assert sorted(answer["ring_order"]) == ["a", "b"]
    assert [stage["n_layers"] for stage in answer["stages"]] == [3, 3]


def test_options_change_what_is_planned(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(request_file), "--json", "--without", "a", "--with", "vram=9,ms=0.1,rtt=4"]) == 0
    assert json.loads(capsys.readouterr().out)["ring_order"] == ["extra-1"]


def test_the_terms_add_up(request_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(request_file), "--explain"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in (
        "n·t + tail",
        "one way",
        "overhead",
        "in all",
        "3.00 ms",
        "100 %",
        "τ: ",
        "frames/s; plain decoding",
    ):
        assert told in out, told


def test_a_saved_plan_is_shown_verified_and_varied(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(plan_file)]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert "(saved)" in out
    assert "verified" not in out
    assert run(["plan", str(plan_file), "--verify"]) == ExitStatus.OK
    assert "its 3 inputs by their hosts; computed again" in capsys.readouterr().out
    assert run(["plan", str(plan_file), "--objective", "latency", "--sessions", "3"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in (
        "hypothetical: nothing of this is carried out",
        "best at latency; 3 sessions",
        "tok/s now → ",
        "+0 %",
    ):
        assert told in out


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (lambda plan: plan["ring"][0].__setitem__("compute_ns", 1), "signature"),
        (lambda plan: plan.__setitem__("inputs", []), "signature"),
        (lambda plan: plan.pop("term"), "schema"),
        (lambda plan: plan.__setitem__("signature", "AAAA"), "signature"),
    ],
)
def test_a_plan_that_was_changed_is_not_verified(
    plan_file: Path, spoil: Any, check: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(plan_file.read_text())["plan"]
    spoil(document)
    plan_file.write_text(json.dumps(document))
    assert run(["plan", str(plan_file), "--verify"]) == ExitStatus.FAILED
    assert f"{check}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "neither a plan"),
        ('{"plan": null}', "neither a plan"),
        ('{"nodes": []}', "nodes: "),
    ],
)
def test_a_file_that_holds_neither_is_refused(
    tmp_path: Path, content: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    assert run(["plan", str(file)]) == ExitStatus.FAILED
    assert told in capsys.readouterr().err


def test_what_does_not_fit_says_what_is_missing(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(request_file), "--without", "b", "--without", "c"]) == ExitStatus.FAILED
    assert "memory is short by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--verify"], "a request is signed by nobody"),
        (["--verify", "--sessions", "3"], "a hypothetical plan is signed by nobody"),
        (["--with", "vram"], "is not of the form vram=24,ms=0.4,rtt=20"),
        (["--with", "vram=1,vram=2"], "is not of the form"),
        (["--with", "vram=1,ms=2"], "with.0.rtt"),
        (["--with", "vram=1,ms=2,rtt=nan"], "with.0.rtt"),
        (["--objective", "speed"], "objective"),
        (["--sessions", "0"], "sessions"),
    ],
)
def test_wrong_options_are_named(
    request_file: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(request_file), *options]) == ExitStatus.USAGE
    assert told in capsys.readouterr().err


def test_the_picture_holds_every_host(request_file: Path, tmp_path: Path) -> None:
    assert run(["plan", str(request_file), "--svg", str(tmp_path / "ring.svg")]) == ExitStatus.OK
    words = pictured((tmp_path / "ring.svg").read_text(encoding="utf-8"))
    for told in (
        "a · head · slowest",
        "b · tail",
        "0–2",
        "3–5",
        "left out",
        "c: the ring is faster without it",
    ):
        assert told in words


def pictured(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]  # noqa: S314


@given(st.integers(1, 40), st.text(max_size=12))
def test_a_picture_is_sound_whatever_it_shows(count: int, name: str) -> None:
    nodes = [{"node_id": f"n{place}", "vram_gb": 1, "rtt_ms": 1} for place in range(min(count, 6))]
    document = {"nodes": nodes, "total_layers": len(nodes), "gb_per_layer": 1.0}
    request, _ = plan_request(read_request(json.dumps(document).encode()), PerfBook())
    answer = answer_what_if(request, NOTHING)
    stage = answer["plan"]["ring"][0]
    answer["plan"]["ring"] = [
        {**stage, "peer": f"{name}{place}", "lo": place, "hi": place + 1} for place in range(count)
    ]
    words = pictured(plan_svg(answer))
    assert sum("head" in word.split() or "tail" in word.split() for word in words) == min(count, 2)


async def test_a_daemon_answers_what_ifs_about_its_swarm() -> None:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        async with reference_swarm(Path(home)) as swarm:
            first = await swarm.add()
            await until(first, "plan", has_plan)
            what_if = {"with": [{"vram": 10, "ms": 1e-6, "rtt": 0}], "sessions": 1}
            answer = await control.request(first.socket, "plan", what_if=what_if)
            assert answer["state"] == "hypothetical"
            assert answer["plan"]["sessions"] == 1
            assert [stage["peer"] for stage in answer["now"]["ring"]] == [first.node.peer_id]
            assert answer["plan"]["millitok_s"] >= answer["now"]["millitok_s"]
            for wrong in ({"without": ["x"]}, {"model": "y"}, {"speed": 1}):
                with pytest.raises(control.RemoteError) as caught:
                    await control.request(first.socket, "plan", what_if=wrong)
                assert caught.value.code in ("bad_request", "model_unknown")
            socket = str(first.socket.parent)
            arguments = ["ctl", "plan", "--verify", "--set", f"state.dir={socket}"]
            assert await trio.to_thread.run_sync(run, arguments) == ExitStatus.OK
