"""Discovery: where other hosts may be: bootstrap addresses, those remembered from earlier runs, and the local network."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import trio

from conf.schema import Config
from swarmd.activity import Activity
from swarmd.dialer import Dialer
from swarmd.net import MdnsUnavailable, Node, split_peer
from swarmd.net.addresses import parse_listen
from swarmd.net.mdns import advertise_and_browse
from swarmd.state_dir import StateDir


async def discover(config: Config, state: StateDir, node: Node, dialer: Dialer, activity: Activity) -> None:
    """Tell the dialer of every host that may be there, for as long as the daemon lives."""
    for address in config.swarm.bootstrap:
        peer, _ = split_peer(address)
        dialer.want(peer, (address,), source="bootstrap", pinned=True)
    node.address_book.load(state.remembered_peers())
    for peer in node.address_book.peers():
        dialer.want(peer, (), source="remembered")
    if config.swarm.mdns:
        await _browse(config, node, dialer, activity)
    else:
        await trio.sleep_forever()


async def _browse(config: Config, node: Node, dialer: Dialer, activity: Activity) -> None:
    interfaces = _interfaces(config.swarm.listen)
    browsing = advertise_and_browse(node.peer_id, config.swarm.name, node.addresses(), interfaces=interfaces)
    try:
        async with browsing as found:
            async for host in found:
                dialer.want(host.peer, host.addresses, source="local network")
                dialer.retry_now(host.peer)
    except MdnsUnavailable as error:
        activity.note("mdns_unavailable", f"{error}; hosts are found by swarm.bootstrap only")


def _interfaces(listen: Sequence[str]) -> list[str] | None:
    """Return the IP addresses of the interfaces to be found on: those listened on, or None for all."""
    ips = [parse_listen(address)[0] for address in listen]
    return None if any(ip_address(ip).is_unspecified for ip in ips) else ips
