"""Yamux as a ring needs it: no deadlock under traffic both ways, cancel-safe frames, dead peers detected."""

from __future__ import annotations

import logging
import struct
from typing import Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux

log = logging.getLogger("swarmd.net")

DEAD_AFTER = 10.0  # s without an inbound byte; three pings go unanswered in that time
_WRITE_STALL = 30.0  # s that one frame may wait for the socket
_WINDOW_STALL = 60.0  # s that a writer waits for a peer that reads nothing
_MAX_UNWRITTEN = 256  # frames that the reader may leave to be written: answers to a flood must not pile up
_LOOK_AGAIN = 0.25  # s between looks at whether a stream died while its window was closed
_MAX_FRAME = yamux.MAX_MESSAGE_SIZE - yamux.HEADER_SIZE


class SafeStream(yamux.YamuxStream):  # type: ignore[misc]  # libp2p is untyped here
    """A stream whose writer wakes when the window opens (not by polling) and waits as long as the peer lives."""

    _send_window = 0
    _window_opened: trio.Event | None = None
    _consumed = 0  # bytes read since the peer was last given credit

    @property
    def send_window(self) -> int:
        """Bytes that the peer is ready to take."""
        return self._send_window

    @send_window.setter
    def send_window(self, size: int) -> None:
        self._send_window = size
        if size > 0 and self._window_opened is not None:
            self._window_opened.set()
            self._window_opened = None

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            TimeoutError: the peer opened its window no further for a minute.
            MuxedStreamError: the stream is closed.

        """
        sent = 0
        while sent < len(data):
            await self._wait_for_window()
            chunk = data[sent : sent + min(self._send_window, _MAX_FRAME)]
            self._send_window -= len(chunk)
            header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_DATA, 0, self.stream_id, len(chunk))
            await self.conn._write_frame(header + chunk)
            sent += len(chunk)

    async def _wait_for_window(self) -> None:
        deadline = trio.current_time() + _WINDOW_STALL
        while True:
            if self.send_closed or self.closed:
                raise MuxedStreamError("stream is closed")
            if self._send_window > 0:
                return
            if trio.current_time() >= deadline:
                raise TimeoutError(f"the peer took nothing for {_WINDOW_STALL:.0f} s")
            if self._window_opened is None:
                self._window_opened = trio.Event()
            with trio.move_on_after(_LOOK_AGAIN):
                await self._window_opened.wait()

    async def read(self, n: int | None = None) -> bytes:
        """Return up to n bytes as soon as there are any.

        Raises:
            MuxedStreamReset: the stream was reset.
            MuxedStreamEOF: the peer, or the connection, is done.

        """
        while True:
            buffer = self.conn.stream_buffers.get(self.stream_id)
            if buffer:
                return await self._take(buffer, n)
            if self.reset_received:
                raise MuxedStreamReset("stream was reset")
            event = self.conn.stream_events.get(self.stream_id)
            if buffer is None or event is None or self.recv_closed or self.closed:
                raise MuxedStreamEOF("stream is closed for receiving")
            await event.wait()
            if self.stream_id in self.conn.stream_events:
                self.conn.stream_events[self.stream_id] = trio.Event()

    async def reset(self) -> None:
        """End both halves. What was received and not read goes at once; stock, it stays for a minute and more."""
        await super().reset()
        async with self.conn.streams_lock:
            self.conn.stream_buffers.pop(self.stream_id, None)
            self.conn._finalize_stream_locked(self, fully_closed=True)

    async def _take(self, buffer: bytearray, n: int | None) -> bytes:
        size = len(buffer) if n is None or n < 0 else min(n, len(buffer))
        data = bytes(buffer[:size])
        del buffer[:size]
        if self.closed and not buffer:
            await self.conn._finalize_stream(self, fully_closed=True)
        self._consumed += size
        # Half a window at a time: stock, small reads cost one frame of credit each.
        if self._consumed >= self.target_recv_window // 2 and not self.recv_closed:
            consumed, self._consumed = self._consumed, 0
            await self._auto_tune_and_send_window_update(bytes_read=consumed)
        return data


class SafeYamux(yamux.Yamux):  # type: ignore[misc]  # libp2p is untyped here
    """A connection that ends when the peer is silent too long, and never because of a cancelled caller."""

    def __init__(self, conn: Any, peer_id: Any, *, is_initiator: bool, dead_after: float) -> None:
        super().__init__(conn, peer_id, is_initiator=is_initiator)
        self._dead_after = dead_after
        self._reader: trio.lowlevel.Task | None = None
        self._last_received = 0.0
        self._unwritten = 0

    async def start(self) -> None:
        """Serve the connection until it ends; whatever goes wrong ends this connection only."""
        try:
            await super().start()
        except Exception as error:  # noqa: BLE001 - would otherwise end the host
            log.warning("connection to %s failed: %r", self.peer_id, error)
            await self._cleanup_on_error()

    async def handle_incoming(self) -> None:
        """Note when bytes come in: any of them proves the peer alive."""
        self._reader = trio.lowlevel.current_task()
        self._last_received = trio.current_time()
        read = self.secured_conn.read

        async def noting_read(n: int | None = None) -> bytes:
            data: bytes = await read(n)
            self._last_received = trio.current_time()
            return data

        self.secured_conn.read = noting_read
        await super().handle_incoming()

    async def _write_frame(self, data: bytes) -> None:
        # The reader must never wait for the write lock: two peers that both did would wait for each other.
        if trio.lowlevel.current_task() is not self._reader:
            await self._write_whole(data)
        elif self._unwritten < _MAX_UNWRITTEN:
            self._write_later(data)
        else:
            await self.abort()

    def _write_later(self, data: bytes) -> None:
        self._unwritten += 1
        self._nursery.start_soon(self._write_or_abort, data)

    async def _write_or_abort(self, data: bytes) -> None:
        try:
            await self._write_whole(data)
        except Exception as error:  # noqa: BLE001 - the reader finds the connection closed and cleans up
            log.debug("cannot write to %s: %r", self.peer_id, error)
            await self.abort()
        finally:
            self._unwritten -= 1

    async def _write_whole(self, data: bytes) -> None:
        """Write a frame in spite of cancellation: noise has advanced its nonce, so half a frame ends the connection."""
        with trio.CancelScope(deadline=trio.current_time() + _WRITE_STALL, shield=True) as patience:
            async with self._write_lock:
                await self.secured_conn.write(data)
        if patience.cancelled_caught:
            await self.abort()
            raise ConnectionClosedError("the peer takes no bytes", transport="tcp")

    async def abort(self) -> None:
        """Close the socket now. The orderly close would queue behind the write lock."""
        conn = self.secured_conn
        while inner := _inner(conn):
            conn = inner
        with trio.CancelScope(shield=True):
            await conn.close()

    async def _measure_rtt_loop(self) -> None:
        interval = self._dead_after / 3
        while not self.event_shutting_down.is_set():
            self._ping_id += 1
            self._ping_sent_time = tick = trio.current_time()
            ping = struct.pack(
                yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_PING, yamux.FLAG_SYN, 0, self._ping_id
            )
            self._write_later(ping)
            with trio.move_on_after(interval):
                await self.event_shutting_down.wait()
            now = trio.current_time()
            if now - tick > 2 * interval:
                self._last_received = now  # this process slept; the peer could not be heard
            if now - self._last_received > self._dead_after:
                log.info("no byte from %s for %.1f s: connection closed", self.peer_id, self._dead_after)
                await self.abort()
                return


def _inner(conn: Any) -> Any:
    for name in ("conn", "read_writer", "read_write_closer"):
        inner = getattr(conn, name, None)
        if inner is not None:
            return inner
    return None


class YamuxNegotiator(MuxerMultistream):  # type: ignore[misc]  # libp2p is untyped here
    """Negotiates yamux and builds SafeYamux; the stock one builds its own class whatever it is configured with."""

    dead_after = DEAD_AFTER

    async def new_conn(self, conn: Any, peer_id: Any) -> SafeYamux:
        """Return the muxed connection over a secured one."""
        protocol, muxer = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = muxer(conn, peer_id, is_initiator=conn.is_initiator, dead_after=self.dead_after)
        self._annotate_connection(muxed, conn, protocol)
        return muxed  # type: ignore[no-any-return]  # SafeYamux is all that it is built with


# Streams are constructed inside Yamux by this name.
yamux.YamuxStream = SafeStream
