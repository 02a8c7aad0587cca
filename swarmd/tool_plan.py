"""Plans for outside tools: the swarm's own planner, asked in a tool's words and answered in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

from registry.shape import ModelShape
from ring.announcement import Announcement
from ring.device_class import CLASSES, DeviceClass, class_of, prior_layer_ns
from ring.identity import PeerId
from ring.objective import Objective
from ring.paper_host import paper_host
from ring.perf import PerfBook
from ring.planner import PlanRequest, RingPlan
from ring.throughput import LayerTimes
from swarmd.tool_request import Node, Telemetry, ToolRequest

_GB = 10**9
_NS_PER_MS = 1_000_000
_US_PER_MS = 1_000
_BYTES_PER_MBIT = 125_000
_WEIGHT_BYTES = 2  # of the wire's numbers, and of weights where operations are reckoned from bytes
_SLOWEST = max(CLASSES, key=lambda known: known.reference_ns)


def take_telemetry(telemetry: Telemetry, book: PerfBook) -> None:
    """Keep a tool's measurements. Its names are its own: they never touch what is known of the swarm's hosts."""
    model = _model(telemetry.model)
    for node in telemetry.nodes:
        name = _name(node.node_id)
        if node.ms_per_layer is not None:
            book.saw_layer(name, model, 1, max(1, round(node.ms_per_layer * _NS_PER_MS)))
        if node.uplink_mbps is not None:
            book.saw_uplink(name, max(1, round(node.uplink_mbps * _BYTES_PER_MBIT)))
        if isinstance(node.rtt_ms, dict):
            for other, ms in node.rtt_ms.items():
                book.saw_rtt(name, _name(other), round(ms * _US_PER_MS))
        elif node.rtt_ms is not None:
            book.saw_rtt(name, "", round(node.rtt_ms * _US_PER_MS))


def plan_request(request: ToolRequest, book: PerfBook) -> tuple[PlanRequest, list[str]]:
    """Return a tool's request as the planner's, and what had to be assumed for it."""
    assumed: list[str] = []
    shape = _shape(request)
    rtts = _rtts(request.nodes, book)
    hosts = tuple(
        _host(
            request.model,
            node,
            _layer_ns(node, request, book, assumed),
            rtts.get(node.node_id, {}),
            _uplink(node, book),
        )
        for node in request.nodes
    )
    objective = Objective(request.objective, request.prompt_tokens)
    nobody = PeerId("")
    asked = PlanRequest("", nobody, 0, 0, shape, 1, request.sessions, hosts, (), objective)
    return asked, assumed


def in_tools_words(plan: RingPlan, assumed: Iterable[str]) -> dict[str, Any]:
    """Return a ring as the answer to a tool."""
    return {
        "ok": True,
        "coordinator": plan.stages[0].peer,
        "ring_order": [stage.peer for stage in plan.stages],
        "stages": [
            {
                "stage": place,
                "node_id": stage.peer,
                "lo": stage.lo,
                "hi": stage.hi,
                "n_layers": stage.hi - stage.lo,
            }
            for place, stage in enumerate(plan.stages)
        ],
        "est_tok_s": plan.millitok_s / 1000,
        "est_aggregate_tok_s": plan.aggregate_millitok_s / 1000,
        "est_round_ms": plan.circuit_ns / _NS_PER_MS,
        "est_ttft_ms": plan.ttft_ns / _NS_PER_MS,
        "left_out": [{"node_id": peer, "reason": reason} for peer, reason in plan.left_out],
        "assumed": list(assumed),
    }


def _name(node_id: str) -> str:
    return f"tool:{node_id}"


def _model(model: str) -> str:
    return f"tool:{model}"


def _shape(request: ToolRequest) -> ModelShape:
    count = request.total_layers
    return ModelShape(
        model_id=request.model,
        layer_bytes=(_bytes(request.gb_per_layer),) * count,
        kv_token_bytes=(_bytes(request.kv_gb_per_layer),)
        * count,  # of the one token that stands for a session
        state_bytes=(0,) * count,
        head_bytes=_bytes(request.head_gb),
        tail_bytes=_bytes(request.tail_gb),
        shared_end_bytes=0,
        hidden_bytes=request.hidden_size * _WEIGHT_BYTES,
        workspace_bytes=0,
    )


def _bytes(gigabytes: float) -> int:
    return round(gigabytes * _GB)


def _layer_ns(node: Node, request: ToolRequest, book: PerfBook, assumed: list[str]) -> LayerTimes:
    """Return a node's times for one layer: given, learned, of its class, or of the slowest class, in this order."""
    if node.ms_per_layer is not None:
        return ((1, max(1, round(node.ms_per_layer * _NS_PER_MS))),)
    learned = book.layer_ns(_name(node.node_id), _model(request.model))
    if learned:
        return learned
    known = class_of(node.gpu)
    assumed.append(f"{node.node_id} computes like {_article(known or _SLOWEST)}: it was never measured")
    size = _bytes(request.gb_per_layer)
    return prior_layer_ns(known or _SLOWEST, layer_bytes=size, layer_flops=2 * size // _WEIGHT_BYTES)


def _article(known: DeviceClass) -> str:
    return f"{'an' if known.name[0] in 'AH' else 'a'} {known.name}"


def _uplink(node: Node, book: PerfBook) -> int:
    if node.uplink_mbps is not None:
        return max(1, round(node.uplink_mbps * _BYTES_PER_MBIT))
    return book.uplink(_name(node.node_id))


def _rtts(nodes: Iterable[Node], book: PerfBook) -> dict[str, dict[str, int]]:
    """Return {node: {other: µs}}, both ways alike where only one of the two tells of the other."""
    told = {node.node_id: _told(node, [other.node_id for other in nodes], book) for node in nodes}
    to_tool = {node.node_id: _to_the_tool(node, told[node.node_id], book) for node in nodes}
    rtts: dict[str, dict[str, int]] = {node_id: {} for node_id in told}
    for here, there in permutations(told, 2):
        us = told[here].get(there, told[there].get(here))
        if us is None:
            mine, theirs = to_tool[here], to_tool[there]
            us = None if mine is None or theirs is None else mine + theirs
        if us is not None:
            rtts[here][there] = us
    return rtts


def _told(node: Node, others: Iterable[str], book: PerfBook) -> dict[str, int]:
    """Return the µs to other nodes that a node tells of now or, if it is silent, that telemetry has told of."""
    if isinstance(node.rtt_ms, dict):
        return {other: round(ms * _US_PER_MS) for other, ms in node.rtt_ms.items()}
    if node.rtt_ms is not None:
        return {}
    known = {other: book.rtt_us(_name(node.node_id), _name(other)) for other in others}
    return {other: us for other, us in known.items() if us}


def _to_the_tool(node: Node, told: Mapping[str, int], book: PerfBook) -> int | None:
    """Return a node's µs to the asking tool; None where all that is known are its ways to other nodes."""
    if isinstance(node.rtt_ms, dict):
        return None
    if node.rtt_ms is not None:
        return round(node.rtt_ms * _US_PER_MS)
    return book.rtt_us(_name(node.node_id), "") or (None if told else 0)


def _host(model: str, node: Node, layer_ns: LayerTimes, rtts: Mapping[str, int], uplink: int) -> Announcement:
    return paper_host(
        PeerId(node.node_id),
        swarm="",
        device=node.gpu,
        memory=_bytes(node.vram_gb),
        model=model,
        layer_ns=layer_ns,
        tail_ns=0,
        rtt_us=tuple(sorted((PeerId(other), us) for other, us in rtts.items())),
        uplink=uplink,
    )
