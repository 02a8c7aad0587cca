"""Framing of channels: each message is 4 bytes big-endian length and then its bytes; length 0 ends the conversation."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from swarmd.net.errors import MessageMalformed, MessageTooLarge

HEADER_BYTES = 4
END_MARK = bytes(HEADER_BYTES)
_LENGTH = struct.Struct(">I")


def frame(parts: Sequence[bytes | memoryview], max_message: int) -> bytes:
    """Return one message, the concatenation of `parts`, as it crosses the wire.

    Raises:
        MessageTooLarge: the message has more than `max_message` bytes.
        ValueError: the message is empty; length 0 is the end mark.

    """
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    if size == 0:
        raise ValueError("a message has at least one byte: length 0 is the end mark")
    if size > max_message:
        raise MessageTooLarge(f"message of {size} bytes exceeds the protocol's limit of {max_message}")
    return b"".join((_LENGTH.pack(size), *parts))


class Deframer:
    """Cuts a byte stream, fed in arbitrary pieces, into messages.

    Attributes:
        max_message: bytes of the longest message that is taken; may be changed between messages.
        ended: whether the end mark has been read.

    """

    def __init__(self, max_message: int) -> None:
        self.max_message = max_message
        self._buffer = bytearray()
        self.ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream and return the messages that they complete.

        Raises:
            MessageTooLarge: a length exceeds the limit; known from its header, before the message is collected.
            MessageMalformed: there are bytes after the end mark.

        """
        if self.ended and data:
            raise MessageMalformed("bytes after the end mark")
        self._buffer += data
        messages: list[bytes] = []
        start, available = 0, len(self._buffer)
        while available - start >= HEADER_BYTES:
            size = self._size_at(start)
            if size == 0:
                self._end(available - start)
                start = available
                break
            stop = start + HEADER_BYTES + size
            if stop > available:
                break
            with memoryview(self._buffer) as view:
                messages.append(bytes(view[start + HEADER_BYTES : stop]))
            start = stop
        del self._buffer[:start]
        return messages

    def _size_at(self, start: int) -> int:
        size: int = _LENGTH.unpack_from(self._buffer, start)[0]
        if size > self.max_message:
            raise MessageTooLarge(f"peer sends {size} bytes; the protocol's limit is {self.max_message}")
        return size

    def _end(self, left: int) -> None:
        self.ended = True
        if left > HEADER_BYTES:
            raise MessageMalformed("bytes after the end mark")
