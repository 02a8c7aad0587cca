"""Shortage: in words, why no ring of the hosts at hand can serve a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.candidate import Pool
from ring.identity import PeerId

Search = Callable[[Pool], tuple[int, ...] | None]


def explain_shortage(
    shape: ModelShape,
    usable: Sequence[Announcement],
    pool: Pool,
    barred: Mapping[PeerId, str],
    *,
    context: int,
    sessions: int,
    search: Search,
) -> str:
    """Return one line that says what is missing for a ring, and by how much.

    Args:
        shape: the model.
        usable: the hosts that may be used.
        pool: the same hosts as candidates.
        barred: why each of the others may not.
        context: tokens per session.
        sessions: how many at once.
        search: finds a ring in a pool; asked what would be possible if all hosts were connected.

    """
    if not usable:
        return _nobody(shape, barred)

    def needed(lo: int, hi: int) -> int:
        return shape.block_memory(lo, hi, context=context, sessions=sessions).total

    return (
        _layer_too_large(usable, needed, shape.layer_count)
        or _memory_short(shape, usable, needed)
        or _edges_missing(pool, search)
        or f"no split of whole layers of {shape.model_id} fits into the memory of {_hosts(len(usable))}, though it"
        " would suffice in all: add a host, or lower model.context or model.sessions"
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
            part = {0: " with the embedding", layers - 1: " with the lm_head"}.get(layer, "")
            return (
                f"layer {layer}{part} alone needs {size} bytes, and the largest host offers {largest} bytes:"
                " add a larger host, or lower model.context or model.sessions"
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
        f" ({shape.workspace_bytes} bytes on every host), and {_hosts(len(usable))} offer {there} bytes:"
        " add a host, or lower model.context or model.sessions"
    )


def _edges_missing(pool: Pool, search: Search) -> str | None:
    hosts = range(len(pool.hosts))
    connected = tuple(tuple(None if a == b else 0 for b in hosts) for a in hosts)
    if search(Pool(pool.layers, pool.hosts, connected)) is None:
        return None
    missing = [(a, b) for a in hosts for b in hosts if a < b and pool.hop_us[a][b] is None]
    named = ", ".join(f"{pool.hosts[a].peer} – {pool.hosts[b].peer}" for a, b in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{_hosts(len(pool.hosts))} have the memory, but not the connections for a ring: edges not measured by both"
        f" ends are {named}{more}"
    )


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"
