"""Split: how many layers each host of a ring serves, once the hosts and their order are chosen.

A host's compute time grows by the same amount with every layer, but how many layers fit depends on which
ones they are (layers differ in size, the head holds the embedding, the tail the lm_head), so the split is
found by dynamic programming over layer boundaries and not by filling the fastest host first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ring.candidate import Candidate, Pool

UNREACHABLE = 1 << 300
"""A cost above every real one. Adding costs to it leaves it unreachable."""


def head_costs(host: Candidate, layers: int) -> list[int]:
    """Return for each m the nanoseconds that the head needs for [0, m), or UNREACHABLE."""
    costs = [UNREACHABLE] * (layers + 1)
    for end in range(1, host.reach.head + 1):
        costs[end] = end * host.layer_ns
    if host.reach.solo:
        costs[layers] = layers * host.layer_ns + host.tail_ns
    return costs


def extended_costs(costs: Sequence[int], host: Candidate, unit: int = 1) -> list[int]:
    """Return the least costs of covering [0, m) after `host` has been appended with at least one layer.

    extended[m] = min over first[m] ≤ lo < m of costs[lo] + (m - lo) · layer_ns, plus tail_ns at the last
    layer. first[m] never decreases, so one pass with a monotonic queue finds all the minima in O(layers).

    Args:
        costs: the least cost of covering [0, m) without the host, for each m.
        host: the stage to append.
        unit: what a nanosecond counts in `costs`.

    """
    layer = host.layer_ns * unit
    first = host.reach.first
    extended = [UNREACHABLE] * len(costs)
    window: deque[tuple[int, int]] = deque()  # (start, cost there less its layers' time), ascending in both
    for end in range(1, len(costs)):
        start = end - 1
        if costs[start] < UNREACHABLE:
            value = costs[start] - start * layer
            while window and window[-1][1] >= value:
                window.pop()
            window.append((start, value))
        while window and window[0][0] < first[end]:
            window.popleft()
        if window:
            extended[end] = window[0][1] + end * layer
    if extended[-1] < UNREACHABLE:
        extended[-1] += host.tail_ns * unit
    return extended


def best_cuts(pool: Pool, order: Sequence[int]) -> tuple[int, ...] | None:
    """Return the boundaries 0 = c_0 < c_1 < … < c_k = L of the best split of a ring; None if no split fits.

    Best is the least compute time in all; of those the least time of the slowest stage, which is what
    frames in flight wait for; of those the one whose last cuts come first.
    """
    layers = pool.layers
    # rows[i][m]: (compute, slowest stage, start of stage i) for stages 0 … i covering [0, m)
    rows: list[list[tuple[int, int, int] | None]] = []
    for position, index in enumerate(order):
        host = pool.hosts[index]
        if position == 0:
            costs = head_costs(host, layers)
            rows.append([(cost, cost, 0) if cost < UNREACHABLE else None for cost in costs])
        else:
            rows.append([_best_start(rows[-1], host, end) for end in range(layers + 1)])
    cuts = [layers]
    for row in reversed(rows):
        best = row[cuts[-1]]
        if best is None:
            return None
        cuts.append(best[2])
    return tuple(reversed(cuts))


def _best_start(
    row: Sequence[tuple[int, int, int] | None], host: Candidate, end: int
) -> tuple[int, int, int] | None:
    tail_ns = host.tail_ns if end == len(row) - 1 else 0
    options = []
    for start in range(host.reach.first[end], end):
        before = row[start]
        if before is not None:
            compute = (end - start) * host.layer_ns + tail_ns
            options.append((before[0] + compute, max(before[1], compute), start))
    return min(options, default=None)
