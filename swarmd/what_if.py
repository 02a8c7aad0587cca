"""What-ifs: the planner asked about a swarm that is not quite the one there is. Nothing of it is signed or carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from registry.models import ModelRow
from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.identity import PeerId
from ring.objective_document import write_constraints, write_objective
from ring.paper_host import paper_host
from ring.planner import NoPlan, PlanRequest, RingPlan, compute_ring, evaluate_ring
from ring.throughput import layer_ns_at
from swarmd.what_if_form import ExtraHost, WhatIf, WhatIfBad

_GB = 10**9
_NS_PER_MS = 1_000_000
_US_PER_MS = 1_000
_BYTES_PER_MBIT = 125_000
_ROW_CONTEXT = 8192  # tokens that a registry row counts its KV cache for where it does not say


def changed(
    request: PlanRequest, what_if: WhatIf, row: ModelRow | None = None
) -> tuple[PlanRequest, list[str]]:
    """Return the request as it would be, and in words what had to be assumed.

    Args:
        request: the swarm as it is.
        what_if: what would differ.
        row: the registry's row of what_if.model; it may be None where that is None or the request's own.

    Raises:
        WhatIfBad: a host to leave out is not there or cannot be told from another; the registry does not say how large
            the model is.

    """
    assumed: list[str] = []
    gone = {_found(name, request.hosts) for name in what_if.without}
    hosts = tuple(host for host in request.hosts if host.peer not in gone)
    shape = request.shape
    if what_if.model is not None and what_if.model != shape.model_id:
        if row is None:
            raise WhatIfBad(f"model: what is known of {what_if.model} is in no registry here")
        there = shape_of(row, shape.hidden_bytes)
        assumed.append(
            f"{row.id} has the sizes that the registry says, and computes as fast as {shape.model_id}, byte by byte"
        )
        hosts = tuple(_serving(host, shape, there) for host in hosts)
        shape = there
    for extra in what_if.extra:
        hosts = _joined(hosts, extra, shape, request.swarm)
    kind = what_if.objective or request.objective.kind
    return (
        replace(
            request,
            hosts=hosts,
            shape=shape,
            objective=replace(request.objective, kind=kind),
            context=what_if.context or request.context,
            sessions=what_if.sessions or request.sessions,
        ),
        assumed,
    )


def answer_what_if(
    request: PlanRequest,
    what_if: WhatIf,
    row: ModelRow | None = None,
    active: Sequence[tuple[PeerId, int, int]] = (),
) -> dict[str, Any]:
    """Return the ring that would be planned beside the one that is, JSON-ready. Takes seconds in a large swarm.

    Args:
        request: the swarm as it is.
        what_if: what would differ.
        row: see changed().
        active: (host, lo, hi) of the ring that stands; without one, the ring that would be planned now is compared with.

    Raises:
        ring.planner.NoPlan: there would be no ring; the text says what would be missing.
        WhatIfBad: see changed().

    """
    asked, assumed = changed(request, what_if, row)
    try:
        ring = compute_ring(asked)
    except NoPlan as error:
        raise NoPlan(f"then there would be no ring: {error}") from error
    return {
        "plan": described(asked, ring),
        "id": None,
        "state": "hypothetical",
        "now": _now(request, active),
        "assumed": assumed,
    }


def described(request: PlanRequest, ring: RingPlan) -> dict[str, Any]:
    """Return a ring with the fields that a signed plan has for it (docs/planner.md), without inputs and signature."""
    fields = dataclasses.asdict(ring)
    return {
        "swarm": request.swarm,
        "leader": request.leader,
        "term": request.term,
        "model": request.shape.model_id,
        "context": request.context,
        "sessions": request.sessions,
        "objective": write_objective(request.objective),
        "constraints": write_constraints(request.constraints),
        "ring": fields.pop("stages"),
        "left_out": [{"peer": peer, "reason": reason} for peer, reason in fields.pop("left_out")],
        **fields,
    }


def shape_of(row: ModelRow, hidden_bytes: int) -> ModelShape:
    """Return a model's sizes as its registry row says them: all layers alike, and nothing for its two ends.

    Raises:
        WhatIfBad: it says nothing.

    """
    layer, count = round(row.gb_per_layer * _GB), row.layer_count
    if not layer:
        raise WhatIfBad(f"model: the registry does not say how large {row.id} is (gbPerLayer is 0)")
    kv = -(-round(row.kv_gb_per_layer * _GB) // (row.defaults.draft_ctx or _ROW_CONTEXT))
    return ModelShape(row.id, (layer,) * count, (kv,) * count, (0,) * count, 0, 0, 0, hidden_bytes, 0)


def _now(request: PlanRequest, active: Sequence[tuple[PeerId, int, int]]) -> dict[str, Any] | None:
    try:
        return described(request, evaluate_ring(request, active) if active else compute_ring(request))
    except NoPlan:
        return None


def _found(name: str, hosts: Sequence[Announcement]) -> PeerId:
    """Return the host that a user means by an id or the end of one, as tables print it."""
    end = name.removeprefix("…")
    found = [host.peer for host in hosts if host.peer == name] or [
        host.peer for host in hosts if end and host.peer.endswith(end)
    ]
    if len(found) != 1:
        known = ", ".join(host.peer for host in hosts[:8]) or "none"
        problem = "no host is called so" if not found else f"{len(found)} hosts are called so"
        raise WhatIfBad(f"without: {name!r}: {problem}; there are {known}{' …' * (len(hosts) > 8)}")
    return found[0]


def _serving(host: Announcement, shape: ModelShape, there: ModelShape) -> Announcement:
    """Return a host as if it had been measured for another model: its times grow with the bytes of a layer."""
    if host.model != shape.model_id:
        return host
    before, after = (sum(sizes.layer_bytes) // sizes.layer_count for sizes in (shape, there))
    times = tuple((width, max(1, ns * after // max(before, 1))) for width, ns in host.layer_ns)
    return replace(host, model=there.model_id, layer_ns=times, block=None)


def _joined(
    hosts: tuple[Announcement, ...], extra: ExtraHost, shape: ModelShape, swarm: str
) -> tuple[Announcement, ...]:
    """Return the hosts with one more, which all have measured and which has measured all."""
    names = {host.peer for host in hosts}
    number = next(number for number in range(1, len(names) + 2) if f"extra-{number}" not in names)
    peer, us = PeerId(f"extra-{number}"), round(extra.rtt * _US_PER_MS)
    layer_ns, tail_ns = _times_like(hosts, shape, round(extra.ms * _NS_PER_MS))
    newcomer = paper_host(
        peer,
        swarm=swarm,
        device="hypothetical",
        memory=round(extra.vram * _GB),
        model=shape.model_id,
        layer_ns=layer_ns,
        tail_ns=tail_ns,
        rtt_us=tuple(sorted((host.peer, us) for host in hosts)),
        uplink=0 if extra.uplink is None else max(1, round(extra.uplink * _BYTES_PER_MBIT)),
    )
    others = (replace(host, rtt_us=tuple(sorted((*host.rtt_us, (peer, us))))) for host in hosts)
    return (*others, newcomer)


def _times_like(
    hosts: Sequence[Announcement], shape: ModelShape, ns: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return (times for one layer by width, tail's time) of a host that takes `ns` for one token, and is otherwise like the
    first measured host: only faster or slower.
    """
    for host in hosts:
        if host.layer_ns and host.model == shape.model_id:
            own = max(layer_ns_at(host.layer_ns, 1), 1)
            times = tuple((width, max(1, known * ns // own)) for width, known in host.layer_ns)
            return times, host.tail_ns * ns // own
    return ((1, max(ns, 1)),), 0
