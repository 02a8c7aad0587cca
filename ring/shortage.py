"""Shortage: in words, why no ring of the hosts at hand can serve a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.candidate import Pool
from ring.identity import PeerId

_ADVICE = "add a host with more memory, or lower model.context or model.sessions"


def certain_shortage(
    shape: ModelShape,
    usable: Sequence[Announcement],
    pool: Pool,
    barred: Mapping[PeerId, str],
    *,
    context: int,
    sessions: int,
) -> str | None:
    """Return one line that says why there can be no ring, or None if that takes a search to tell.

    Args:
        shape: the model.
        usable: the hosts that may be used.
        pool: the same hosts as candidates.
        barred: why each of the others may not.
        context: tokens per session.
        sessions: how many at once.

    """
    if not usable:
        return _nobody(shape, barred)
    if any(host.reach.solo for host in pool.hosts):
        return None

    def needed(lo: int, hi: int) -> int:
        return shape.block_memory(lo, hi, context=context, sessions=sessions).total

    return _layer_too_large(usable, needed, shape.layer_count) or _memory_short(shape, usable, needed)


def searched_shortage(pool: Pool, search: Callable[[Pool], tuple[int, ...] | None]) -> str:
    """Return one line that says why a search found no ring: for want of edges, or because layers are
    indivisible.

    Args:
        pool: the hosts.
        search: what found no ring; asked what would be possible if all hosts were connected.

    """
    hosts = range(len(pool.hosts))
    missing = [(a, b) for a in hosts for b in hosts if a < b and pool.hop_us[a][b] is None]
    connected = tuple(tuple(None if a == b else 0 for b in hosts) for a in hosts)
    if not missing or search(Pool(pool.layers, pool.hosts, connected)) is None:
        return (
            f"no split into whole layers was found that fits into the memory of {_hosts(len(hosts))}, though it"
            f" would be enough in all: {_ADVICE}"
        )
    named = ", ".join(f"{pool.hosts[a].peer} – {pool.hosts[b].peer}" for a, b in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{_hosts(len(hosts))} have the memory, but no ring was found along edges that both ends have measured;"
        f" missing are {named}{more}: make these hosts reachable from each other"
    )


def _nobody(shape: ModelShape, barred: Mapping[PeerId, str]) -> str:
    if not barred:
        return f"there is no host to serve {shape.model_id}: start `swarmd join` on one"
    counts = Counter(barred.values())
    reasons = ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items()))
    return f"none of {_hosts(len(barred))} can serve {shape.model_id}: {reasons}"


def _layer_too_large(
    usable: Sequence[Announcement], needed: Callable[[int, int], int], layers: int
) -> str | None:
    largest = max(host.memory_limit for host in usable)
    for layer in range(layers):
        size = needed(layer, layer + 1)
        if size > largest:
            extra = " with the embedding" * (layer == 0) + " with the lm_head" * (layer == layers - 1)
            return (
                f"layer {layer}{extra} alone needs {size} bytes, and the largest host offers {largest} bytes:"
                f" {_ADVICE}"
            )
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
