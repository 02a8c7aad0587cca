"""What must be true of libp2p, and of this process, before any of libp2p is used.

Importing this module checks the installed version, sets what libp2p reads from the environment, keeps it from
configuring the root logger, and replaces the functions that a remote peer could use to exhaust memory or to break a
healthy connection. docs/libp2p.md lists each fault; tests/net/test_net_upstream_faults.py shows that it is still there.
"""

from __future__ import annotations

import logging
import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import trio

WANTED_VERSION = "0.8.1"
_MAX_NEGOTIATION = 1024  # bytes of one multistream-select message; protocol names are short


class LibraryMismatch(ImportError):
    """Another libp2p is installed than the one that swarmd mends. Install the version that the text names."""

    code = "libp2p_mismatch"


class _Reader(Protocol):
    async def read(self, n: int | None = None) -> bytes: ...


def _check_version() -> None:
    try:
        installed = version("libp2p")
    except PackageNotFoundError:
        installed = "none"
    if installed != WANTED_VERSION:
        raise LibraryMismatch(
            f"swarmd needs libp2p {WANTED_VERSION}, found {installed}: pip install libp2p=={WANTED_VERSION}"
        )


_check_version()
# Credit for read bytes then goes out in batches: over a third less CPU per byte.
os.environ.setdefault("PY_YAMUX_RELEASE_ON_READ", "0")
# Library code calls logging.debug() on the root logger, which would install a handler if there is none.
if not logging.getLogger().handlers:
    logging.getLogger().addHandler(logging.NullHandler())
logging.getLogger("libp2p").addHandler(logging.NullHandler())

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # deprecations inside third-party modules; ours are checked in our own tests
    import libp2p.io.msgio
    import libp2p.protocol_muxer.multiselect_communicator
    import libp2p.pubsub.gossipsub
    import libp2p.stream_muxer.yamux.yamux
    import libp2p.transport.tcp.tcp
    from libp2p.exceptions import ParseError
    from libp2p.io.exceptions import IncompleteReadError
    from libp2p.utils.varint import decode_uvarint_from_stream


async def read_exactly(reader: _Reader, size: int, retry_count: int = 0) -> bytes:
    """Read `size` bytes in as many pieces as they come in (libp2p's own gives up after 100).

    Args:
        reader: what to read from; b"" is its end.
        size: bytes wanted.
        retry_count: ignored; part of the signature that is replaced.

    Raises:
        IncompleteReadError: the stream ended first.

    """
    data = await reader.read(size)
    if len(data) == size:
        return data
    buffer = bytearray(data)
    while data and len(buffer) < size:
        data = await reader.read(size - len(buffer))
        buffer += data
    if len(buffer) < size:
        raise IncompleteReadError(
            f"stream ended after {len(buffer)} of {size} bytes",
            expected_bytes=size,
            received_bytes=len(buffer),
        )
    return bytes(buffer)


async def read_delimited(reader: _Reader) -> bytes:
    """Read one multistream-select message, without its newline.

    Raises:
        ParseError: it is empty, longer than any protocol name, not terminated by a newline, or not UTF-8.
        IncompleteReadError: the stream ended first.

    """
    size = await decode_uvarint_from_stream(reader)
    if not 0 < size <= _MAX_NEGOTIATION:
        raise ParseError(f"multistream message of {size} bytes")
    message = await read_exactly(reader, size)
    if not message.endswith(b"\n"):
        raise ParseError("multistream message without a newline")
    try:
        message.decode()
    except UnicodeDecodeError as error:
        raise ParseError("multistream message is not UTF-8") from error
    return message[:-1]


async def open_listeners(host: str | None, port: int) -> list[trio.SocketListener]:
    """Listen without SO_REUSEPORT, so that a port in use is an error and not shared with another program."""
    return list(await trio.open_tcp_listeners(port, host=host))


libp2p.io.msgio.read_exactly = read_exactly
libp2p.stream_muxer.yamux.yamux.read_exactly = read_exactly
libp2p.protocol_muxer.multiselect_communicator.read_delim = read_delimited
libp2p.transport.tcp.tcp._open_reuseport_listeners = open_listeners
