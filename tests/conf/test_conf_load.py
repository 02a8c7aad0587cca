from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from conf.file import SIZE_LIMIT
from conf.load import Loaded, describe, load
from conf.problems import ConfigError
from conf.schema import Config
from conf.settings import settings, value_text

HOME = {"HOME": "/home/ada"}


def loaded(
    cwd: Path,
    text: str | None = None,
    *,
    flags: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
) -> Loaded:
    if text is not None:
        (cwd / "swarmd.toml").write_text(text)
    return load(flags=flags or {}, environ={**HOME, **(environ or {})}, file=None, cwd=cwd)


def problems(
    cwd: Path,
    text: str | None = None,
    *,
    flags: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(cwd, text, flags=flags, environ=environ)
    assert caught.value.code == "config_invalid"
    assert str(caught.value).split("\n") == list(caught.value.problems)
    return list(caught.value.problems)


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    result = loaded(tmp_path)
    assert result.config == Config()
    assert result.file is None
    assert result.state_dir == Path("/home/ada/.local/state/swarmd")
    assert list(result.sources) == list(settings())
    assert {source.kind for source in result.sources.values()} == {"default"}


# key → values that a file, a variable and a flag can say alike
VALUES = {
    "swarm.name": ["alpha", "beta", "gamma"],
    "swarm.listen": ["/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/2, /ip4/0.0.0.0/tcp/3", "/ip4/1.2.3.4/tcp/0"],
    "swarm.mdns": ["true", "false", "true"],
    "state.dir": ["/var/a", "/var/b", ""],
    "model.context": ["1", "2", "3"],
    "runtime.memory_limit": ["auto", "6GiB", "7MiB"],
    "plan.settle_seconds": ["0.5", "1.5", "2.5"],
    "log.level": ["debug", "warning", "error"],
}


def toml_value(key: str, text: str) -> str:
    default = settings()[key].default
    if isinstance(default, tuple):
        return str([part.strip() for part in text.split(",")])
    return text if isinstance(default, bool | int | float) else f'"{text}"'


given_by = st.dictionaries(
    st.sampled_from(sorted(VALUES)),
    st.sets(st.sampled_from(["file", "environment", "flag"])),
    max_size=len(VALUES),
)


@given(given_by, st.permutations([0, 1, 2]))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flag_wins_over_environment_over_file_over_default(
    tmp_path: Path, who: dict[str, set[str]], order: list[int]
) -> None:
    value = {"file": order[0], "environment": order[1], "flag": order[2]}
    text = "".join(
        f"{key} = {toml_value(key, VALUES[key][value['file']])}\n"
        for key, kinds in who.items()
        if "file" in kinds
    )
    environ = {
        settings()[key].variable: VALUES[key][value["environment"]]
        for key, kinds in who.items()
        if "environment" in kinds
    }
    flags = {key: VALUES[key][value["flag"]] for key, kinds in who.items() if "flag" in kinds}
    result = loaded(tmp_path, text, flags=flags, environ=environ)
    for key, setting in settings().items():
        kinds = who.get(key, set())
        winner = next((kind for kind in ("flag", "environment", "file") if kind in kinds), "default")
        assert result.sources[key].kind == winner
        expected = setting.default if winner == "default" else setting.from_text(VALUES[key][value[winner]])
        assert getattr(getattr(result.config, setting.section), setting.name) == expected


def test_every_source_is_told_where_it_is(tmp_path: Path) -> None:
    result = loaded(
        tmp_path,
        "[model]\n\ncontext = 7\n",
        flags={"swarm.name": "x"},
        environ={"SWARMD_LOG_LEVEL": "debug"},
    )
    assert str(result.sources["model.context"]) == f"{tmp_path / 'swarmd.toml'}:3"
    assert str(result.sources["swarm.name"]) == "--set swarm.name"
    assert str(result.sources["log.level"]) == "SWARMD_LOG_LEVEL"
    assert str(result.sources["log.format"]) == "default"


def test_the_description_shows_every_setting_as_text(tmp_path: Path) -> None:
    text = '[swarm]\nlisten = ["/ip4/1.2.3.4/tcp/1", "/ip6/::/tcp/2"]\nmdns = false\n[runtime]\nmemory_limit = "6 GiB"\n'
    rows = {key: (value, source) for key, value, source in describe(loaded(tmp_path, text))}
    file = tmp_path / "swarmd.toml"
    assert list(rows) == list(settings())
    assert rows["swarm.listen"] == ("/ip4/1.2.3.4/tcp/1, /ip6/::/tcp/2", f"{file}:2")
    assert rows["swarm.mdns"] == ("false", f"{file}:3")
    assert rows["runtime.memory_limit"] == ("6GiB", f"{file}:5")
    assert rows["state.dir"] == ("/home/ada/.local/state/swarmd", "default")
    assert rows["model.path"] == ("", "default")


def test_every_mistake_is_reported_in_one_go_with_its_place(tmp_path: Path) -> None:
    text = """\
[swarm]
nam = "x"
listen = [
    "/ip4/0.0.0.0/tcp/99999",
]
[modle]
x = 1
[model]
sessions = "4"
context = 0
"""
    found = problems(
        tmp_path,
        text,
        flags={"log.levle": "debug", "log.format": "xml"},
        environ={"SWARMD_SWARM_NAM": "x", "SWARMD_PLAN_SETTLE_SECONDS": "soon", "OTHER": "1"},
    )
    file = tmp_path / "swarmd.toml"
    assert found[0] == f"{file}:2: there is no setting 'swarm.nam'; did you mean swarm.name?"
    assert found[1].startswith(f"{file}:3: swarm.listen = ['/ip4/0.0.0.0/tcp/99999']: ")
    assert found[2] == f"{file}:6: there is no section 'modle'; did you mean model?"
    assert found[3] == f"{file}:9: model.sessions = '4': must be a valid integer"
    assert found[4] == f"{file}:10: model.context = 0: must be greater than or equal to 1"
    assert found[5].startswith(
        "SWARMD_PLAN_SETTLE_SECONDS: plan.settle_seconds = 'soon': must be a valid number"
    )
    assert (
        found[6]
        == "SWARMD_SWARM_NAM: swarmd knows no such environment variable; did you mean SWARMD_SWARM_NAME?"
    )
    assert found[7] == "--set: there is no setting 'log.levle'; did you mean log.level?"
    assert found[8] == "--set log.format: log.format = 'xml': must be 'auto', 'console' or 'json'"
    assert len(found) == 9


def test_a_bad_value_is_reported_even_where_a_stronger_source_hides_it(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "[model]\ncontext = 0\n", flags={"model.context": "5"})) == 1


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('name = "x"\n', 1, "outside of a section; did you mean swarm.name?"),
        ("swarm = 3\n", 1, "write [swarm]"),
        ("\n[a.b]\n", 2, "no section 'a'"),
        ("[swarm.name]\nx = 1\n", 1, "swarm.name = {'x': 1}: must be a valid string"),
        ("swarm.nmae = 1\n", 1, "did you mean swarm.name?"),
        ("swarm = { mdns = true, lisen = [] }\n", 1, "did you mean swarm.listen?"),
        ("[swarm]\nzzz = 1\n", 2, "there is no setting 'swarm.zzz'"),
        ('[swarm]\n"na\\nme" = 1\n', 2, "swarm.na"),
    ],
)
def test_a_misplaced_key_is_reported_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(f"{tmp_path / 'swarmd.toml'}:{line}: ")
    assert says in found


