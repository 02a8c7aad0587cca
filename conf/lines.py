"""On which line of a TOML file a key stands; tomllib does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

KeyPath = tuple[str, ...]
_ENDS = ("]", "}", '"""', "'''")  # a statement of several lines ends on a line that has one of these


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return, for every key and table of a valid TOML document, the line (from 1) on which it first appears.

    A statement is as many lines as it takes for tomllib to accept them under the last table header, so that dotted
    keys, inline tables and values over several lines are told apart by the parser itself.
    """
    found: dict[KeyPath, int] = {}
    header = ""
    statement: list[str] = []
    start = 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not statement:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = number
            if line.lstrip().startswith("["):
                header = ""
        statement.append(line)
        if len(statement) > 1 and not any(end in line for end in _ENDS):
            continue
        tables = _parse(header, statement)
        if tables is None:
            continue
        for path in _paths(tables):
            found.setdefault(path, start)
        if statement[0].lstrip().startswith("["):
            header = line
        statement = []
    return found


def _parse(header: str, statement: list[str]) -> dict[str, object] | None:
    try:
        return tomllib.loads("\n".join([header, *statement]))
    except tomllib.TOMLDecodeError:
        return None


def _paths(table: Mapping[str, object], above: KeyPath = ()) -> Iterator[KeyPath]:
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    yield from _paths(item, (*above, key))
