"""What lines of the log look like, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog

from swarmd import logs

PEER = "12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in logs.OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def objects(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_one_object_a_line_with_full_peer_ids() -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    structlog.get_logger("swarmd").info("host_joined", peer=PEER, n=3)
    (line,) = objects(out)
    assert line.pop("ts")
    assert line == {"event": "host_joined", "peer": PEER, "n": 3, "level": "info", "logger": "swarmd"}


def test_the_console_shows_the_end_of_peer_ids_wherever_they_stand() -> None:
    out = io.StringIO()
    logs.configure("info", "console", out)
    structlog.get_logger("swarmd").info(f"{PEER} joined", reason=f"heard /p2p/{PEER}", known=[PEER])
    assert PEER not in out.getvalue()
    assert out.getvalue().count("…NHBox2") == 3


def test_the_console_shows_no_control_characters_of_others() -> None:
    out = io.StringIO()
    logs.configure("info", "console", out)
    structlog.get_logger("swarmd").info("refused", reason="\x1b[2Jgotcha\x07")
    assert "gotcha" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()


@pytest.mark.parametrize(("stream", "is_json"), [(io.StringIO, True), (Terminal, False)])
def test_auto_means_console_on_a_terminal_and_json_elsewhere(
    stream: type[io.StringIO], is_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = stream()
    logs.configure("info", "auto", out)
    structlog.get_logger("swarmd").info("hello")
    assert out.getvalue().startswith("{") is is_json
    assert "\x1b" not in out.getvalue(), "NO_COLOR is respected"


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_level_hides_what_lies_below_it(level: str, shown: list[str]) -> None:
    out = io.StringIO()
    logs.configure(level, "json", out)
    log = structlog.get_logger("swarmd.control")
    for each in ("debug", "info", "warning", "error"):
        getattr(log, each)("event")
    assert [line["level"] for line in objects(out)] == shown


@pytest.mark.parametrize(("level", "shown"), [("debug", ["warning", "error"]), ("error", ["error"])])
def test_libraries_speak_from_warning_on_through_the_same_handler(level: str, shown: list[str]) -> None:
    out = io.StringIO()
    logs.configure(level, "json", out)
    for each in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("zeroconf"), each)("name is %s", "taken")
    lines = objects(out)
    assert [line["level"] for line in lines] == shown
    assert {(line["logger"], line["event"]) for line in lines} == {("zeroconf", "name is taken")}


def test_a_library_that_brought_its_own_handler_is_routed_through_ours() -> None:
    out, own = io.StringIO(), io.StringIO()
    logs.configure("info", "json", out)
    library = logging.getLogger("transformers")
    library.addHandler(logging.StreamHandler(own))
    library.propagate = False
    logs.adopt_libraries()
    logging.getLogger("transformers.models").warning("deprecated")
    assert own.getvalue() == ""
    assert [line["event"] for line in objects(out)] == ["deprecated"]


def test_a_library_that_makes_itself_louder_stays_quiet() -> None:
    out = io.StringIO()
    logs.configure("debug", "json", out)
    chatty = logging.getLogger("libp2p.network.auto_connector")
    chatty.setLevel(logging.INFO)
    chatty.info("dialling everybody")
    assert out.getvalue() == ""


def test_configuring_twice_writes_each_line_once() -> None:
    former, out = io.StringIO(), io.StringIO()
    logs.configure("info", "json", former)
    logs.configure("info", "json", out)
    structlog.get_logger("swarmd").info("once")
    assert former.getvalue() == ""
    assert len(objects(out)) == 1


def test_python_warnings_are_lines_of_the_log() -> None:
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.configure("info", "json", out)
        warnings.warn("old ways", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    (line,) = objects(out)
    assert line["logger"] == "py.warnings"
    assert "old ways" in str(line["event"])


@pytest.mark.parametrize("layout", ["console", "json"])
def test_an_exception_is_logged_with_its_traceback(layout: str) -> None:
    out = io.StringIO()
    logs.configure("info", layout, out)
    try:
        raise LookupError("lost")
    except LookupError:
        structlog.get_logger("swarmd").exception("failed")
    text = out.getvalue()
    assert "Traceback" in text
    assert "LookupError: lost" in text
    assert (len(text.splitlines()) == 1) is (layout == "json")


def test_libp2p_warns_through_our_handler_although_it_silences_itself_when_imported() -> None:
    script = (
        "from swarmd import logs\n"
        "logs.configure('info', 'json')\n"
        "import logging, libp2p\n"
        "logs.adopt_libraries()\n"
        "logging.debug('from library code')\n"
        "logging.getLogger('libp2p.host').warning('stream reset')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines if line["logger"] == "libp2p.host"] == ["stream reset"]
    assert "from library code" not in done.stderr