def test_invalid_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "[swarm]\nname = \n")
    assert found.startswith(f"{tmp_path / 'swarmd.toml'}:2: this is not valid TOML")


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 50_000, ".".join("a" * 2_000) + " = 1\n", "a = " + "1" * 10_000]
)
def test_a_monstrous_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(f"{tmp_path / 'swarmd.toml'}")


def test_a_file_that_is_not_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "swarmd.toml").write_bytes(b"[swarm]\n# caf\xe9\n")
    (found,) = problems(tmp_path)
    assert found == f"{tmp_path / 'swarmd.toml'}:2: this is not UTF-8 text: save the file as UTF-8"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "swarmd.toml").write_bytes(b'\xef\xbb\xbf[swarm]\r\nname = "x"\r\n')
    assert loaded(tmp_path).config.swarm.name == "x"


def test_a_directory_or_an_oversized_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "swarmd.toml").mkdir()
    assert "cannot read" in problems(tmp_path)[0]
    big = tmp_path / "big.toml"
    big.write_text("#" * (SIZE_LIMIT + 1))
    assert "larger than" in problems(tmp_path, environ={"SWARMD_CONFIG": "big.toml"})[0]


@pytest.mark.parametrize("named", ["flag", "variable"])
def test_a_file_that_was_named_must_be_there(tmp_path: Path, named: str) -> None:
    (tmp_path / "swarmd.toml").write_text("")
    file = Path("none.toml") if named == "flag" else None
    environ = {} if named == "flag" else {"SWARMD_CONFIG": "none.toml"}
    with pytest.raises(ConfigError, match=rf"{tmp_path}/none\.toml: cannot read"):
        load(flags={}, environ=environ, file=file, cwd=tmp_path)


