from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from registry.keys import load_key
from registry.models import BUNDLED, load_registry
from registry.publish import main

ROWS = str(BUNDLED / "models.src.json")


def test_a_published_registry_is_read_by_who_pins_its_publisher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, out = tmp_path / "publisher.key", tmp_path / "models.json"
    assert main([ROWS, "--key", str(key), "--create-key", "--out", str(out)]) == 0
    public = bytes(load_key(key).verify_key)
    assert len(load_registry(out, [public]).rows) == 4
    assert "4 models" in capsys.readouterr().out
    first = out.read_bytes()
    assert main([ROWS, "--key", str(key), "--out", str(out)]) == 0
    assert out.read_bytes() == first
    assert sorted(os.listdir(tmp_path)) == ["models.json", "publisher.key"]


def test_no_key_is_made_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ROWS, "--key", str(tmp_path / "k"), "--out", str(tmp_path / "o")]) == 1
    assert "there is no key file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ("{", "cannot be signed|can be signed"),
        ("[]", "not an object"),
        ('{"schema":"shard-models/1","version":1,"models":[{"id":"x"}]}', "hfArch"),
        ('{"schema":"shard-models/1","version":NaN,"models":[]}', "canonical"),
    ],
)
def test_what_consumers_would_refuse_is_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, text: str
) -> None:
    source, out = tmp_path / "rows.json", tmp_path / "models.json"
    source.write_text(rows)
    out.write_text("the old one")
    assert main([str(source), "--key", str(tmp_path / "k"), "--create-key", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert any(part in error for part in text.split("|"))
    assert out.read_text() == "the old one"


def test_the_rows_are_published_in_their_canonical_form(tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    assert main([ROWS, "--key", str(tmp_path / "k"), "--create-key", "--out", str(out)]) == 0
    data = out.read_bytes()
    assert (
        data
        == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )


def test_the_example_of_the_documentation_can_be_published(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "registry.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "rows.json").write_text(example)
    key, out = tmp_path / "k", tmp_path / "o"
    assert main([str(tmp_path / "rows.json"), "--key", str(key), "--create-key", "--out", str(out)]) == 0
    assert load_registry(out, [bytes(load_key(key).verify_key)]).row("my-model").layer_count == 32
