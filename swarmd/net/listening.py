"""Listening: every address that was asked for, or an error that names it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

from multiaddr import Multiaddr

from swarmd.net.addresses import parse_listen
from swarmd.net.errors import ListenFailed


async def listen_on(host: Any, address: str) -> None:
    """Listen on one more address.

    Raises:
        AddressInvalid: it is not an address to listen on.
        ListenFailed: the system does not allow it.

    """
    ip, port = parse_listen(address)
    _probe(address, ip, port)
    if not await host.get_network().listen(Multiaddr(address)):
        raise ListenFailed(f"cannot listen on {address}: choose another swarm.listen")


def bound_addresses(host: Any) -> Iterator[tuple[str, int]]:
    """Yield (IP address, port) of each listening socket."""
    for listener in host.get_network().listeners.values():
        for address in listener.get_addrs():
            yield parse_listen(str(address))


def _probe(address: str, ip: str, port: int) -> None:
    """Bind and let go: libp2p says that listening failed, but not why."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((ip, port))
    except OSError as error:
        hint = "choose another swarm.listen"
        if error.errno == errno.EADDRINUSE:
            hint += " or stop the other program"
        raise ListenFailed(f"cannot listen on {address}: {error.strerror or error}; {hint}") from error
