from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from conf.load import load
from conf.schema import Config
from conf.settings import sections, settings
from conf.template import template_text

ROOT = Path(__file__).parents[2]
DOCUMENTATION = ROOT / "docs" / "configuration.md"


def test_the_template_is_the_file_at_the_root() -> None:
    assert template_text() == (ROOT / "swarmd.toml").read_text()


def test_the_template_says_the_defaults() -> None:
    result = load(flags={}, environ={"HOME": "/h"}, file=ROOT / "swarmd.toml", cwd=Path("/"))
    assert result.config == Config()


def test_every_key_stands_in_the_template() -> None:
    tables = tomllib.loads(template_text())
    assert tuple(tables) == sections()
    assert [f"{section}.{name}" for section, table in tables.items() for name in table] == list(settings())


def test_every_key_of_the_template_has_a_comment_above() -> None:
    lines = template_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"[a-z_]+ = ", line):
            assert lines[number - 1].startswith("#"), line


def test_the_documentation_lists_every_key_with_its_variable_and_default() -> None:
    text = DOCUMENTATION.read_text(encoding="utf-8")
    tables = tomllib.loads(template_text())
    for setting in settings().values():
        default = json.dumps(tables[setting.section][setting.name])
        assert f"| `{setting.key}` | `{setting.variable}` | `{default}` |" in text


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "swarmd.toml").write_text(example)
    config = load(flags={}, environ={"HOME": "/h"}, file=None, cwd=tmp_path).config
    assert (config.swarm.name, config.runtime.memory_limit) == ("lab", 6 * 2**30)
