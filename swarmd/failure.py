"""What went wrong, as a user is told: the one place where exceptions become a code and a line of text."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

import trio

from swarmd.printable import printable

INTERNAL = "internal"
INTERRUPTED = "interrupted"
_ADDRESS_ERRORS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in words.

    Attributes:
        code: stable and machine-readable: the exception's own `code`; "os_error", "address_unusable",
            "interrupted"; or "internal" for what nobody foresaw.
        message: one line for people; several only where the exception reports several things at once.
        cause: the exception that the words are about, picked out of its group.

    """

    code: str
    message: str
    cause: BaseException

    @property
    def is_bug(self) -> bool:
        """Whether nobody foresaw this exception, so that its traceback is worth keeping."""
        return self.code == INTERNAL


def failure_of(error: BaseException) -> Failure:
    """Put an exception into words. Of a group, the exception that knows most about itself speaks.

    A named error outranks an unforeseen one: inside a nursery the latter is as a rule the former's echo.
    """
    return min((_in_words(leaf) for leaf in _leaves(error)), key=_rank)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _rank(failure: Failure) -> int:
    if isinstance(failure.cause, trio.Cancelled):
        return 3
    if failure.is_bug:
        return 2
    return 1 if isinstance(failure.cause, OSError | KeyboardInterrupt) else 0


def _in_words(error: BaseException) -> Failure:
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return Failure(code, printable(str(error)) or type(error).__name__, error)
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted", error)
    if isinstance(error, OSError):
        known = error.errno in _ADDRESS_ERRORS
        return Failure("address_unusable" if known else "os_error", _os_error_text(error), error)
    said = printable(str(error))
    return Failure(INTERNAL, f"{type(error).__name__}: {said}" if said else type(error).__name__, error)


def _os_error_text(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return printable(reason if error.filename is None else f"{error.filename}: {reason}")
