"""How much main memory this process may still use: the system's, within the limits of its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil


def cpu_memory_free(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return free bytes: what the system calls available, or less if a control group allows less.

    Args:
        proc: the process's list of control groups (proc(5)); absent outside Linux.
        mount: where the control groups are mounted, version 1 or 2.

    """
    return min([int(psutil.virtual_memory().available), *_group_rooms(proc, mount)])


def _group_rooms(proc: Path, mount: Path) -> Iterator[int]:
    """Yield the room left in each of the process's memory control groups that has a limit, parents included."""
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
            room = _room(root / str(group).lstrip("/"), *files)
            if room is not None:
                yield room


def _room(group: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Return limit − usage, with the page cache that the kernel would drop first counted as free."""
    try:
        limit = (group / limit_file).read_text().strip()
        usage = int((group / usage_file).read_text())
        stat = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))
