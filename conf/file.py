"""swarmd.toml on disk: where it is looked for, and what it says."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.lines import KeyPath, key_lines
from conf.problems import ConfigError

FILE_NAME = "swarmd.toml"
FILE_VARIABLE = "SWARMD_CONFIG"
SIZE_LIMIT = 64 * 1024


class HomeUnknownError(ValueError):
    """There is no home directory to put for ~. Write the whole path, or set $HOME."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that is valid TOML. lines: see key_lines."""

    path: Path
    tables: Mapping[str, object]
    lines: Mapping[KeyPath, int]

    def place(self, *path: str) -> str:
        """Return "FILE:LINE" of a key or table."""
        return f"{self.path}:{self.lines[path]}"


def find_file(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Return the file to read: `explicit`, $SWARMD_CONFIG, ./swarmd.toml, the user's; the first that there is, or None.

    A file that was named is returned whether it exists or not. Raises ConfigError when its ~ leads nowhere.
    """
    named = explicit or environ.get(FILE_VARIABLE)
    if named:
        try:
            return cwd / expand_user(str(named), environ)
        except HomeUnknownError as error:
            raise ConfigError([f"{named}: {error}"]) from error
    users = xdg_directory(environ, "XDG_CONFIG_HOME", ".config")
    places = (cwd / FILE_NAME, users / FILE_NAME) if users else (cwd / FILE_NAME,)
    return next((path for path in places if os.path.lexists(path)), None)


def read_file(path: Path) -> ConfigFile:
    """Read a configuration file. Raises ConfigError when it cannot be read or is not TOML in UTF-8."""
    text = _decode(path, _read(path))
    try:
        return ConfigFile(path, tomllib.loads(text), key_lines(text))
    except ValueError as error:  # TOMLDecodeError, or int's own for a number of thousands of digits
        line = re.search(r"at line (\d+)", str(error))
        raise ConfigError(
            [f"{path}{f':{line[1]}' if line else ''}: this is not valid TOML: {error}"]
        ) from error
    except RecursionError as error:
        raise ConfigError([f"{path}: keys or values are nested too deeply"]) from error


def expand_user(text: str, environ: Mapping[str, str]) -> Path:
    """Return the path, with a leading ~ replaced by $HOME (~NAME by that user's home). Raises HomeUnknownError."""
    if environ.get("HOME") and (text == "~" or text.startswith("~/")):
        return Path(environ["HOME"]) / text[2:]
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise HomeUnknownError("there is no home directory to put for ~: write the whole path") from error


def xdg_directory(environ: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    """Return swarmd's directory under an XDG base directory, or None for a user without a home.

    A base that is not absolute is ignored, as the XDG Base Directory Specification asks.
    """
    base = Path(environ.get(variable, ""))
    if base.is_absolute():
        return base / "swarmd"
    try:
        return expand_user(f"~/{fallback}", environ) / "swarmd"
    except HomeUnknownError:
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot read the configuration: {error.strerror or error}"]) from error
    if len(data) > SIZE_LIMIT:
        raise ConfigError([f"{path}: the file is larger than {SIZE_LIMIT} bytes: it is not a configuration"])
    return data


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # some editors put a byte order mark, which tomllib refuses
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: this is not UTF-8 text: save the file as UTF-8"]) from error
