"""The libp2p host, built so that no remote peer can end it: Noise only, SafeYamux only, every handler guarded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX

from swarmd.net.dialling import note_opened
from swarmd.net.yamux import SafeYamux, YamuxNegotiator

log = logging.getLogger("swarmd.net")

_MAX_CONNECTIONS = 1024
_MAX_INBOUND_STREAMS = 512  # of one connection, negotiating ones included
_UPGRADE_SECONDS = 10.0


def build_host(seed: bytes, *, dead_after: float) -> Any:
    """Return a libp2p host that is not yet running.

    Args:
        seed: 32 bytes, the host's Ed25519 key.
        dead_after: s without an inbound byte after which a connection is closed.

    """
    keys = create_new_key_pair(seed)
    noise = Noise(keys, noise_privkey=create_noise_key_pair().private_key)
    config = ConnectionConfig(
        min_connections=0,
        low_watermark=0,
        high_watermark=_MAX_CONNECTIONS,
        max_connections=_MAX_CONNECTIONS,
        inbound_upgrade_timeout=_UPGRADE_SECONDS,
        outbound_upgrade_timeout=_UPGRADE_SECONDS,
    )
    host = new_host(
        key_pair=keys,
        sec_opt={TProtocol(NOISE): noise},
        muxer_opt={TProtocol(YAMUX): SafeYamux},
        connection_config=config,
    )
    swarm = host.get_network()
    swarm.retry_config = RetryConfig(max_retries=0)  # when to try again is the daemon's decision
    swarm.upgrader.muxer_multistream = YamuxNegotiator({TProtocol(YAMUX): SafeYamux})
    swarm.upgrader.muxer_multistream.dead_after = dead_after
    for transport in swarm.transport_manager.get_transports():
        transport.dial = note_opened(transport.dial)
    swarm._do_handle_inbound_connection = _inbound_server(swarm)
    swarm.set_stream_handler(_guarded(swarm.common_stream_handler))
    # Identify would run as a trio system task, where any bug ends the process, and would fill libp2p's peerstore with
    # addresses that anybody claims. Peers may still identify us.
    host._schedule_identify = _do_not_identify
    host.remove_stream_handler(ID_PUSH)
    return host


def _do_not_identify(*_args: Any, **_options: Any) -> None:
    return None


def _inbound_server(swarm: Any) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the server of one inbound connection that gives its slot back when the connection ends.

    The stock one keeps slot and task until the host ends, so that a host refuses everybody after enough reconnects.
    """

    async def serve(stream: Any, address: Any, _event: Any) -> None:
        raw = RawConnection(stream, False)
        try:
            muxed = await swarm.upgrade_inbound_raw_conn(raw, address)
            await muxed.event_closed.wait()
        except Exception as error:  # noqa: BLE001 - whatever a stranger sends ends the stranger's connection only
            log.debug("inbound connection failed: %r", error)
        finally:
            with trio.CancelScope(shield=True):
                await stream.close()

    return serve


def _guarded(handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Return a stream handler whose exceptions end the stream; stock, they end the host."""

    async def guarded(stream: Any) -> None:
        if len(stream.swarm_conn.streams) > _MAX_INBOUND_STREAMS:
            log.warning("%s holds too many streams open: one was refused", stream.muxed_conn.peer_id)
            await reset_quietly(stream)
            return
        try:
            await handler(stream)
        except Exception as error:  # noqa: BLE001
            log.info("stream from %s failed: %r", stream.muxed_conn.peer_id, error)
            await reset_quietly(stream)

    return guarded


async def reset_quietly(stream: Any) -> None:
    """Reset a stream whose connection may be gone."""
    with trio.move_on_after(1):
        try:
            await stream.reset()
        except Exception as error:  # noqa: BLE001
            log.debug("cannot reset a stream: %r", error)
