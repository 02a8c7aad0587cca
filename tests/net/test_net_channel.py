"""Channel over streams in memory, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ring.identity import PeerId
from swarmd.net import Channel, ChannelBroken, ChannelStalled, MessageMalformed, MessageTooLarge
from swarmd.net.channel import PIECE_BYTES
from swarmd.net.framing import END_MARK, frame

LIMIT = 1 << 20
PEER = PeerId("peer")


class MemoryBytes:
    """One end of a stream in memory, which records what is done to it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.writes: list[bytes] = []
        self.was_reset = False

    async def read(self, max_bytes: int) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def write(self, data: bytes) -> None:
        self.writes.append(data)
        await self.stream.send_all(data)

    async def close(self) -> None:
        await self.stream.send_eof()

    async def reset(self) -> None:
        self.was_reset = True
        await self.stream.aclose()


@asynccontextmanager
async def running(*channels: Channel) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for channel in channels:
            nursery.start_soon(channel.run)
        yield nursery
        nursery.cancel_scope.cancel()


def two_ends(limit: int = LIMIT) -> tuple[Channel, Channel, MemoryBytes, MemoryBytes]:
    """A pair whose writers wait for the reader, as a closed yamux window makes them."""
    one, other = (MemoryBytes(end) for end in trio.testing.lockstep_stream_pair())
    return (
        Channel(one, PEER, "/t/1", max_message=limit),
        Channel(other, PEER, "/t/1", max_message=limit),
        one,
        other,
    )


def one_end(limit: int = LIMIT) -> tuple[Channel, MemoryBytes, Any]:
    mine, wire = trio.testing.memory_stream_pair()
    stream = MemoryBytes(mine)
    return Channel(stream, PEER, "/t/1", max_message=limit), stream, wire


async def send_for_ever(channel: Channel) -> None:
    while True:
        await channel.send(bytes(LIMIT))


async def sends_within(seconds: float, channel: Channel) -> int:
    deadline = trio.current_time() + seconds
    for sent in range(1000):
        with trio.move_on_at(deadline) as patience:
            await channel.send(bytes(LIMIT))
        if patience.cancelled_caught:
            return sent
    raise AssertionError("a thousand messages were queued")


async def test_messages_arrive_in_order_and_the_end_mark_ends_them(autojump_clock: MockClock) -> None:
    left, right, _, _ = two_ends()
    async with running(left, right):
        for number in range(20):
            await left.send(b"%d" % number)
        await left.end()
        assert [message async for message in right] == [b"%d" % number for number in range(20)]
        with pytest.raises(trio.EndOfChannel):
            await right.receive()


async def test_after_its_peer_has_ended_a_channel_can_still_send(autojump_clock: MockClock) -> None:
    left, right, _, _ = two_ends()
    async with running(left, right):
        await left.end()
        with pytest.raises(trio.EndOfChannel):
            await right.receive()
        async with right:
            await right.send(b"still here")
        assert [message async for message in left] == [b"still here"]


async def test_both_sides_end_without_a_reset(autojump_clock: MockClock) -> None:
    left, right, left_bytes, right_bytes = two_ends()
    async with running(left, right):
        async with left, right:
            await left.send(b"x")
            assert await right.receive() == b"x"
        await trio.testing.wait_all_tasks_blocked()
    assert not left_bytes.was_reset
    assert not right_bytes.was_reset


async def test_a_stream_that_ends_without_the_end_mark_is_broken_not_ended(autojump_clock: MockClock) -> None:
    channel, _, wire = one_end()
    async with running(channel):
        await wire.send_all(frame([b"last"], LIMIT))
        await wire.send_eof()
        assert await channel.receive() == b"last"
        with pytest.raises(ChannelBroken, match="without its end mark"):
            await channel.receive()


async def test_a_stream_that_fails_breaks_receivers_and_senders(autojump_clock: MockClock) -> None:
    channel, stream, _ = one_end()

    async def fail(max_bytes: int) -> bytes:
        raise RuntimeError("wire cut")

    stream.read = fail  # type: ignore[method-assign]
    async with running(channel):
        with pytest.raises(ChannelBroken, match="wire cut"):
            await channel.receive()
        with pytest.raises(ChannelBroken, match="wire cut"):
            await channel.send(b"x")
    assert stream.was_reset


async def test_a_message_over_the_limit_breaks_the_channel_from_its_header(autojump_clock: MockClock) -> None:
    channel, stream, wire = one_end(100)
    async with running(channel):
        await wire.send_all((101).to_bytes(4, "big"))
        with pytest.raises(MessageTooLarge, match="101"):
            await channel.receive()
    assert stream.was_reset


