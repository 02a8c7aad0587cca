"""What a bench found: checks with limits, tables for people, facts for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Bound = Literal["at_most", "at_least"]


@dataclass(frozen=True, slots=True)
class Check:
    """One figure that must keep to a limit.

    Attributes:
        name: what was measured, stable, with its conditions.
        value: the figure; nan if it could not be measured, which is never ok.
        limit: what it must keep to.
        bound: on which side.
        unit: of both, "" for ratios.

    """

    name: str
    value: float
    limit: float
    bound: Bound = "at_most"
    unit: str = ""

    @property
    def ok(self) -> bool:
        """Whether the figure keeps to its limit."""
        return self.value <= self.limit if self.bound == "at_most" else self.value >= self.limit

    def document(self) -> dict[str, Any]:
        """Return the check as JSON has it; a figure that is no number is null."""
        return {
            "name": self.name,
            "value": self.value if math.isfinite(self.value) else None,
            "limit": self.limit,
            "bound": self.bound,
            "unit": self.unit,
            "ok": self.ok,
        }


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Figures beside the checks: a title, headings, and rows of text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a bench found.

    Attributes:
        bench: its name.
        checks: at least one.
        tables: for people; JSON has them too.
        facts: under which conditions it was measured, and figures behind the checks; JSON values.

    """

    bench: str
    checks: Sequence[Check]
    tables: Sequence[ResultTable] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something was checked and every check is ok."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "bench": self.bench,
            "ok": self.ok,
            "checks": [check.document() for check in self.checks],
            "facts": self.facts,
            "tables": [
                {
                    "title": table.title,
                    "rows": [dict(zip(table.headings, row, strict=True)) for row in table.rows],
                }
                for table in self.tables
            ],
        }
