"""How much main memory this process may use, and how much of it is free: the system's, within the limits of its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_PROC, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cpu_memory_free(proc: Path = _PROC, mount: Path = _MOUNT) -> int:
    """Return free bytes: what the system calls available, or less if a control group allows less.

    Args:
        proc: the process's list of control groups (proc(5)); absent outside Linux.
        mount: where the control groups are mounted, version 1 or 2.

    """
    rooms = [room for _, room in _groups(proc, mount)]
    return min([int(psutil.virtual_memory().available), *rooms])


def cpu_memory_total(proc: Path = _PROC, mount: Path = _MOUNT) -> int:
    """Return the bytes that this process could use were nothing else running: the system's, or a control group's limit."""
    limits = [limit for limit, _ in _groups(proc, mount)]
    return min([int(psutil.virtual_memory().total), *limits])


def _groups(proc: Path, mount: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, room left) of each of the process's memory control groups that has a limit, parents included."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, files = mount, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, files = (
                mount / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            )
        else:
            continue
        # A container may see its own group at the mount's root, so each parent is tried and missing ones are skipped.
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            bounds = _bounds(root / str(group).lstrip("/"), *files)
            if bounds is not None:
                yield bounds


def _bounds(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> tuple[int, int] | None:
    """Return (limit, limit − usage), with the page cache that the kernel would drop first counted as free."""
    try:
        limit = (group / limit_file).read_text().strip()
        usage = int((group / usage_file).read_text())
        stat = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return int(limit), max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))
