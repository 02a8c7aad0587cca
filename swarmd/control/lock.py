"""One daemon per state directory: an flock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self


class AlreadyRunning(Exception):
    """Another daemon uses this state directory. Stop it, or give this one a `state.dir` of its own."""

    code: ClassVar[str] = "already_running"


class DaemonLock:
    """Holds an exclusive lock on a file and writes our pid into it.

    The kernel drops the lock when the process dies; the file itself stays, since removing it would let two
    daemons each lock a file of that name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Take the lock. Raises AlreadyRunning."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise AlreadyRunning(
                f"a daemon is already running here (pid {pid or 'unknown'}, state.dir {self.path.parent}): "
                "stop it, or set another state.dir"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        os.ftruncate(self._descriptor, 0)
        fcntl.flock(
            self._descriptor, fcntl.LOCK_UN
        )  # a child between fork and exec still shares the descriptor
        os.close(self._descriptor)
