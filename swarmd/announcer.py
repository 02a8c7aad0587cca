"""Announcer: says to the swarm what this host is and does, at a steady pace and at once when something changes."""

from __future__ import annotations

import trio

from ring.announcement import Announcement, AnnouncementError, SignedAnnouncement, signed, verified
from ring.envelope import EnvelopeError
from ring.hello import WIRE, Hello
from ring.identity import PeerId
from swarmd import __version__
from swarmd.activity import Activity
from swarmd.facts import OwnFacts
from swarmd.net import NetError, Node
from swarmd.rtt import RttMeter
from swarmd.state_dir import HostKey
from swarmd.view import SwarmView

_AT_ONCE = 0.1  # s to gather changes before saying them
_MAX_RTTS = 64
_MAX_ADDRESSES = 8
_EXCHANGED_PEERS = 32


class Announcer:
    """Builds, signs and publishes this host's announcements; the last one also goes out with every hello."""

    def __init__(
        self,
        key: HostKey,
        incarnation: int,
        node: Node,
        view: SwarmView,
        facts: OwnFacts,
        meter: RttMeter,
        activity: Activity,
    ) -> None:
        self._key = key
        self._incarnation = incarnation
        self._sequence = 0
        self._leaving = False
        self._last: SignedAnnouncement | None = None
        self._node = node
        self._view = view
        self._facts = facts
        self._meter = meter
        self._activity = activity
        self._topic = f"/swarmd/{view.swarm}/announce/{WIRE}"

    def hello(self) -> Hello:
        """Return what this host says first on a new connection."""
        known = [(signed.announcement.peer, signed.announcement.addresses) for signed in self._view.alive()]
        said = self._last or self.say()
        return Hello(WIRE, __version__, self._view.swarm, said.data, tuple(known[:_EXCHANGED_PEERS]))

    def say(self) -> SignedAnnouncement:
        """Build and sign the next announcement, and take it into the own view."""
        facts, self._sequence = self._facts, self._sequence + 1
        rtts = sorted(self._meter.minimum_us().items(), key=lambda item: item[1])[:_MAX_RTTS]
        announcement = Announcement(
            swarm=self._view.swarm,
            peer=self._key.peer,
            incarnation=self._incarnation,
            sequence=self._sequence,
            addresses=self._node.addresses()[:_MAX_ADDRESSES],
            version=__version__,
            wire=WIRE,
            state="leaving" if self._leaving else facts.state,
            seniority=self._view.seniority,
            leader=facts.leader,
            term=facts.term,
            plan=facts.plan,
            device=facts.device,
            memory_limit=facts.memory_limit,
            memory_free=facts.memory_free,
            model=facts.model,
            layer_ns=facts.layer_ns,
            tail_ns=facts.tail_ns,
            rtt_us=tuple(sorted(rtts)),
            block=facts.block,
            sessions=facts.sessions,
            uplink=facts.uplink,
            overhead_ns=facts.overhead_ns,
            load_rate=facts.load_rate,
        )
        said = verified(signed(announcement, self._key.sign, self._key.public_key))
        self._view.heard(said)
        self._last = said
        return said

    async def say_farewell(self) -> None:
        """Announce that this host leaves; from here on it says nothing else, however it is asked."""
        self._leaving = True
        await self.publish(self.say())

    async def run(self) -> None:
        """Announce for as long as the daemon lives."""
        while True:
            seen = self._facts.changes.count
            await self.publish(self.say())
            await self._facts.changes.wait(seen, at_most=self._view.announce_interval())
            await trio.sleep(_AT_ONCE)

    async def listen(self) -> None:
        """Take what the other hosts announce."""
        async with self._node.subscribe(self._topic, validate=self._is_sound) as messages:
            async for _, data in messages:
                self._view.heard_bytes(data)

    async def publish(self, said: SignedAnnouncement) -> None:
        """Send an announcement to the swarm."""
        try:
            await self._node.publish(self._topic, said.data)
        except NetError as error:
            self._activity.note("announcement_not_sent", str(error))

    def _is_sound(self, forwarder: PeerId, data: bytes) -> bool:
        """Decide whether a message may be passed on to others: forged ones and other swarms' stop here."""
        try:
            return verified(data).announcement.swarm == self._view.swarm
        except (AnnouncementError, EnvelopeError):
            return False