async def test_a_message_too_large_to_send_leaves_the_channel_usable(autojump_clock: MockClock) -> None:
    channel, _, wire = one_end(100)
    async with running(channel):
        with pytest.raises(MessageTooLarge, match="101"):
            await channel.send(bytes(101))
        await channel.send(b"ok")
        assert await wire.receive_some(100) == frame([b"ok"], 100)


async def test_bytes_after_the_end_mark_reset_the_channel(autojump_clock: MockClock) -> None:
    channel, stream, wire = one_end()
    async with running(channel):
        await wire.send_all(END_MARK + b"more")
        with pytest.raises((MessageMalformed, trio.EndOfChannel)):
            await channel.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert stream.was_reset


async def test_a_cancelled_receive_loses_no_message(autojump_clock: MockClock) -> None:
    left, right, _, _ = two_ends()
    async with running(left, right):
        for number in range(10):
            with trio.move_on_after(1):
                await right.receive()
            await left.send(b"%d" % number)
            assert await right.receive() == b"%d" % number


async def test_a_cancelled_send_sends_all_or_nothing(autojump_clock: MockClock) -> None:
    left, right, _, _ = two_ends()
    async with running(left, right):
        sent = await sends_within(
            1, left
        )  # nobody receives: the queues fill, then a send waits and is cancelled
        assert sent > 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.end)
            received = [len(got) async for got in right]
    assert received == [LIMIT] * sent


async def test_a_receiver_that_takes_nothing_makes_the_sender_wait_not_the_queue_grow(
    autojump_clock: MockClock,
) -> None:
    left, right, _, _ = two_ends()
    async with running(left, right):
        sent = await sends_within(5, left)
        assert sent <= 12  # two queues of 4 MiB and what is on the wire


async def test_a_receiver_that_never_comes_stalls_the_channel_by_name(autojump_clock: MockClock) -> None:
    left, right, _, right_bytes = two_ends()

    async def fill() -> None:
        with pytest.raises(ChannelBroken):
            await send_for_ever(left)

    async with running(left, right) as nursery:
        nursery.start_soon(fill)
        await trio.sleep(60)
        with pytest.raises(ChannelStalled, match="receiver on this side"):
            [message async for message in right]
        assert right_bytes.was_reset


async def test_a_stream_that_takes_nothing_stalls_the_sender_by_name(autojump_clock: MockClock) -> None:
    channel, stream, _ = one_end()

    async def stall(data: bytes) -> None:
        raise TimeoutError("the peer took nothing")

    stream.write = stall  # type: ignore[method-assign]
    async with running(channel):
        with pytest.raises(ChannelStalled, match="took nothing"):
            async with channel:
                await channel.send(b"x")


async def test_an_exception_inside_the_block_aborts_and_passes_through(autojump_clock: MockClock) -> None:
    left, right, left_bytes, _ = two_ends()
    async with running(left, right):
        with pytest.raises(RuntimeError, match="bug"):
            async with left:
                raise RuntimeError("bug")
        with pytest.raises(ChannelBroken):
            await right.receive()
    assert left_bytes.was_reset


async def test_a_peer_that_never_ends_is_left_after_a_while(autojump_clock: MockClock) -> None:
    channel, stream, wire = one_end()
    async with running(channel):
        async with channel:
            await channel.send(b"bye")
        assert not stream.was_reset
        await wire.send_all(frame([b"but"], LIMIT))
        await trio.sleep(60)
        assert stream.was_reset


async def test_small_messages_waiting_together_cross_in_one_write(autojump_clock: MockClock) -> None:
    channel, stream, _ = one_end()
    for number in range(50):
        await channel.send(b"%03d" % number)
    async with running(channel):
        await channel.end()
    assert stream.writes == [b"".join(frame([b"%03d" % number], LIMIT) for number in range(50)), END_MARK]


async def test_no_write_exceeds_one_noise_message(autojump_clock: MockClock) -> None:
    channel, stream, _ = one_end()
    await channel.send(bytes(300_000))
    async with running(channel):
        await channel.end()
    assert max(map(len, stream.writes)) == PIECE_BYTES
    assert sum(map(len, stream.writes)) == 300_000 + 4 + len(END_MARK)


async def test_sending_after_the_end_is_refused(autojump_clock: MockClock) -> None:
    channel, _, _ = one_end()
    async with running(channel):
        await channel.end()
        with pytest.raises(ChannelBroken, match="ended on this side"):
            await channel.send(b"x")
