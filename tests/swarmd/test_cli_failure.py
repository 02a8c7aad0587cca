"""How exceptions become a code, a line of text and an exit status."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from swarmd.exit_status import _BY_CODE, _BY_PREFIX, ExitStatus, status_of
from swarmd.failure import failure_of
from swarmd.printable import printable


class PortTaken(Exception):
    """Stands for any named error of ours."""

    code: ClassVar[str] = "listen_failed"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PortTaken("port 4710 is taken"), "listen_failed", "port 4710 is taken"),
        (PortTaken(), "listen_failed", "PortTaken"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/etc/x"),
            "os_error",
            "/etc/x: Permission denied",
        ),
        (OSError(errno.EADDRINUSE, "Address already in use"), "address_unusable", "Address already in use"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (KeyError("x"), "internal", "KeyError: 'x'"),
        (AssertionError(), "internal", "AssertionError"),
        (PortTaken("\x1b[31mred"), "listen_failed", "�[31mred"),
    ],
)
def test_an_exception_is_put_into_words(error: BaseException, code: str, message: str) -> None:
    failure = failure_of(error)
    assert (failure.code, failure.message) == (code, message)
    assert failure.is_bug is (code == "internal")


def test_of_a_group_the_named_error_speaks() -> None:
    named = PortTaken("port 4710 is taken")
    group = BaseExceptionGroup(
        "nursery", [KeyError("echo"), ExceptionGroup("inner", [OSError(5, "io"), named])]
    )
    assert failure_of(group).cause is named


def test_of_a_group_without_a_name_an_interruption_outranks_a_bug() -> None:
    group = BaseExceptionGroup("nursery", [KeyError("echo"), KeyboardInterrupt()])
    assert failure_of(group).code == "interrupted"


async def test_a_cancellation_never_hides_what_caused_it() -> None:
    told = ""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            told = failure_of(BaseExceptionGroup("nursery", [cancelled, KeyError("cause")])).message
            raise
    assert told == "KeyError: 'cause'"


def test_every_code_with_an_exit_status_of_its_own_is_the_code_of_some_error() -> None:
    root = Path(__file__).parents[2]
    rooms = ("swarmd", "ring", "runtimes", "registry", "conf")
    files = [file for room in rooms for file in (root / room).rglob("*.py") if file.name != "exit_status.py"]
    source = "\n".join(file.read_text() for file in files)
    unknown = {code for code in _BY_CODE if f'"{code}"' not in source}
    unknown |= {prefix for prefix in _BY_PREFIX if f'"{prefix}' not in source}
    assert not unknown


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("config_invalid", ExitStatus.CONFIGURATION),
        ("key_file_invalid", ExitStatus.IDENTITY),
        ("state_dir_unsafe", ExitStatus.IDENTITY),
        ("registry_refused", ExitStatus.REGISTRY),
        ("listen_failed", ExitStatus.NETWORK),
        ("address_unusable", ExitStatus.NETWORK),
        ("memory_exceeded", ExitStatus.MODEL),
        ("already_running", ExitStatus.DAEMON),
        ("never_heard_of", ExitStatus.FAILED),
    ],
)
def test_an_error_code_leads_to_an_exit_status(code: str, status: ExitStatus) -> None:
    assert status_of(code) == status


@given(st.text())
def test_printable_text_has_no_control_characters_and_keeps_the_rest(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not {c for c in shown if (c < " " and c not in "\n\t") or "\x7f" <= c < "\xa0"}
    assert all(a == b or b == "�" for a, b in zip(text, shown, strict=True))
