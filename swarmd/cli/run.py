"""Runs a command line. Whatever happens, the user sees one clear line and never a traceback."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

import typer

from swarmd.cli.app import app
from swarmd.control import RemoteError
from swarmd.exit_status import ExitStatus, status_of
from swarmd.failure import INTERRUPTED, Failure, failure_of
from swarmd.printable import printable


def main() -> NoReturn:
    """Run the command line of this process; the entry point of the console script `swarmd`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> ExitStatus:
    """Run a command line and return its exit status."""
    _see_to_streams()
    reporter = Reporter.of(arguments)
    command = typer.main.get_command(app)
    try:
        status = command.main(args=list(arguments), prog_name="swarmd", standalone_mode=False)
    except typer.TyperException as error:
        return reporter.report(Failure("usage", error.format_message(), error))
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        return reporter.report(failure_of(error))
    if status == ExitStatus.INTERRUPTED:  # typer has turned a KeyboardInterrupt into this
        return reporter.report(failure_of(KeyboardInterrupt()))
    return ExitStatus(status or ExitStatus.OK)


def _see_to_streams() -> None:
    """Make output possible whatever it goes to: closed streams go nowhere, and what an encoding lacks is replaced."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # the descriptor is closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the process's life
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@dataclass(frozen=True, slots=True)
class Reporter:
    """Tells a failure: as JSON on stdout where the command was asked for JSON, else as a line on stderr.

    Both flags are read off the bare arguments, since a usage error comes before they are parsed.
    """

    as_json: bool
    debug: bool

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Self:
        """Find the flags among a command line's arguments."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        return cls("--json" in arguments[:end], "--debug" in arguments[:end])

    def report(self, failure: Failure) -> ExitStatus:
        """Tell the failure and return the exit status that belongs to it."""
        if isinstance(failure.cause, BrokenPipeError):
            return _reader_left()
        if self.debug:
            traceback.print_exception(failure.cause)
        message = failure.message
        if failure.is_bug:
            message += f" (this is a bug in swarmd; {self._where_the_traceback_is(failure)})"
        if self.as_json:
            print(json.dumps({"ok": False, "error": {"code": failure.code, "message": message}}))
        elif failure.code == INTERRUPTED:
            print("swarmd: interrupted", file=sys.stderr)
        else:
            for line in printable(message).splitlines():
                print(f"swarmd: error: {line} [{failure.code}]", file=sys.stderr)
        # What the daemon reports has failed there: the caller's own configuration, files and network are in order.
        return ExitStatus.FAILED if isinstance(failure.cause, RemoteError) else status_of(failure.code)

    def _where_the_traceback_is(self, failure: Failure) -> str:
        if self.debug:
            return "its traceback stands above"
        with tempfile.NamedTemporaryFile(
            "w", prefix="swarmd-crash-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(failure.cause, file=file)
        return f"its traceback is in {file.name}"


def _reader_left() -> ExitStatus:
    """Whoever read our output (`| head`) has had enough: say nothing, not even in Python's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitStatus.FAILED
