"""Subnets: whether two hosts are in one network, by the addresses that they announce.

Of hosts in one network, or on one machine, one operator may see all that a ring passes along.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

_Network = IPv4Network | IPv6Network

_PREFIX_BITS = {4: 24, 6: 48}
# Listed here, because what Python calls private has changed between its versions, and all hosts must agree.
_LOCAL = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)


def share_subnet(here: Iterable[str], there: Iterable[str]) -> bool:
    """Return whether two hosts, given by their multiaddrs, are in one /24 (IPv4) or /48 (IPv6).

    Two hosts that both have public addresses are compared by those alone: their private ones may be equal by chance.
    """
    (public, local), (public_there, local_there) = _subnets(tuple(here)), _subnets(tuple(there))
    if public and public_there:
        return bool(public & public_there)
    return bool((public | local) & (public_there | local_there))


@lru_cache(maxsize=8192)
def _subnets(addresses: tuple[str, ...]) -> tuple[frozenset[_Network], frozenset[_Network]]:
    """Return (public, local) networks of some multiaddrs; names that are not addresses say nothing."""
    public: set[_Network] = set()
    local: set[_Network] = set()
    for address in addresses:
        parts = address.split("/")
        if len(parts) < 3 or parts[1] not in ("ip4", "ip6"):
            continue
        try:
            host = ip_address(parts[2])
        except ValueError:
            continue  # the address book of whoever dials it says what is wrong with it
        network = ip_network((host, _PREFIX_BITS[host.version]), strict=False)
        inside = any(host.version == known.version and host in known for known in _LOCAL)
        (local if inside else public).add(network)
    return frozenset(public), frozenset(local)
