"""RttMeter: application-level round trips to connected hosts, on a stream of their own.

They go the way that frames go (same adapter, same event loops), so half of one is what a hop really costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from ring.identity import PeerId
from swarmd.net import Channel, NetError, Node

PROTOCOL = "/swarmd/ping/1"
_MAX_MESSAGE = 64
_WINDOW = 12  # samples in the windowed minimum
_EAGER = 6  # samples taken at once on a new edge
_EAGER_PAUSE = 0.05  # s
_PAUSE = 2.0  # s
_ANSWER_WITHIN = 10.0  # s


class RttMeter:
    """Keeps the windowed minimum of the round trip to each connected host, in microseconds."""

    def __init__(self, node: Node, on_sample: Callable[[PeerId, int], None]) -> None:
        """on_sample(peer, µs) hears every round trip."""
        self._node = node
        self._on_sample = on_sample
        self._samples: dict[PeerId, deque[int]] = {}
        node.handle(PROTOCOL, _echo, max_message=_MAX_MESSAGE, max_channels_per_peer=2)

    def minimum_us(self) -> dict[PeerId, int]:
        """Return {peer: windowed minimum in µs} for the hosts measured so far."""
        return {peer: min(samples) for peer, samples in self._samples.items() if samples}

    async def measure(self, peer: PeerId) -> None:
        """Ping a host until cancelled; then forget what was measured. A host that is slow to answer costs a sample."""
        samples: deque[int] = deque(maxlen=_WINDOW)
        self._samples[peer] = samples
        try:
            while True:
                try:
                    await self._ping(peer, samples)
                except (NetError, trio.EndOfChannel, trio.TooSlowError):
                    await trio.sleep(_PAUSE)
        finally:
            if self._samples.get(peer) is samples:
                del self._samples[peer]

    async def _ping(self, peer: PeerId, samples: deque[int]) -> None:
        async with await self._node.open(peer, PROTOCOL, max_message=_MAX_MESSAGE) as channel:
            while True:
                samples.append(await _round_trip(channel))
                self._on_sample(peer, samples[-1])
                await trio.sleep(_EAGER_PAUSE if len(samples) < _EAGER else _PAUSE)


async def _round_trip(channel: Channel) -> int:
    start = trio.current_time()
    with trio.fail_after(_ANSWER_WITHIN):
        await channel.send(b"ping")
        await channel.receive()
    return max(1, round((trio.current_time() - start) * 1e6))


async def _echo(channel: Channel) -> None:
    async for message in channel:
        await channel.send(message)
