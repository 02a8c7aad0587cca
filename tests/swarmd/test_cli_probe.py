"""`swarmd probe`: from config.json alone, by the planner's own estimator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from registry.models import BUNDLED
from runtimes import open_runtime
from runtimes.base import ModelSource
from swarmd.cli.run import run
from swarmd.engine import PROBE_WIDTHS
from swarmd.exit_status import ExitStatus

TALE = BUNDLED / "tale"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A directory with nothing but tale's configuration."""
    (tmp_path / "bare").mkdir()
    shutil.copy(TALE / "config.json", tmp_path / "bare")
    return tmp_path / "bare"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["probe", "--json", *arguments]) == ExitStatus.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_configuration_alone_says_what_the_whole_checkpoint_says(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_config, by_registry = answer(capsys, "--model", str(bare)), answer(capsys)
    assert by_registry["model"] == by_config["model"] | {"id": "tale"}
    assert by_config["sizes"] == by_registry["sizes"]
    assert by_config["fits"] == by_registry["fits"]
    shape = open_runtime("hf").shape(ModelSource("tale", TALE, 8, "LlamaForCausalLM"))
    assert by_config["sizes"]["layer"] == max(shape.layer_bytes)
    assert by_config["sizes"]["weights"] == shape.block_memory(0, 8, context=0, sessions=0).weights
    assert by_config["fits"]["whole"]["fits"]
    assert by_config["fits"]["head"]["layers"] == 7
    for found in (by_config, by_registry):
        memory = found["memory"]
        assert 0 < memory["limit"] < memory["free"] <= memory["total"]
        assert [int(width) for width in found["speed"]["layer_ms"]] == list(PROBE_WIDTHS)
        assert all(ms > 0 for ms in found["speed"]["layer_ms"].values())
        assert found["speed"]["whole_tok_s"] > 0


def test_the_limit_and_the_sessions_decide_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    tight = answer(capsys, "--memory-limit", "12MiB", "--context", "64", "--sessions", "1")["fits"]
    assert 0 < tight["middle"]["layers"] < 8
    assert not tight["whole"]["fits"]
    assert (tight["context"], tight["sessions"]) == (64, 1)
    tighter = answer(capsys, "--memory-limit", "12MiB", "--context", "1024", "--sessions", "4")["fits"]
    assert tighter["middle"]["layers"] < tight["middle"]["layers"]
    for fits in (tight, tighter):
        for kind in ("head", "middle", "tail"):
            assert fits[kind]["weights"] + fits[kind]["kv"] + fits[kind]["workspace"] <= 12 << 20


def test_a_device_without_room_for_a_layer_is_told_what_it_lacks(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtimes.hf.runtime.memory_free", lambda _: 1 << 20)
    found = answer(capsys, "--model", str(bare))
    assert found["speed"] is None
    assert "not one layer fits" in found["not_measured"]
    assert found["fits"]["middle"]["layers"] == 0


def test_people_get_a_table(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--model", str(bare), "--sessions", "1"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in ("LlamaForCausalLM, 8 layers", "with 1 session of 1024 tokens", "7 layers", "tok/s", "whole"):
        assert told in out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--model", "nosuch"], ExitStatus.REGISTRY, "nosuch"),
        (["--model", "GLM-5.2"], ExitStatus.MODEL, "zai-org/GLM-5.2"),
        (["--model", "./absent"], ExitStatus.MODEL, "config.json does not exist"),
        (["--memory-limit", "lots"], ExitStatus.CONFIGURATION, "runtime.memory_limit"),
        (["--context", "0"], ExitStatus.USAGE, "--context"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_status(
    arguments: list[str], status: ExitStatus, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", *arguments]) == status
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line.startswith("swarmd: error: "), told in line) == ("", True, True), line
