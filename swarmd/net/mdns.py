"""Finding hosts of the same swarm on the local network: multicast DNS service discovery (RFC 6762, RFC 6763).

One service instance a host, named by its peer id, of type `_swarmd._tcp.local.`; its TXT record holds `swarm` and the
host's full multiaddrs as `addr0`, `addr1` and so on.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from zeroconf import Error as ZeroconfError
from zeroconf import InterfaceChoice, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from ring.identity import PeerId, PeerIdError, public_key_of
from swarmd.net.addresses import split_peer
from swarmd.net.errors import AddressInvalid, MdnsUnavailable

log = logging.getLogger("swarmd.net")

SERVICE_TYPE = "_swarmd._tcp.local."
_MAX_ADDRESSES = 8
_MAX_TEXT = 255  # bytes of one TXT string, its key included (RFC 1035)
_WAITING = 64
_ASK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    """A host of this swarm, at these multiaddrs (without /p2p)."""

    peer: PeerId
    addresses: tuple[str, ...]


@asynccontextmanager
async def advertise_and_browse(
    peer: PeerId, swarm: str, addresses: Sequence[str], *, interfaces: Sequence[str] | None = None
) -> AsyncIterator[trio.MemoryReceiveChannel[Found]]:
    """Say that this host is there, and yield a channel of the others; a host is found anew when its record changes.

    Args:
        peer: this host.
        swarm: only hosts that name the same swarm are found.
        addresses: this host's full multiaddrs, best first.
        interfaces: IP addresses of the interfaces to use; all by default.

    Raises:
        MdnsUnavailable: multicast cannot be used.

    """
    token = trio.lowlevel.current_trio_token()
    send, receive = trio.open_memory_channel[Found](_WAITING)
    try:
        zeroconf = await trio.to_thread.run_sync(_start, interfaces)
    except (OSError, ZeroconfError) as error:
        raise MdnsUnavailable(f"multicast DNS: {error}; name peers in swarm.bootstrap instead") from error
    browser: ServiceBrowser | None = None
    try:
        info = _service(peer, swarm, addresses)
        try:
            await trio.to_thread.run_sync(lambda: zeroconf.register_service(info, allow_name_change=False))
        except (OSError, ZeroconfError) as error:
            raise MdnsUnavailable(f"multicast DNS: {error!r}; is this peer id in use twice?") from error
        listener = _Listener(peer, swarm, send, token)
        browser = await trio.to_thread.run_sync(ServiceBrowser, zeroconf, SERVICE_TYPE, listener)
        with send, receive:
            yield receive
    finally:
        with trio.CancelScope(shield=True):
            if browser is not None:
                # close() would stop the loop under a question that the browser's thread has asked: that thread would
                # wait for it in vain, and die of it long after.
                await trio.to_thread.run_sync(browser.cancel)
            await trio.to_thread.run_sync(zeroconf.close)  # also withdraws the record


class _Listener(ServiceListener):  # type: ignore[misc]  # mypy does not follow zeroconf here
    """Called by zeroconf in its own thread."""

    def __init__(
        self, own: PeerId, swarm: str, send: trio.MemorySendChannel[Found], token: trio.lowlevel.TrioToken
    ) -> None:
        self._own = own
        self._swarm = swarm
        self._send = send
        self._token = token

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        try:
            info = zc.get_service_info(type_, name, timeout=int(_ASK_SECONDS * 1000))
        except ZeroconfError as error:
            log.warning("multicast DNS: %s could not be asked where it is: %s", name, error)
            return
        found = read_record(name, info.properties, self._swarm) if info is not None else None
        if found is not None and found.peer != self._own:
            # The loop may be over already: then nobody wants to know.
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._deliver, found)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """A host that says goodbye is also seen by its connections ending."""

    def _deliver(self, found: Found) -> None:
        try:
            self._send.send_nowait(found)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("nobody takes what multicast DNS found: %s", found.peer)


def read_record(name: str, properties: dict[bytes, bytes | None], swarm: str) -> Found | None:
    """Return what a service record says, or None if it is another swarm's or not sound.

    Args:
        name: the service's full name, "<peer id>._swarmd._tcp.local.".
        properties: its TXT record.
        swarm: the swarm to be found.

    """
    peer = PeerId(name.removesuffix("." + SERVICE_TYPE))
    try:
        public_key_of(peer)
    except PeerIdError:
        return None
    if properties.get(b"swarm") != swarm.encode():
        return None
    addresses = []
    for number in range(_MAX_ADDRESSES):
        try:
            owner, address = split_peer((properties.get(b"addr%d" % number) or b"").decode())
        except (UnicodeDecodeError, AddressInvalid):
            continue
        if owner == peer:
            addresses.append(address)
    return Found(peer, tuple(addresses)) if addresses else None


def _start(interfaces: Sequence[str] | None) -> Zeroconf:
    for interface in interfaces or ():  # zeroconf would leave its sockets open if one of them did not exist
        with socket.socket(
            socket.AF_INET6 if ":" in interface else socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:
            probe.bind((interface, 0))
    return Zeroconf(interfaces=InterfaceChoice.All if interfaces is None else list(interfaces))


def _service(peer: PeerId, swarm: str, addresses: Sequence[str]) -> ServiceInfo:
    fitting = [address for address in addresses if len(address) + len("addr0=") <= _MAX_TEXT][:_MAX_ADDRESSES]
    properties = {"swarm": swarm, **{f"addr{number}": address for number, address in enumerate(fitting)}}
    # The multiaddrs say all there is to say, but browsers take a service without SRV and A or AAAA for incomplete.
    places = [address.split("/") for address in fitting]
    return ServiceInfo(
        SERVICE_TYPE,
        f"{peer}.{SERVICE_TYPE}",
        port=int(places[0][4]) if places else 0,
        parsed_addresses=[place[2] for place in places if place[1] in {"ip4", "ip6"}],
        properties=properties,
        server=f"{peer}.local.",
    )
