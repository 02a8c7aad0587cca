"""Channel: a conversation of messages with one peer over one stream.

One task reads the stream and one writes it for as long as the channel lives; callers only touch queues. So a caller
may be cancelled at any point without harm to the stream, which libp2p's own reads and writes do not survive.
"""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Protocol, Self

import trio

from ring.identity import PeerId
from swarmd.net.errors import ChannelBroken, ChannelStalled, NetError
from swarmd.net.framing import END_MARK, Deframer, frame

log = logging.getLogger("swarmd.net")

# The largest plaintext of one noise message (65,519 bytes) less the yamux header: larger pieces would be cut in two.
PIECE_BYTES = 65_507
_READ_BYTES = 1 << 20
_SMALLEST_BOUND = 256 << 10
_LARGEST_BOUND = 64 << 20
_MESSAGE_OVERHEAD = 64  # bytes; counts against a queue's bound, so that tiny messages are bounded too
_STALL_SECONDS = 30.0  # nobody on this side receives while the inbound queue is full
_LINGER_SECONDS = 10.0  # the peer does not end its half after this side has ended and left
_RESET_SECONDS = 1.0


async def first_message(channel: Channel, within: float) -> bytes:
    """Return what the peer that opened a channel says first.

    Raises:
        ChannelBroken: it said nothing within so many seconds, or broke off.

    """
    try:
        with trio.fail_after(within):
            return await channel.receive()
    except trio.TooSlowError:
        raise ChannelBroken(f"{channel!r}: the peer said nothing within {within:g} s") from None


class ByteStream(Protocol):
    """What a channel needs of a stream: read() gives b"" or raises at its end; close() ends the writing half."""

    async def read(self, max_bytes: int) -> bytes:
        """Return between 1 and max_bytes bytes, or b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        ...

    async def close(self) -> None:
        """End the writing half."""
        ...

    async def reset(self) -> None:
        """End both halves at once."""
        ...


def queue_bound(max_message: int) -> int:
    """Return the bytes that a channel's queue holds before its filler must wait: 4 messages, within reason."""
    return max(_SMALLEST_BOUND, max_message, min(4 * max_message, _LARGEST_BOUND))


