"""AddressBook: where peers were found, so that they are found again. libp2p's own forgets in two minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ring.identity import PeerId, PeerIdError, public_key_of
from swarmd.net.addresses import parse
from swarmd.net.errors import AddressInvalid

_MAX_PEERS = 4096
_MAX_NUMBER = 2**53
_MAX_ADDRESSES = 16


@dataclass(slots=True)
class Known:
    """What is known of one address: s of Unix time of the last good dial (0: never), and failures since."""

    last_success: float = 0.0
    failures: int = 0


class AddressBook:
    """A bounded number of addresses for a bounded number of peers. Addresses are kept without the peer's id."""

    def __init__(self, own: PeerId, *, now: Callable[[], float] = time.time) -> None:
        self._own = own
        self._now = now
        self._peers: dict[PeerId, dict[str, Known]] = {}  # the least recently touched peer first

    def add(self, peer: PeerId, addresses: Iterable[str]) -> tuple[str, ...]:
        """Remember addresses of a peer; those of this host, and those that name no place, never enter.

        Returns:
            The addresses that the book now holds of those given, in normal form.

        """
        if peer == self._own:
            return ()
        taken: dict[str, None] = {}
        for address in addresses:
            try:
                taken[parse(address, peer)] = None
            except AddressInvalid:
                continue  # hearsay from other hosts: what cannot be dialled is of no use, and no one's fault here
        if not taken:
            return ()
        known = self._touch(peer)
        for address in taken:
            known.setdefault(address, Known())
        self._trim(known, keep=set(taken))
        return tuple(address for address in taken if address in known)

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return a peer's addresses, the most promising first: latest success, then fewest failures, then oldest."""
        known = self._peers.get(peer, {})
        return tuple(
            sorted(known, key=lambda address: (-known[address].last_success, known[address].failures))
        )

    def peers(self) -> tuple[PeerId, ...]:
        """Return every peer in the book."""
        return tuple(self._peers)

    def succeeded(self, peer: PeerId, address: str) -> None:
        """Note that a dial reached the peer."""
        if self.add(peer, (address,)):
            self._peers[peer][parse(address)] = Known(self._now(), 0)

    def failed(self, peer: PeerId, address: str) -> None:
        """Note that a dial did not reach the peer."""
        if known := self._peers.get(peer, {}).get(parse(address)):
            known.failures += 1

    def forget(self, peer: PeerId) -> None:
        """Remove a peer."""
        self._peers.pop(peer, None)

    def to_dict(self) -> dict[str, dict[str, dict[str, float | int]]]:
        """Return the book as plain JSON values: {peer: {address: {"last_success", "failures"}}}."""
        return {
            str(peer): {
                address: {"last_success": known.last_success, "failures": known.failures}
                for address, known in addresses.items()
            }
            for peer, addresses in self._peers.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Add what to_dict() returned earlier; entries that are not of that form are left out."""
        for peer, addresses in saved.items():
            if not isinstance(addresses, Mapping) or not _is_peer(peer):
                continue
            for address in self.add(PeerId(peer), (a for a in addresses if isinstance(a, str))):
                facts = addresses.get(address)
                if isinstance(facts, Mapping):
                    self._peers[PeerId(peer)][address] = _known_from(facts)

    def _touch(self, peer: PeerId) -> dict[str, Known]:
        known = self._peers.pop(peer, {})
        self._peers[peer] = known
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        return known

    def _trim(self, known: dict[str, Known], keep: set[str]) -> None:
        """Drop the worst addresses beyond the bound, those just given last of all."""
        surplus = len(known) - _MAX_ADDRESSES
        if surplus > 0:
            worst = sorted(known, key=lambda a: (a in keep, known[a].last_success, -known[a].failures))
            for address in worst[:surplus]:
                del known[address]


def _is_peer(text: str) -> bool:
    try:
        public_key_of(text)
    except PeerIdError:
        return False
    return True


def _known_from(facts: Mapping[str, Any]) -> Known:
    success, failures = facts.get("last_success"), facts.get("failures")
    if not isinstance(success, int | float) or not isinstance(failures, int):
        return Known()
    if not 0 <= success < _MAX_NUMBER or not 0 <= failures < _MAX_NUMBER:
        return Known()
    return Known(float(success), failures)
