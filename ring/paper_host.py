"""A host on paper: figures that a planner can plan with, of a host that has announced nothing itself."""

from __future__ import annotations

from ring.announcement import Announcement
from ring.identity import PeerId
from ring.throughput import LayerTimes


def paper_host(
    peer: PeerId,
    *,
    swarm: str,
    device: str,
    memory: int,
    model: str,
    layer_ns: LayerTimes,
    tail_ns: int,
    rtt_us: tuple[tuple[PeerId, int], ...] = (),
    uplink: int = 0,
) -> Announcement:
    """Return what such a host would announce on standby, with all of its memory free; units are the announcement's.

    It has never run: its incarnation and sequence are 0, it has no version and no address.
    """
    return Announcement(
        swarm=swarm,
        peer=peer,
        incarnation=0,
        sequence=0,
        addresses=(),
        version="",
        wire=0,
        state="standby",
        seniority=0,
        leader="",
        term=0,
        plan="",
        device=device,
        memory_limit=memory,
        memory_free=memory,
        model=model,
        layer_ns=layer_ns,
        tail_ns=tail_ns,
        rtt_us=rtt_us,
        block=None,
        sessions=0,
        uplink=uplink,
    )
