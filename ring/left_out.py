"""Left out: in words, why a host is not in a ring; one reason each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ring.candidate import Pool
from ring.identity import PeerId
from ring.search import EXACT_HOSTS

if TYPE_CHECKING:
    from ring.planner import PlanRequest


def barred_hosts(request: PlanRequest) -> dict[PeerId, str]:
    """Return why some of the hosts must not be used."""
    excluded = dict(request.excluded)
    barred: dict[PeerId, str] = {}
    for host in request.hosts:
        if host.peer in excluded:
            barred[host.peer] = f"excluded: {excluded[host.peer]}"
        elif host.state == "leaving":
            barred[host.peer] = "leaving"
        elif not host.layer_ns:
            barred[host.peer] = "not measured yet"
        elif host.model != request.shape.model_id:
            barred[host.peer] = f"measured for the model {host.model}, not for {request.shape.model_id}"
    return barred


def not_chosen(pool: Pool, order: tuple[int, ...]) -> dict[PeerId, str]:
    """Return why the usable hosts that are not in the ring are not."""
    solo, members = len(order) == 1, list(order)
    ring = pool.hosts[order[0]].peer if solo else "any host of the ring"
    slower = "solo is faster" if solo else "the ring is faster without it"
    if len(pool.able) > EXACT_HOSTS:  # a search cannot tell more
        slower = "no faster ring was found with it"
    reasons = {}
    for index, host in enumerate(pool.hosts):
        if index in order:
            continue
        neighbours = np.flatnonzero(pool.apart[index, members])
        if index not in pool.able:
            reasons[host.peer] = "its memory holds no layer"
        elif (pool.one_way_us[index, members] < 0).all():
            reasons[host.peer] = f"no measured edge to {ring}"
        elif neighbours.size:
            reasons[host.peer] = f"it is in one subnet with {pool.hosts[members[int(neighbours[0])]].peer}"
        else:
            reasons[host.peer] = slower
    return reasons
