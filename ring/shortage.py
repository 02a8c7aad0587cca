"""Shortage: in words, why no ring of the hosts at hand can serve a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.candidate import Pool
from ring.identity import PeerId
from ring.objective import Constraints, Objective
from ring.search import best_ring
from ring.worth import Worth

if TYPE_CHECKING:
    from ring.planner import PlanRequest

_ADVICE = "add a host with more memory, or lower model.context or model.sessions"


def certain_shortage(request: PlanRequest, pool: Pool, barred: Mapping[PeerId, str]) -> str | None:
    """Return one line that says why there can be no ring, or None if that takes a search to tell.

    Args:
        request: what is to be planned.
        pool: the hosts that may be used.
        barred: why each of the others may not.

    """
    shape, hosts = request.shape, pool.hosts
    if not hosts:
        return _nobody(shape, barred)
    if pool.fits[:, 0, shape.layer_count].any():
        return None

    def needed(lo: int, hi: int) -> int:
        return shape.block_memory(lo, hi, context=request.context, sessions=request.sessions).total

    return (
        _layer_too_large(hosts, needed, shape)
        or _memory_short(shape, hosts, needed)
        or _ends_untrusted(pool, request.constraints)
    )


def searched_shortage(pool: Pool, constraints: Constraints) -> str:
    """Return one line that says why a search found no ring: for want of edges, because hosts share a subnet, or because
    layers are indivisible.
    """
    count = len(pool.hosts)
    connected = replace(pool, one_way_us=np.where(np.eye(count, dtype=np.bool_), -1, 0))
    if not _has_ring(connected):
        if constraints.distinct_subnets and _has_ring(replace(connected, apart=np.zeros_like(pool.apart))):
            return (
                f"{_hosts(count)} have the memory, but not without two of one subnet: add hosts elsewhere, or set"
                " plan.distinct_subnets = false"
            )
        return (
            f"no split into whole layers was found that fits into the memory of {_hosts(count)}, though it"
            f" would be enough in all: {_ADVICE}"
        )
    missing = [(a, b) for a in range(count) for b in range(a + 1, count) if pool.one_way_us[a, b] < 0]
    named = ", ".join(f"{pool.hosts[a].peer} – {pool.hosts[b].peer}" for a, b in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{_hosts(count)} have the memory, but no ring was found along edges that both ends have measured;"
        f" missing are {named}{more}: make these hosts reachable from each other"
    )


def _has_ring(pool: Pool) -> bool:
    return best_ring(pool, Worth(Objective("latency"), 1)) is not None


def _ends_untrusted(pool: Pool, constraints: Constraints) -> str | None:
    if not constraints.trusted:
        return None
    layers, ends = pool.layers, []
    if not pool.fits[:, 0].any():
        ends.append("first")
    if not pool.fits[:, :, layers].any():
        ends.append("last")
    if not ends:
        return None
    return (
        f"no host of plan.trusted can serve the {' and '.join(ends)} layers of {pool.shape.model_id}: add a trusted"
        " host, or name more of them"
    )


def _nobody(shape: ModelShape, barred: Mapping[PeerId, str]) -> str:
    if not barred:
        return f"there is no host to serve {shape.model_id}: start `swarmd join` on one"
    counts = Counter(barred.values())
    reasons = ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items()))
    return f"none of {_hosts(len(barred))} can serve {shape.model_id}: {reasons}"


def _layer_too_large(
    usable: Sequence[Announcement], needed: Callable[[int, int], int], shape: ModelShape
) -> str | None:
    largest = max(host.memory_limit for host in usable)
    for layer in range(shape.layer_count):
        lo, hi = shape.block_around(layer)
        size = needed(lo, hi)
        if size > largest:
            what = f"layer {layer}" if hi - lo == 1 else f"the layers {lo} to {hi - 1}, which stay together,"
            extra = " with the embedding" * (lo == 0) + " with the lm_head" * (hi == shape.layer_count)
            return f"{what}{extra} alone needs {size} bytes, and the largest host offers {largest} bytes: {_ADVICE}"
    return None


def _memory_short(
    shape: ModelShape, usable: Sequence[Announcement], needed: Callable[[int, int], int]
) -> str | None:
    # What is served by several hosts needs a workspace on each of them, and a tied embedding at both ends.
    need = needed(0, shape.layer_count) - shape.workspace_bytes + shape.shared_end_bytes * (len(usable) > 1)
    there = sum(max(0, host.memory_limit - shape.workspace_bytes) for host in usable)
    if there >= need:
        return None
    return (
        f"total memory is short by {need - there} bytes: {shape.model_id} needs {need} bytes beside the workspace"
        f" ({shape.workspace_bytes} bytes on every host), and {_hosts(len(usable))} offer {there} bytes: {_ADVICE}"
    )


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"
