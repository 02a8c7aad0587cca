"""Multiaddrs as swarmd uses them: TCP over IPv4, IPv6 or a DNS name, with or without the peer's id at the end."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence

import psutil
from multiaddr import Multiaddr
from multiaddr.exceptions import BinaryParseError, ParseError, ProtocolLookupError, ProtocolNotFoundError

from ring.identity import PeerId
from swarmd.net.errors import AddressInvalid

_MAX_TEXT = 256
_HOSTS = {"ip4", "ip6", "dns", "dns4", "dns6"}
_HOW = "write it like /ip4/192.0.2.7/tcp/4001"


def parse(address: str, peer: PeerId | None = None) -> str:
    """Return a dialable address in its normal form, without the peer's id.

    Args:
        address: a multiaddr, with or without /p2p/<peer id>.
        peer: whose address it is said to be.

    Raises:
        AddressInvalid: it is not a TCP multiaddr, it names no place (0.0.0.0, ::, port 0), or it is another peer's.

    """
    protocols = _protocols(address)
    host, name = protocols[0]
    port = protocols[1][1]
    if port == "0" or (host.startswith("ip") and ipaddress.ip_address(name).is_unspecified):
        raise AddressInvalid(
            f"address {address!r} can be listened on but not dialled: name the host and its port"
        )
    if len(protocols) == 3 and peer is not None and protocols[2][1] != peer:
        raise AddressInvalid(f"address {address!r} is not one of {peer}")
    return f"/{host}/{name}/tcp/{port}"


def parse_listen(address: str) -> tuple[str, int]:
    """Return (IP address, port) of an address to listen on; port 0 lets the system choose.

    Raises:
        AddressInvalid: it is not a TCP multiaddr of an IP address.

    """
    protocols = _protocols(address)
    if protocols[0][0] not in {"ip4", "ip6"} or len(protocols) != 2:
        raise AddressInvalid(f"cannot listen on {address!r}: {_HOW}")
    return protocols[0][1], int(protocols[1][1])


def split_peer(address: str) -> tuple[PeerId, str]:
    """Split a full address into the peer that it ends with and the rest.

    Raises:
        AddressInvalid: it is not a dialable TCP multiaddr with /p2p/<peer id> at its end.

    """
    protocols = _protocols(address)
    if len(protocols) != 3:
        raise AddressInvalid(f"address {address!r} lacks the peer: add /p2p/<peer id> at its end")
    return PeerId(protocols[2][1]), parse(address)


def advertised(bound: Iterable[tuple[str, int]], announce: Sequence[str], peer: PeerId) -> tuple[str, ...]:
    """Return the full addresses at which others may find this host, best first.

    Args:
        bound: (IP address, port) of each listening socket.
        announce: addresses that the user wants named first, as given to open_node.
        peer: this host.

    """
    found: dict[str, bool] = {}  # address → whether it is loopback that was not asked for
    for ip, port in bound:
        wildcard = ipaddress.ip_address(ip).is_unspecified
        for place in _interface_ips(ip) if wildcard else [ip]:
            address = f"/{'ip6' if ':' in place else 'ip4'}/{place}/tcp/{port}"
            found.setdefault(address, wildcard and ipaddress.ip_address(place).is_loopback)
    if not all(found.values()):
        found = {address: unwanted for address, unwanted in found.items() if not unwanted}
    ordered = sorted(found, key=_is_loopback)
    return tuple(dict.fromkeys(f"{address}/p2p/{peer}" for address in (*map(parse, announce), *ordered)))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("/")[2]).is_loopback


def _interface_ips(wildcard: str) -> list[str]:
    family = socket.AF_INET6 if ":" in wildcard else socket.AF_INET
    addresses = [a.address for nic in psutil.net_if_addrs().values() for a in nic if a.family == family]
    return [ip for ip in addresses if "%" not in ip]  # a scope id means nothing to another host


def _protocols(address: str) -> list[tuple[str, str]]:
    """Return [(host protocol, host), ("tcp", port)] and, if the address has it, ("p2p", peer)."""
    try:
        if len(address) > _MAX_TEXT:
            raise ValueError(f"{len(address)} characters are too many")
        items = [(protocol.name, str(value)) for protocol, value in Multiaddr(address).items()]
    except (
        ValueError, LookupError, TypeError, ParseError, BinaryParseError, ProtocolLookupError, ProtocolNotFoundError,
    ) as error:  # fmt: skip
        raise AddressInvalid(
            f"address {address[:_MAX_TEXT]!r} is not a multiaddr ({error}): {_HOW}"
        ) from error
    names = [name for name, _ in items]
    if len(items) < 2 or names[0] not in _HOSTS or names[1:] not in (["tcp"], ["tcp", "p2p"]):
        raise AddressInvalid(f"address {address!r} is not a plain TCP address: {_HOW}")
    return items
