"""What this host knows of itself: written by the services that find it out, read by the announcer and by `ctl`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ring.announcement import BlockHeld, HostState
from swarmd.changes import Changes


@dataclass(slots=True)
class OwnFacts:
    """Mutable on purpose; change it through update(), which wakes the announcer.

    Attributes are those of ring.announcement.Announcement with the same names, and:
        memory_total: bytes that the device has.
        waiting_for: one line saying what this host waits for ("" while it waits for nothing).

    """

    memory_total: int = 0
    memory_limit: int = 0
    memory_free: int = 0
    device: str = ""
    state: HostState = "joining"
    model: str = ""
    layer_ns: tuple[tuple[int, int], ...] = ()
    tail_ns: int = 0
    block: BlockHeld | None = None
    sessions: int = 0
    uplink: int = 0
    overhead_ns: int = 0
    load_rate: int = 0
    leader: str = ""
    term: int = 0
    plan: str = ""
    waiting_for: str = ""
    changes: Changes = field(default_factory=Changes)

    def update(self, **values: Any) -> None:
        """Set fields; wakes whoever watches `changes` if anything is different."""
        different = False
        for name, value in values.items():
            if getattr(self, name) != value:
                setattr(self, name, value)
                different = True
        if different:
            self.changes.notify()
