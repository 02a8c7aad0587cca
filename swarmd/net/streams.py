"""Opening a stream and agreeing on its protocol, without libp2p's traps."""

from __future__ import annotations

from typing import Any

import trio
from libp2p.protocol_muxer.exceptions import MultiselectClientError, ProtocolNotSupportedError
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from swarmd.net.errors import ChannelBroken, ProtocolRefused
from swarmd.net.host import reset_quietly

_PATIENCE = 3600  # s; the caller's own deadline comes first
_NOT_SUPPORTED = "protocols not supported"


class MuxedBytes:
    """A libp2p stream as a Channel uses it: reads and writes go to the muxer, ends through the bookkeeping."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, max_bytes: int) -> bytes:
        """Return the next bytes; raise at the end."""
        data: bytes = await self._stream.muxed_stream.read(max_bytes)
        return data

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""
        await self._stream.muxed_stream.write(data)

    async def close(self) -> None:
        """End the writing half."""
        await self._stream.close()

    async def reset(self) -> None:
        """End both halves."""
        await reset_quietly(self._stream)


async def open_stream(connection: Any, protocol: str) -> Any:
    """Open a stream on a connection and negotiate its protocol.

    Safe to cancel: the stream is then reset.

    Raises:
        ProtocolRefused: the peer does not speak the protocol.
        ChannelBroken: the connection is lost, or has too many streams open.

    """
    muxed = connection.muxed_conn
    peer = muxed.peer_id
    if muxed.stream_backlog_semaphore.value == 0:
        raise ChannelBroken(f"too many streams to {peer} are open: close some")
    try:
        # Between the two ends of new_stream() a stream would be lost if it were cancelled. It writes one small frame.
        with trio.CancelScope(shield=True):
            stream = await connection.new_stream()
    except Exception as error:
        raise ChannelBroken(f"cannot open a stream to {peer} ({error})") from error
    agreed = False
    try:
        await MultiselectClient().select_one_of([protocol], MultiselectCommunicator(stream), _PATIENCE)
        agreed = True
    except MultiselectClientError as error:
        if isinstance(error, ProtocolNotSupportedError) or _NOT_SUPPORTED in str(error):
            raise ProtocolRefused(f"{peer} does not speak {protocol}") from error
        raise ChannelBroken(f"cannot open {protocol} to {peer} ({error})") from error
    finally:
        if not agreed:
            with trio.CancelScope(shield=True):
                await reset_quietly(stream)
    stream.set_protocol(protocol)
    return stream
