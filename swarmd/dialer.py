"""Dialer: keeps this host connected to every host it knows of, with a back-off per host that never gives up on a bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from ring.identity import PeerId
from swarmd.activity import Activity
from swarmd.changes import Changes
from swarmd.net import NetError, Node

_FIRST_PAUSE = 0.5  # s
_LONGEST_PAUSE = 30.0  # s
_FORGET_AFTER = 12  # failures in a row, for a host that is no bootstrap
_FORGET_HEARSAY_AFTER = 2
_MAX_HEARSAY = 256  # hosts that others merely told of
_MAX_HEARSAY_ADDRESSES = 4
_DIAL_WITHIN = 10.0  # s
_AT_ONCE = 8
_HEARSAY_AT_ONCE = 4
HEARSAY = "peer exchange"


@dataclass(slots=True)
class Target:
    """A host to be connected to.

    source: where we know it from; error: why the last dial failed; held_off: it answered, and is not of this swarm.
    """

    source: str
    pinned: bool
    pause: float = _FIRST_PAUSE
    next_try: float = 0.0
    failures: int = 0
    error: str = ""
    dialling: bool = False
    held_off: bool = False

    @property
    def hearsay(self) -> bool:
        """Whether nobody but another host has told of it."""
        return self.source == HEARSAY


class Dialer:
    """Dials what it has been told of until connected; the addresses are in the node's address book."""

    def __init__(self, node: Node, activity: Activity) -> None:
        self._node = node
        self._activity = activity
        # Hearsay has places of its own: whoever tells of a thousand black holes delays nobody else.
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._hearsay_places = trio.CapacityLimiter(_HEARSAY_AT_ONCE)
        self.targets: dict[PeerId, Target] = {}
        self.changes = Changes()

    def want(self, peer: PeerId, addresses: tuple[str, ...], *, source: str, pinned: bool = False) -> None:
        """Try to be connected to a host at these addresses (and those known from before)."""
        if peer == self._node.peer_id:
            return
        known = self.targets.get(peer)
        if source == HEARSAY:
            if known is not None or self._hearsay() >= _MAX_HEARSAY:
                return
            addresses = addresses[:_MAX_HEARSAY_ADDRESSES]
        self._node.address_book.add(peer, addresses)
        if known is None:
            self.targets[peer] = Target(source, pinned)
            self.changes.notify()
        elif known.hearsay:
            known.source, known.pinned = source, pinned

    def _hearsay(self) -> int:
        return sum(target.hearsay for target in self.targets.values())

    def retry_now(self, peer: PeerId) -> None:
        """Forget the back-off of a host, unless it is held off: something says that it is there."""
        target = self.targets.get(peer)
        if target is not None and not (target.held_off and trio.current_time() < target.next_try):
            target.pause, target.next_try, target.failures = _FIRST_PAUSE, 0.0, 0
            self.changes.notify()

    def hold_off(self, peer: PeerId, error: str) -> None:
        """Do not dial a host again soon: it answered, and it cannot be in this swarm."""
        target = self.targets.setdefault(peer, Target("refused", pinned=False))
        target.pause, target.error, target.held_off = _LONGEST_PAUSE, error, True
        target.next_try = trio.current_time() + _LONGEST_PAUSE

    def troubles(self) -> list[str]:
        """Return one line for each host that cannot be reached: which, why, and when it is tried again."""
        now, connected = trio.current_time(), self._node.connected()
        return [
            f"{target.source} {peer} ({target.error}), next try in {max(0, round(target.next_try - now))} s"
            for peer, target in sorted(self.targets.items())
            if target.error and not target.hearsay and peer not in connected
        ]

    async def run(self) -> None:
        """Dial for as long as the daemon lives."""
        async with trio.open_nursery() as nursery:
            while True:
                seen, now = self.changes.count, trio.current_time()
                due = [target for target in self._idle_targets() if self.targets[target].next_try <= now]
                for peer in due:
                    self.targets[peer].dialling = True
                    nursery.start_soon(self._dial, peer)
                pauses = [self.targets[peer].next_try - now for peer in self._idle_targets()]
                await self.changes.wait(seen, at_most=max(0.05, min(pauses, default=_LONGEST_PAUSE)))

    def _idle_targets(self) -> list[PeerId]:
        connected = self._node.connected()
        return [p for p, t in self.targets.items() if not t.dialling and p not in connected]

    async def _dial(self, peer: PeerId) -> None:
        target = self.targets[peer]
        try:
            async with self._hearsay_places if target.hearsay else self._places:
                await self._node.connect(peer, timeout=_DIAL_WITHIN)
            target.pause, target.failures, target.error = _FIRST_PAUSE, 0, ""
            target.next_try = trio.current_time() + _FIRST_PAUSE
        except NetError as error:
            self._failed(peer, target, str(error))
        finally:
            target.dialling = False
            self.changes.notify()

    def _failed(self, peer: PeerId, target: Target, error: str) -> None:
        target.failures += 1
        if target.failures == 1 and not target.hearsay:
            self._activity.note("host_unreachable", error, peer=peer, source=target.source)
        target.error = error
        target.next_try = trio.current_time() + target.pause
        target.pause = min(2 * target.pause, _LONGEST_PAUSE)
        patience = _FORGET_HEARSAY_AFTER if target.hearsay else _FORGET_AFTER
        if target.failures >= patience and not target.pinned:
            self.targets.pop(peer, None)
