"""UplinkMeter: how fast this host can send, timed by those who receive, over the daemons' own streams.

Only between hosts that compute for nobody: what is measured beside a ring's frames would delay them, and be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from ring.identity import PeerId
from swarmd.facts import OwnFacts
from swarmd.net import Channel, NetError, Node, ProtocolRefused, pack, unpack
from swarmd.rtt import RttMeter
from swarmd.view import SwarmView

PROTOCOL = "/swarmd/uplink/1"
_PIECE = 64 << 10  # bytes of a message
_MOST = 8 << 20  # bytes of one measurement
_FOR = 0.5  # s in which they are sent; what a slow line has queued by then still counts
_END = b"end"
_LEAST = 4  # pieces: fewer say nothing
_WITHIN = 30.0  # s for a whole measurement
_FIRST_AFTER = 10.0  # s of life: everybody loads and measures at the start
_EVERY = 600.0  # s
_AGAIN = 20.0  # s until a host that was busy is asked again
_NOT_SOONER = 60.0  # s between two measurements that a peer may ask for
_PEERS = 3  # the nearest: whoever receives more slowly than this host sends says nothing of its uplink
_ANSWER = 256  # bytes
_IDLE_STATES = ("standby", "member")


class UplinkMeter:
    """Measures this host's uplink now and then, and times others that measure theirs."""

    def __init__(
        self, node: Node, view: SwarmView, facts: OwnFacts, meter: RttMeter, on_rate: Callable[[int], None]
    ) -> None:
        """on_rate(bytes per second) hears the result of each round."""
        self._node = node
        self._view = view
        self._facts = facts
        self._meter = meter
        self._on_rate = on_rate
        self._is_timing = False
        self._timed: dict[PeerId, float] = {}
        node.handle(PROTOCOL, self._receive, max_message=_PIECE, max_channels_per_peer=1)

    async def run(self) -> None:
        """Measure for as long as the daemon lives."""
        pause = _FIRST_AFTER
        while True:
            await trio.sleep(pause)
            pause = _EVERY if await self.measure() else _AGAIN

    async def measure(self) -> bool:
        """Send to the nearest idle hosts, one after the other; returns whether at least one could time it."""
        nearest = sorted(self._meter.minimum_us().items(), key=lambda item: (item[1], item[0]))
        rates: list[int] = []
        for peer, _ in nearest:
            if len(rates) < _PEERS and self._is_idle and self._is_idle_there(peer):
                try:
                    with trio.fail_after(_WITHIN):
                        rates.append(await self._send(peer))
                except (NetError, trio.EndOfChannel, trio.TooSlowError):
                    continue  # it is busy or gone; another one will do
        if not rates:
            return False
        self._on_rate(max(rates))
        return True

    @property
    def _is_idle(self) -> bool:
        return not self._facts.sessions and self._facts.state in _IDLE_STATES

    def _is_idle_there(self, peer: PeerId) -> bool:
        host = self._view.announcement(peer)
        return host is not None and not host.sessions and host.state in _IDLE_STATES

    async def _send(self, peer: PeerId) -> int:
        """Return the bytes per second that a peer has received. Raises NetError, trio.EndOfChannel."""
        piece, sent, began = bytes(_PIECE), 0, trio.current_time()
        async with await self._node.open(peer, PROTOCOL, max_message=_PIECE) as channel:
            while sent < _MOST and trio.current_time() - began < _FOR:
                if not self._is_idle:
                    raise ProtocolRefused("a session has begun here")
                await channel.send(piece)
                sent += _PIECE
            await channel.send(_END)
            return _rate_in(peer, unpack(await channel.receive(), limit=_ANSWER))

    async def _receive(self, channel: Channel) -> None:
        now = trio.current_time()
        self._timed = {peer: at for peer, at in self._timed.items() if now - at < _NOT_SOONER}
        if self._is_timing or not self._is_idle or channel.peer in self._timed:
            raise ProtocolRefused("this host has no time to time an uplink")
        self._is_timing = True
        self._timed[channel.peer] = now
        try:
            with trio.fail_after(_WITHIN):
                arrivals = await self._arrivals(channel)
        except (trio.TooSlowError, trio.EndOfChannel) as error:
            raise ProtocolRefused(f"{channel.peer} did not send to the end") from error
        finally:
            self._is_timing = False
        await channel.send(pack({"rate": rate_of(arrivals)}))

    async def _arrivals(self, channel: Channel) -> list[tuple[int, int]]:
        """Return (nanosecond, bytes) of every piece as it came."""
        arrivals: list[tuple[int, int]] = []
        while len(arrivals) <= _MOST // _PIECE:
            message = await channel.receive()
            if message == _END:
                return arrivals
            if not self._is_idle:
                break
            arrivals.append((round(trio.current_time() * 1e9), len(message)))
        raise ProtocolRefused("this host has no time to time an uplink")


def rate_of(arrivals: Sequence[tuple[int, int]]) -> int:
    """Return the bytes per second at which the later half of some pieces came; 0 where they are too few to say.

    The earlier half is left out: a connection that has idled is slow to start (RFC 5681, slow start).

    Args:
        arrivals: (nanosecond, bytes) of every piece, in order.

    """
    if len(arrivals) < _LEAST:
        return 0
    later = arrivals[len(arrivals) // 2 - 1 :]
    elapsed = later[-1][0] - later[0][0]
    return sum(size for _, size in later[1:]) * 10**9 // max(elapsed, 1)


def _rate_in(peer: PeerId, answer: dict[str, Any]) -> int:
    rate = answer.get("rate")
    if not isinstance(rate, int) or isinstance(rate, bool) or not 0 < rate < 1 << 50:
        raise ProtocolRefused(f"{peer} tells no rate: {answer!r:.100}")
    return rate