class Channel:
    """Messages to and from one peer. Use it as a context manager, so that it never outlives its purpose.

    Attributes:
        peer: the other side, whose key the connection has proved.
        protocol: what is spoken.

    """

    def __init__(
        self,
        stream: ByteStream,
        peer: PeerId,
        protocol: str,
        *,
        max_message: int,
        max_inbound: int | None = None,
    ) -> None:
        """max_message: bytes of a message either way; max_inbound: of one that is received, if that is less."""
        self.peer = peer
        self.protocol = protocol
        self._stream = stream
        self._max_message = max_message
        self._outbox_bound = queue_bound(max_message)
        self._inbox_bound = queue_bound(max_inbound or max_message)
        self._deframer = Deframer(max_inbound or max_message)
        self._inbox: deque[bytes] = deque()
        self._inbox_cost = 0
        self._inbox_filled = trio.lowlevel.ParkingLot()
        self._inbox_drained = trio.lowlevel.ParkingLot()
        self._outbox: deque[bytes] = deque()
        self._outbox_cost = 0
        self._outbox_filled = trio.lowlevel.ParkingLot()
        self._outbox_drained = trio.lowlevel.ParkingLot()
        self._ending = False
        self._flushed = trio.Event()
        self._left = trio.Event()  # nobody on this side receives any more
        self._failure: NetError | None = None
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    def __repr__(self) -> str:
        """Name the protocol and the peer."""
        return f"<Channel {self.protocol} with {self.peer}>"

    def admit(self, max_inbound: int) -> None:
        """Take messages of up to max_inbound bytes from here on: the peer has shown that it may send them."""
        self._deframer.max_message = max_inbound
        self._inbox_bound = queue_bound(max_inbound)

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send one message, the concatenation of `parts`; return once it is queued.

        Safe to cancel: the message is then queued whole or not at all.

        Raises:
            ChannelBroken: the channel is over, or was ended on this side.
            ChannelStalled: as ChannelBroken; the peer took nothing for too long.
            MessageTooLarge: the message exceeds the protocol's limit; the channel stays usable.
            ValueError: the message is empty.

        """
        data = frame(parts, self._max_message)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_sendable()
        while self._outbox_cost and self._outbox_cost + len(data) > self._outbox_bound:
            await self._outbox_drained.park()
            self._check_sendable()
        self._outbox.append(data)
        self._outbox_cost += len(data) + _MESSAGE_OVERHEAD
        self._outbox_filled.unpark_all()

    async def receive(self) -> bytes:
        """Return the peer's next message. Safe to cancel: no message is lost.

        Raises:
            trio.EndOfChannel: the peer has ended the conversation, and all of it has been received.
            ChannelBroken: the conversation broke off before the peer's end mark.

        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._inbox:
            if self._deframer.ended and not isinstance(self._failure, ChannelStalled):
                raise trio.EndOfChannel
            if self._failure is not None:
                raise self._failure
            await self._inbox_filled.park()
        message = self._inbox.popleft()
        self._inbox_cost -= len(message) + _MESSAGE_OVERHEAD
        self._inbox_drained.unpark_all()
        return message

    def __aiter__(self) -> Self:
        """Iterate over the peer's messages up to its end mark."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next message."""
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def end(self) -> None:
        """Say that nothing more will be sent, and wait until all of it has been written. Receiving goes on.

        Raises:
            ChannelBroken: the channel broke before everything was written.

        """
        if not self._ending:
            self._ending = True
            self._outbox_filled.unpark_all()
            self._outbox_drained.unpark_all()
        await self._flushed.wait()
        if self._failure is not None and not self._deframer.ended:
            raise self._failure

    async def abort(self) -> None:
        """Break the channel off: both sides get ChannelBroken, what is queued is dropped."""
        self._fail(ChannelBroken(f"{self!r} was aborted on this side"))
        with trio.move_on_after(_RESET_SECONDS):
            await self._over.wait()

    async def __aenter__(self) -> Self:
        """Return the channel itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the conversation if the block was left cleanly, else abort it."""
        if error is not None:
            await self.abort()
            return
        try:
            await self.end()
        except BaseException:
            await self.abort()
            raise
        finally:
            self._leave()

    async def run(self) -> None:
        """Move bytes until both sides have ended or the channel is broken. The node runs it; it does not raise."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._linger)
                    nursery.start_soon(self._write_outbox)
                    await self._read_inbox()
                    await self._flushed.wait()
                    nursery.cancel_scope.cancel()
        finally:
            await self._conclude()

    async def _conclude(self) -> None:
        clean = self._deframer.ended and self._ending and self._flushed.is_set() and self._failure is None
        if not clean:
            self._fail(ChannelBroken(f"{self!r} was closed"))
            with trio.CancelScope(deadline=trio.current_time() + _RESET_SECONDS, shield=True):
                await self._stream.reset()
        self._over.set()

    async def _read_inbox(self) -> None:
        while True:
            data = await self._read_some()
            if not data:
                break
            try:
                messages = self._deframer.feed(data)
            except NetError as error:
                self._fail(error)
                return
            if messages or self._deframer.ended:
                await self._deliver(messages)
        if not self._deframer.ended:
            self._fail(ChannelBroken(f"{self.peer} closed {self.protocol} without its end mark"))

    async def _read_some(self) -> bytes:
        try:
            return await self._stream.read(_READ_BYTES)
        except Exception as error:  # noqa: BLE001 - libp2p raises a dozen kinds, all of which mean that it is over
            if not self._deframer.ended:
                self._fail(
                    ChannelBroken(f"connection to {self.peer} was lost ({error or type(error).__name__})")
                )
            return b""

    async def _deliver(self, messages: list[bytes]) -> None:
        if self._left.is_set():
            return
        self._inbox.extend(messages)
        self._inbox_cost += sum(map(len, messages)) + _MESSAGE_OVERHEAD * len(messages)
        self._inbox_filled.unpark_all()
        while self._inbox_cost > self._inbox_bound:
            with trio.move_on_after(_STALL_SECONDS) as patience:
                await self._inbox_drained.park()
            if patience.cancelled_caught:
                reason = f"{self._inbox_cost} bytes waited {_STALL_SECONDS:.0f} s for a receiver on this side"
                self._fail(ChannelStalled(f"{self!r}: {reason}"))
                return

    async def _write_outbox(self) -> None:
        try:
            while self._outbox or not self._ending:
                if self._outbox:
                    await self._write(self._next_batch())
                else:
                    await self._outbox_filled.park()
            await self._stream.write(END_MARK)
            await self._stream.close()
        except TimeoutError as error:
            self._fail(ChannelStalled(f"{self!r}: {error}"))
        except Exception as error:  # noqa: BLE001 - as in _read_some
            self._fail(ChannelBroken(f"cannot write to {self.peer} ({error or type(error).__name__})"))
        self._flushed.set()

    def _next_batch(self) -> list[bytes]:
        """Take messages that together fit in one piece; a larger message goes alone."""
        batch = [self._outbox.popleft()]
        size = len(batch[0])
        while self._outbox and size + len(self._outbox[0]) <= PIECE_BYTES:
            batch.append(self._outbox.popleft())
            size += len(batch[-1])
        return batch

    async def _write(self, batch: list[bytes]) -> None:
        data = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
        for start in range(0, len(data), PIECE_BYTES):
            await self._stream.write(bytes(data[start : start + PIECE_BYTES]))
        self._outbox_cost -= len(data) + _MESSAGE_OVERHEAD * len(batch)
        self._outbox_drained.unpark_all()

    async def _linger(self) -> None:
        """After this side has ended and left, give the peer some time to end as well."""
        await self._left.wait()
        await self._flushed.wait()
        await trio.sleep(_LINGER_SECONDS)
        self._fail(ChannelBroken(f"{self.peer} did not end {self.protocol} within {_LINGER_SECONDS:.0f} s"))

    def _leave(self) -> None:
        self._left.set()
        self._inbox.clear()
        self._inbox_cost = 0
        self._inbox_drained.unpark_all()

    def _check_sendable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ending:
            raise ChannelBroken(f"{self!r} was ended on this side")

    def _fail(self, error: NetError) -> None:
        """Make the channel over for every user of it; the first reason stands."""
        if self._failure is None:
            self._failure = error
        self._scope.cancel()
        self._flushed.set()
        self._inbox_filled.unpark_all()
        self._outbox_drained.unpark_all()
