"""What is wrong with a configuration, said so that it can be mended."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import ClassVar


class ConfigError(Exception):
    """The configuration cannot be used. Mend each line that the text names (`problems`: one text each)."""

    code: ClassVar[str] = "config_invalid"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return "; did you mean …?" with the nearest known name, or "" when none is near.

    Of dotted names, the last part alone may be the near one ("name" → "swarm.name").
    """
    nearest = difflib.get_close_matches(name, known, n=1)
    if not nearest:
        last_parts = {
            full.rpartition(".")[2]: full for full in reversed(list(known))
        }  # of several, the first
        nearest = [
            last_parts[part] for part in difflib.get_close_matches(name.rpartition(".")[2], last_parts, n=1)
        ]
    return f"; did you mean {nearest[0]}?" if nearest else ""
