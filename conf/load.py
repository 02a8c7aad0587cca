"""Loading the configuration: flags before environment before file before defaults, every error in one go."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from conf.file import (
    FILE_VARIABLE,
    ConfigFile,
    HomeUnknownError,
    expand_user,
    find_file,
    read_file,
    xdg_directory,
)
from conf.problems import ConfigError, did_you_mean
from conf.schema import Config
from conf.settings import Setting, SettingError, sections, settings, value_text

_PREFIX = "SWARMD_"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a setting's value comes from. text: "--set KEY", the variable's name, "FILE:LINE" or "default"."""

    kind: Literal["flag", "environment", "file", "default"]
    text: str

    def __str__(self) -> str:
        return self.text


DEFAULT = Source("default", "default")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and how it came about.

    Attributes:
        config: every value checked, every path absolute.
        sources: dotted key → where its value comes from; every key is there.
        file: the file that was read, or None.
        state_dir: `state.dir`, or where XDG puts it.

    """

    config: Config
    sources: Mapping[str, Source]
    file: Path | None
    state_dir: Path


@dataclass(frozen=True, slots=True)
class _Given:
    """A checked value and who gave it. What gives values also gives problems: plain text, one line each."""

    key: str
    source: Source
    value: object


def load(*, flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None, cwd: Path) -> Loaded:
    """Load the configuration.

    Args:
        flags: dotted key → text, from the command line.
        environ: environment variables; SWARMD_SECTION_KEY sets a key, SWARMD_CONFIG names the file.
        file: the configuration file; None: the one that is found (see conf.file.find_file).
        cwd: absolute; relative paths in flags and environment start there, those in a file start beside the file.

    Raises:
        ConfigError: one line for every error found, in all sources.

    """
    found: list[_Given | str] = []  # the strongest source comes last
    path = find_file(file, environ, cwd)
    try:
        if path is not None:
            found += _from_file(read_file(path), environ)
    except ConfigError as error:
        found += error.problems
    found += _from_environ(environ, cwd)
    found += _from_flags(flags, environ, cwd)
    given = {item.key: item for item in found if isinstance(item, _Given)}
    state_dir = _state_dir(given, environ)
    problems = [item for item in (*found, state_dir) if isinstance(item, str)]
    if isinstance(state_dir, str) or problems:
        raise ConfigError(problems)
    sources = {key: given[key].source if key in given else DEFAULT for key in settings()}
    config = _build({key: item.value for key, item in given.items()})
    return Loaded(config, MappingProxyType(sources), path, state_dir)


def describe(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Return (key, value, source) of every setting, as text, in the order of the schema."""
    rows = []
    for key, setting in settings().items():
        value = getattr(getattr(loaded.config, setting.section), setting.name)
        shown = loaded.state_dir if key == "state.dir" else value
        rows.append((key, value_text(shown), str(loaded.sources[key])))
    return rows


def _state_dir(given: Mapping[str, _Given], environ: Mapping[str, str]) -> Path | str:
    chosen = given["state.dir"].value if "state.dir" in given else None
    if isinstance(chosen, Path):
        return chosen
    standard = xdg_directory(environ, "XDG_STATE_HOME", ".local/state")
    return (
        standard or "state.dir: this user has no home directory to keep state in: set it, or SWARMD_STATE_DIR"
    )


def _build(values: Mapping[str, object]) -> Config:
    chosen: dict[str, dict[str, object]] = {section: {} for section in sections()}
    for key, value in values.items():
        section, _, name = key.partition(".")
        chosen[section][name] = value
    defaults = Config()
    parts: dict[str, Any] = {
        section: dataclasses.replace(getattr(defaults, section), **chosen[section]) for section in sections()
    }
    return Config(**parts)


def _from_flags(flags: Mapping[str, str], environ: Mapping[str, str], cwd: Path) -> Iterator[_Given | str]:
    for key, text in flags.items():
        if key in settings():
            yield _text_value(settings()[key], Source("flag", f"--set {key}"), text, environ, cwd)
        else:
            yield f"--set: there is no setting {key!r}{did_you_mean(key, settings())}"


def _from_environ(environ: Mapping[str, str], cwd: Path) -> Iterator[_Given | str]:
    known = {setting.variable: setting for setting in settings().values()}
    for name in sorted(environ):
        if name in known:
            yield _text_value(known[name], Source("environment", name), environ[name], environ, cwd)
        elif name.startswith(_PREFIX) and name != FILE_VARIABLE:
            yield f"{name}: swarmd knows no such environment variable{did_you_mean(name, [*known, FILE_VARIABLE])}"


def _from_file(file: ConfigFile, environ: Mapping[str, str]) -> Iterator[_Given | str]:
    for section, table in file.tables.items():
        place = file.place(section)
        if isinstance(table, dict) and section in sections():
            yield from (_file_value(file, section, name, value, environ) for name, value in table.items())
        elif isinstance(table, dict):
            yield f"{place}: there is no section {section!r}{did_you_mean(section, sections())}"
        elif section in sections():
            yield f"{place}: `{section}` is a section: write [{section}] and its keys below"
        else:
            yield f"{place}: there is no setting {section!r} outside of a section{did_you_mean(section, settings())}"


def _text_value(
    setting: Setting, source: Source, text: str, environ: Mapping[str, str], cwd: Path
) -> _Given | str:
    try:
        return _Given(setting.key, source, _absolute(setting.from_text(text), environ, cwd))
    except SettingError as error:
        return f"{source}: {setting.key} = {text!r}: {error}"


def _file_value(
    file: ConfigFile, section: str, name: str, value: object, environ: Mapping[str, str]
) -> _Given | str:
    source = Source("file", file.place(section, name))
    key = f"{section}.{name}"
    setting = settings().get(key)
    if setting is None:
        return f"{source}: there is no setting {key!r}{did_you_mean(key, settings())}"
    try:
        return _Given(key, source, _absolute(setting.from_toml(value), environ, file.path.parent))
    except SettingError as error:
        return f"{source}: {key} = {value!r}: {error}"


def _absolute(value: object, environ: Mapping[str, str], base: Path) -> object:
    if not isinstance(value, Path):
        return value
    try:
        return base / expand_user(str(value), environ)
    except HomeUnknownError as error:
        raise SettingError(str(error)) from error