def test_the_file_is_looked_for_from_the_nearest_to_the_farthest_place(tmp_path: Path) -> None:
    cwd, xdg = tmp_path / "cwd", tmp_path / "xdg" / "swarmd"
    for directory in (cwd, xdg):
        directory.mkdir(parents=True)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}

    def found(file: Path | None = None, **more: str) -> Path | None:
        return load(flags={}, environ={**environ, **more}, file=file, cwd=cwd).file

    assert found() is None
    (xdg / "swarmd.toml").write_text("")
    assert found() == xdg / "swarmd.toml"
    (cwd / "swarmd.toml").write_text("")
    assert found() == cwd / "swarmd.toml"
    (tmp_path / "v.toml").write_text("")
    assert found(SWARMD_CONFIG="~/v.toml") == tmp_path / "v.toml"
    assert found(SWARMD_CONFIG="") == cwd / "swarmd.toml"
    (cwd / "e.toml").write_text("")
    assert found(Path("e.toml"), SWARMD_CONFIG="~/v.toml") == cwd / "e.toml"


def test_the_users_file_is_found_at_its_usual_place(tmp_path: Path) -> None:
    usual = tmp_path / ".config" / "swarmd"
    usual.mkdir(parents=True)
    (usual / "swarmd.toml").write_text("")
    for xdg in ({}, {"XDG_CONFIG_HOME": "relative"}):
        result = load(flags={}, environ={"HOME": str(tmp_path), **xdg}, file=None, cwd=tmp_path)
        assert result.file == usual / "swarmd.toml"


def test_a_relative_path_starts_beside_who_says_it(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    file = there / "x.toml"
    file.write_text(
        '[model]\npath = "weights"\n[registry]\npath = "~/r.json"\n[state]\ndir = "/var/lib/swarmd"\n'
    )
    result = load(flags={}, environ=HOME, file=file, cwd=here)
    assert result.config.model.path == there / "weights"
    assert result.config.registry.path == Path("/home/ada/r.json")
    assert result.state_dir == result.config.state.dir == Path("/var/lib/swarmd")
    environ = {**HOME, "SWARMD_MODEL_PATH": "weights", "SWARMD_STATE_DIR": ""}
    result = load(flags={"registry.path": "r"}, environ=environ, file=file, cwd=here)
    assert result.config.model.path == here / "weights"
    assert result.config.registry.path == here / "r"
    assert result.state_dir == Path("/home/ada/.local/state/swarmd")


def test_state_lies_where_xdg_says(tmp_path: Path) -> None:
    assert loaded(tmp_path, environ={"XDG_STATE_HOME": "/s"}).state_dir == Path("/s/swarmd")
    assert loaded(tmp_path, environ={"XDG_STATE_HOME": "s"}).state_dir == Path(
        "/home/ada/.local/state/swarmd"
    )


def test_a_user_without_a_home_must_say_where_state_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(path: str) -> str:
        return (
            path  # what os.path.expanduser does when there is neither $HOME nor an entry in the user database
        )

    monkeypatch.setattr(os.path, "expanduser", no_home)
    with pytest.raises(ConfigError, match=r"state\.dir: this user has no home directory") as caught:
        load(flags={"model.path": "~/x"}, environ={}, file=None, cwd=tmp_path)
    assert caught.value.problems[0].startswith(
        "--set model.path: model.path = '~/x': there is no home directory"
    )
    assert load(flags={"state.dir": "/s"}, environ={}, file=None, cwd=tmp_path).state_dir == Path("/s")
    with pytest.raises(ConfigError, match="no home directory"):
        load(flags={}, environ={}, file=Path("~/x.toml"), cwd=tmp_path)


@given(st.sampled_from(sorted(VALUES)), st.text(max_size=12))
def test_any_text_for_any_key_is_a_value_or_a_one_line_error(key: str, text: str) -> None:
    try:
        result = load(flags={key: text}, environ=HOME, file=None, cwd=Path("/nowhere"))
    except ConfigError as error:
        found = error.problems
    else:
        assert key in [row[0] for row in describe(result)]
        return
    assert [problem.startswith(f"--set {key}: {key} = ") for problem in found] == [True]
    assert "\n" not in found[0]


def test_shown_values_are_what_the_settings_say() -> None:
    assert value_text(("a", "b")) == "a, b"
    assert value_text(None) == ""
    assert value_text(False) == "false"
