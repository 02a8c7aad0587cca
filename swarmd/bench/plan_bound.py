"""A time that no ring's circuit can be shorter than, in pools that are too large for brute force.

The relaxation, solved by HiGHS: every host of the ring has one edge in and one out, serves no more layers than fit into any
one of its blocks, and one host is the tail; but an edge costs what it costs in the cheaper of its two roles. Solutions whose edges form
several circles are forbidden one after the other, as long as there is time. Hosts are taken wholly or not at all, as far as the solver comes in its time; its bound holds at any time.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ring.candidate import PENALTY, Integers, Pool, pool_of
from ring.planner import PlanRequest
from ring.quantize import quantized

_MS = 1_000_000
_OPTIMAL, _INFEASIBLE = 0, 2  # states of scipy.optimize.milp
_SOME = 1e-6


def least_circuit_ns(request: PlanRequest, seconds: float) -> float:
    """Return a lower bound on the circuit time of a one-token frame, in nanoseconds; nan if there is no ring at all.

    Args:
        request: the hosts and the model; all of them must be usable.
        seconds: how long the solver may take.

    """
    hosts = [quantized(host) for host in request.hosts]
    pool = pool_of(
        hosts, request.shape, request.constraints, context=request.context, sessions=request.sessions
    )
    terms = pool.terms(1)
    solo = [
        pool.layers * int(terms.layer[host]) + int(terms.tail[host])
        for host in range(len(hosts))
        if pool.fits[host, 0, pool.layers]
    ]
    edges = np.argwhere(np.minimum(terms.hop, terms.back) < PENALTY)
    several = _relaxed(pool, terms.layer, terms.tail, edges, np.minimum(terms.hop, terms.back), seconds)
    found = [bound for bound in (*solo, several) if bound is not None]
    return float(min(found)) if found else float("nan")


def _relaxed(
    pool: Pool, layer: Integers, tail: Integers, edges: Integers, hop: Integers, seconds: float
) -> float | None:
    """Return the bound for rings of at least two hosts; None if there is none."""
    count, several = len(layer), len(edges)
    if not several:
        return None
    # Columns: an edge is used, a host is used, a host is the tail, how many layers a host serves.
    used, last, layers = several, several + count, several + 2 * count
    cost = np.concatenate((hop[edges[:, 0], edges[:, 1]], np.zeros(count), tail, layer)) / _MS
    hosts = np.arange(count)
    rows = [
        *((edges[:, side] + side * count, np.arange(several), np.ones(several)) for side in (0, 1)),
        *((hosts + side * count, used + hosts, -np.ones(count)) for side in (0, 1)),
        (hosts + 2 * count, layers + hosts, np.ones(count)),
        (hosts + 2 * count, used + hosts, -pool.most_layers),
        (hosts + 3 * count, used + hosts, np.ones(count)),
        (hosts + 3 * count, layers + hosts, -np.ones(count)),
        (hosts + 4 * count, last + hosts, np.ones(count)),
        (hosts + 4 * count, used + hosts, -np.ones(count)),
        (np.full(count, 5 * count), layers + hosts, np.ones(count)),
        (np.full(count, 5 * count + 1), last + hosts, np.ones(count)),
    ]
    row, column, value = (np.concatenate([part[index] for part in rows]) for index in range(3))
    matrix = coo_array((value, (row, column)), shape=(5 * count + 2, layers + count)).tocsr()
    low = np.concatenate((np.zeros(2 * count), np.full(3 * count, -np.inf), (pool.layers, 1)))
    high = np.concatenate((np.zeros(5 * count), (pool.layers, 1)))
    whole = np.concatenate((np.zeros(several), np.ones(count), np.zeros(2 * count)))
    limit = np.concatenate((np.ones(layers), pool.most_layers))
    rules, best, end = [LinearConstraint(matrix, low, high)], -np.inf, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        options = {"time_limit": left}
        result = milp(cost, integrality=whole, bounds=Bounds(0, limit), constraints=rules, options=options)
        if result.status == _INFEASIBLE:
            return None
        if result.mip_dual_bound is not None and np.isfinite(result.mip_dual_bound):
            best = max(best, float(result.mip_dual_bound))
        if result.status != _OPTIMAL:
            break
        cuts = _cuts(result.x, edges, count, layers + count)
        if not cuts:
            break
        rules += cuts
    return best * _MS


def _cuts(solution: NDArray[np.float64], edges: Integers, count: int, columns: int) -> list[LinearConstraint]:
    """Return what forbids the separate circles of a solution: if hosts inside and outside of one are used, an edge leaves it."""
    several = len(edges)
    walked = edges[solution[:several] > _SOME]
    graph = coo_array((np.ones(len(walked)), (walked[:, 0], walked[:, 1])), shape=(count, count))
    _, circle_of = connected_components(graph, directed=False)
    members = [host for host in range(count) if solution[several + host] > _SOME]
    circles = {int(circle_of[host]) for host in members}
    cuts = []
    for circle in circles if len(circles) > 1 else ():
        leaving = (circle_of[edges[:, 0]] == circle) & (circle_of[edges[:, 1]] != circle)
        inside = next(host for host in members if circle_of[host] == circle)
        for other in circles - {circle}:
            outside = next(host for host in members if circle_of[host] == other)
            row = np.zeros(columns)
            row[:several] = leaving
            row[several + inside] = row[several + outside] = -1
            cuts.append(LinearConstraint(row[None, :], -1, np.inf))
    return cuts
