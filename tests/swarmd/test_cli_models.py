"""`swarmd models import` as a user sees it; what an import makes is the business of tests/runtimes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import registry
from registry.models import BUNDLED, parse_registry
from registry.publish import publish
from swarmd.cli.run import run
from swarmd.exit_status import ExitStatus

TALE = BUNDLED / "tale"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_row_of_an_import_can_be_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nacl.signing import SigningKey

    arguments = ["models", "import", str(TALE), "--id", "my-tale", "--shard-size", "1MiB", "--json"]
    assert run(arguments) == ExitStatus.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["path"] == str(tmp_path / "tale")
    assert answer["chat_template"] is True
    key = SigningKey(b"k" * 32)
    rows = json.dumps({"schema": "shard-models/1", "version": 1, "models": [answer["row"]]}).encode()
    signed, _ = publish(rows, key)
    row = parse_registry(signed, [bytes(key.verify_key)]).row("my-tale")
    bundled = json.loads((BUNDLED / "models.json").read_text())["models"][0]
    assert (row.hf_arch, row.layer_count, row.quant) == (
        bundled["hfArch"],
        bundled["layerCount"],
        bundled["quant"],
    )
    assert row.gb_per_layer == pytest.approx(bundled["gbPerLayer"], abs=1e-6)
    assert Path(row.engine_path) == tmp_path / "tale"


def test_people_are_told_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "import", str(TALE), "--out", "deep/er"]) == ExitStatus.OK
    out = capsys.readouterr().out
    rows = out[out.index("{") : out.rindex("}") + 1]
    assert json.loads(rows)["models"][0]["id"] == "er"
    assert "python -m registry.publish" in out
    assert f'path = "{tmp_path}/deep/er"' in out
    assert (tmp_path / "deep/er/config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["absent.gguf"], ExitStatus.MODEL, "absent.gguf does not exist"),
        ([str(TALE), "--out", "."], ExitStatus.MODEL, "exists already"),
        ([str(TALE), "--out", "/"], ExitStatus.USAGE, "--out"),
        ([str(TALE), "--shard-size", "much"], ExitStatus.USAGE, "--shard-size"),
        ([str(TALE), "--shard-size", "0"], ExitStatus.USAGE, "--shard-size"),
        ([str(TALE), "--dtype", "int4"], ExitStatus.USAGE, "--dtype"),
        ([str(Path(registry.__file__)), "--out", "out"], ExitStatus.MODEL, "no GGUF file"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_status(
    arguments: list[str], status: ExitStatus, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "import", *arguments]) == status
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line.startswith("swarmd: error: "), told in line) == ("", True, True), line
