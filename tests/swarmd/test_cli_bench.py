"""`swarmd bench` as a user sees it, with a measuring double; what the benches measure is the business of tests/runtimes."""

from __future__ import annotations

import json
import math

import pytest

from swarmd.bench import catalogue
from swarmd.bench.catalogue import BENCHES, Bench, Tell
from swarmd.bench.report import Bound, Check, Report, ResultTable
from swarmd.cli.run import run
from swarmd.exit_status import ExitStatus


def measuring_double(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    """Let a bench named "double" find these checks."""

    def measure(tell: Tell) -> Report:
        tell("measuring nothing")
        table = ResultTable("figures", ("case", "µs"), (("[red]small[/red]", "12"),))
        return Report("double", checks, (table,), {"machine": "none"})

    monkeypatch.setitem(catalogue.BENCHES, "double", Bench("a double", measure))


def test_without_a_name_the_benches_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert all(name in out and bench.summary in out for name, bench in BENCHES.items())
    assert run(["bench", "--json"]) == ExitStatus.OK
    assert set(json.loads(capsys.readouterr().out)["benches"]) == set(BENCHES)


def test_an_unknown_bench_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "speed"]) == ExitStatus.USAGE
    err = capsys.readouterr().err
    assert "'speed' is none of" in err
    assert "runtime" in err


@pytest.mark.parametrize(
    ("value", "bound", "ok"),
    [(1.0, "at_most", True), (1.5, "at_most", False), (1.5, "at_least", True), (0.5, "at_least", False)],
)
def test_a_missed_limit_is_told_and_fails(
    value: float, bound: Bound, ok: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring_double(monkeypatch, Check("other", 0.0, 1.0), Check("ratio", value, 1.0, bound))
    status = ExitStatus.OK if ok else ExitStatus.FAILED
    assert run(["bench", "double", "--json"]) == status
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (shown["bench"], shown["ok"]) == ("double", ok)
    assert [check["ok"] for check in shown["checks"]] == [True, ok]
    assert shown["checks"][1] == {
        "name": "ratio",
        "value": value,
        "limit": 1.0,
        "bound": bound,
        "unit": "",
        "ok": ok,
    }
    assert shown["tables"] == [{"title": "figures", "rows": [{"case": "[red]small[/red]", "µs": "12"}]}]
    assert shown["facts"] == {"machine": "none"}
    assert run(["bench", "double"]) == status
    captured = capsys.readouterr()
    assert ("MISSED" in captured.out) == (not ok)
    assert "[red]small[/red]" in captured.out
    assert "measuring nothing" in captured.err


def test_what_could_not_be_measured_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring_double(monkeypatch, Check("ratio", math.nan, 1.0))
    assert run(["bench", "double", "--json"]) == ExitStatus.FAILED
    [check] = json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]
    assert (check["value"], check["ok"]) == (None, False)


def test_a_bench_that_checks_nothing_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring_double(monkeypatch)
    assert run(["bench", "double", "--json"]) == ExitStatus.FAILED
