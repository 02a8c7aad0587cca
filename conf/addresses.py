"""A light check of the multiaddrs in a configuration: TCP over IP or DNS, which is what swarmd listens on and dials.

Source of the syntax: https://github.com/multiformats/multiaddr
"""

from __future__ import annotations

import ipaddress
import re

_PEER_ID = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")  # every Ed25519 PeerId looks like this
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?(\.[a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?)*\.?"
)
_PORT = re.compile(r"[0-9]{1,5}")


def check_listen(text: str) -> str:
    """Return `text` if one can listen there: /ip4|ip6/ADDRESS/tcp/PORT, port 0 for any free one. Raises ValueError."""
    kind, _, rest = _split(text)
    if kind not in ("ip4", "ip6"):
        raise ValueError(f"{text!r}: one listens on /ip4/… or /ip6/…, such as /ip4/0.0.0.0/tcp/4710")
    if rest:
        raise ValueError(f"{text!r}: nothing may follow the port of a listening address")
    return text


def check_announce(text: str) -> str:
    """Return `text` if others can dial it: /ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT[/p2p/ID]. Raises ValueError."""
    _, port, _ = _split(text)
    if port == 0:
        raise ValueError(f"{text!r}: nobody can dial port 0; give the port that others reach")
    return text


def check_bootstrap(text: str) -> str:
    """Return `text` if it names a host to dial: as for check_announce, but /p2p/ID is required. Raises ValueError."""
    check_announce(text)
    if "/p2p/" not in text:
        raise ValueError(f"{text!r}: /p2p/PEERID must follow, as `swarmd ctl status` prints it on that host")
    return text


def check_peer(text: str) -> str:
    """Return `text` if it is the PeerId of an Ed25519 key. Raises ValueError."""
    if not _PEER_ID.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a PeerId such as 12D3KooW…, 52 characters: `swarmd ctl status` prints a host's"
        )
    return text


def _split(text: str) -> tuple[str, int, list[str]]:
    empty, *parts = text.split("/")
    if empty or len(parts) < 4 or parts[2] != "tcp":
        raise ValueError(
            f"{text!r} is not an address such as /ip4/192.0.2.7/tcp/4710 or /dns/example.org/tcp/4710/p2p/12D3KooW…"
        )
    kind, host, _, port, *rest = parts
    _check_host(text, kind, host)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"{text!r}: the port {port!r} must be a number from 0 to 65535")
    if rest and (len(rest) != 2 or rest[0] != "p2p" or not _PEER_ID.fullmatch(rest[1])):
        raise ValueError(
            f"{text!r}: only /p2p/PEERID may follow the port, with a PeerId such as 12D3KooW…, 52 characters"
        )
    return kind, int(port), rest


def _check_host(text: str, kind: str, host: str) -> None:
    if kind in ("ip4", "ip6"):
        try:
            parsed = ipaddress.IPv4Address(host) if kind == "ip4" else ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from error
        if str(host).count("%"):
            raise ValueError(f"{text!r}: write {parsed} without its zone")
    elif kind not in ("dns", "dns4", "dns6"):
        raise ValueError(f"{text!r}: {kind!r} is none of ip4, ip6, dns, dns4, dns6")
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is not a host name")


def check_http_listen(text: str) -> str:
    """Return `text` if it is "" or HOST:PORT with a loopback address, IPv6 in brackets. Raises ValueError."""
    if not text:
        return text
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        address = None
    if address is None or (address.version == 6) != host.startswith("[") or "%" in host:
        raise ValueError(f"{text!r} is not an address such as 127.0.0.1:4711 or [::1]:4711")
    if not address.is_loopback:
        raise ValueError(
            f"{text!r}: {address} can be reached from other machines, and nobody is asked who they are; listen on"
            " 127.0.0.1, and put a proxy that does ask before it"
        )
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"{text!r}: the port {port!r} must be a number from 0 to 65535")
    return text
