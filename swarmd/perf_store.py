"""PerfStore: keeps a PerfBook in a SQLite file of the state directory.

The book in memory is what the daemon works with; the file is written behind it, in a worker thread, one transaction at a
time. So a daemon that is killed loses a few seconds of samples and nothing else. A file that is damaged is set aside,
and one that cannot be written (a full disk) is tried again later: learned speed is worth no crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import trio

from ring.perf import KINDS, Estimate, PerfBook, Subject
from swarmd.activity import Activity

FILE_NAME = "perf.sqlite"
"""The file's name in the state directory."""

_VERSION = 1
_SAVE_EVERY = 10.0  # s
_LAST_SAVE_WITHIN = 2.0  # s
_LOCKED_FOR = 2.0  # s to wait for somebody who reads the file with a tool of their own
_LARGEST = 1 << 62
_LONGEST_SUBJECT = 1024  # bytes
_ENVIRONMENT = {  # the file may be whole, but not now or not for us
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}

Changes = Sequence[tuple[Subject, Estimate | None]]


class PerfFileDamaged(Exception):
    """The file is not one that read() and write() can have written. set_aside() makes room for a new one."""


class PerfFile:
    """The file itself: blocking calls, each of which opens and closes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[Subject, Estimate]]:
        """Return all estimates, those renewed last at the end. Rows that make no sense are passed over.

        Raises:
            PerfFileDamaged: the file is no database, or damaged, or of another version.
            sqlite3.Error, OSError: it cannot be read for other reasons.

        """
        with self._connection() as connection:
            check = connection.execute("PRAGMA quick_check(1)").fetchone()
            if check != (b"ok",):
                raise PerfFileDamaged(f"SQLite's check says: {check!r:.200}")
            rows = connection.execute(
                "SELECT kind, subject, value, samples FROM estimates ORDER BY saved, subject"
            )
            return [entry for row in rows if (entry := _entry(*row)) is not None]

    def write(self, changes: Changes) -> None:
        """Save estimates, or remove them where they are None; all or none of them. Raises as read() does."""
        with self._connection() as connection:
            (saved,) = connection.execute("SELECT coalesce(max(saved), 0) + 1 FROM estimates").fetchone()
            for subject, estimate in changes:
                kind, names = subject
                key = (kind, json.dumps(names))
                if estimate is None:
                    connection.execute("DELETE FROM estimates WHERE kind = ? AND subject = ?", key)
                else:
                    connection.execute(
                        "INSERT OR REPLACE INTO estimates (kind, subject, value, samples, saved)"
                        " VALUES (?, ?, ?, ?, ?)",
                        (*key, estimate.value, estimate.samples, saved),
                    )

    def set_aside(self) -> Path:
        """Rename the file and its journal, so that a new one can be begun; returns the new name. Raises OSError."""
        aside = self.path.with_name(self.path.name + ".damaged")
        journal = self.path.with_name(self.path.name + "-journal")
        # The journal goes first: it must never be rolled back into the file that takes this one's place.
        with contextlib.suppress(FileNotFoundError):
            journal.replace(aside.with_name(aside.name + "-journal"))
        self.path.replace(aside)
        return aside

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, which is committed at the end of the block."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with contextlib.closing(sqlite3.connect(self.path, timeout=_LOCKED_FOR)) as connection:
                connection.text_factory = bytes
                with connection:
                    _begin(connection)
                    yield connection
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _ENVIRONMENT:
                raise
            raise PerfFileDamaged(str(error)) from error


class PerfStore:
    """Reads the book at the start and saves its changes for as long as the daemon lives."""

    def __init__(self, path: Path, activity: Activity) -> None:
        self._file = PerfFile(path)
        self._activity = activity
        self.book = PerfBook()

    async def open(self) -> None:
        """Read what earlier runs have learned; whatever is wrong with the file, the daemon goes on without it."""
        try:
            self.book = PerfBook(await trio.to_thread.run_sync(self._file.read))
        except PerfFileDamaged as error:
            await self._set_aside(error)
        except (sqlite3.Error, OSError) as error:
            self._activity.note("perf_not_read", f"{self._file.path}: {error}")

    async def run(self) -> None:
        """Save until cancelled, and then once more."""
        try:
            while True:
                await trio.sleep(_SAVE_EVERY)
                await self.save()
        finally:
            with trio.move_on_after(_LAST_SAVE_WITHIN) as scope:
                scope.shield = True
                await self.save()

    async def save(self) -> None:
        """Write what changed since the last call."""
        changes = self.book.take_changes()
        if not changes:
            return
        try:
            await trio.to_thread.run_sync(self._file.write, changes)
        except PerfFileDamaged as error:
            self.book.everything_changed()
            await self._set_aside(error)
        except (sqlite3.Error, OSError) as error:
            self.book.put_back(changes)
            self._activity.note("perf_not_saved", f"{self._file.path}: {error}")

    async def _set_aside(self, damage: PerfFileDamaged) -> None:
        try:
            aside = await trio.to_thread.run_sync(self._file.set_aside)
        except OSError as error:
            self._activity.note(
                "perf_not_read", f"{self._file.path} is damaged and cannot be renamed: {error}"
            )
        else:
            self._activity.note(
                "perf_set_aside", f"{damage}: kept as {aside.name}; what it knew is learned anew"
            )


def _begin(connection: sqlite3.Connection) -> None:
    """Begin a transaction on a file of this version; an empty one becomes one."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.execute(
            "CREATE TABLE estimates (kind TEXT NOT NULL, subject TEXT NOT NULL, value INTEGER NOT NULL,"
            " samples INTEGER NOT NULL, saved INTEGER NOT NULL, PRIMARY KEY (kind, subject)) WITHOUT ROWID"
        )
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    elif version != _VERSION:
        raise PerfFileDamaged(f"its version is {version}, and this swarmd writes {_VERSION}")


def _entry(kind: object, subject: object, value: object, samples: object) -> tuple[Subject, Estimate] | None:
    """Return a row as an estimate; None if it makes no sense."""
    if not isinstance(kind, bytes) or not isinstance(subject, bytes) or len(subject) > _LONGEST_SUBJECT:
        return None
    known = next((known for known in KINDS if known.encode() == kind), None)
    try:
        names = json.loads(subject)
    except (ValueError, RecursionError):
        return None
    if known is None or not _is_within(value, 0) or not _is_within(samples, 0):
        return None
    if not isinstance(names, list) or _SUBJECTS[known] != [type(name) for name in names]:
        return None
    if not all(isinstance(name, str) or _is_within(name, known == "layer") for name in names):
        return None
    return (known, tuple(names)), Estimate(value, samples)


def _is_within(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and least <= value <= _LARGEST


_SUBJECTS: dict[str, list[type]] = {
    "layer": [str, str, int],
    "tail": [str, str],
    "rtt": [str, str],
    "uplink": [str],
    "overhead": [str],
    "draft": [str, str, int, int],
    "draft_time": [str, str],
}
