"""The JSON form of a plan, `swarmd-plan/1`: strict reading and writing of all but key and signature."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.shape import ModelShape
from ring.fields import FieldError, as_integer, as_list, as_map, as_peer, as_text, refuse_other_keys, required
from ring.identity import PeerId
from ring.objective import Constraints, Objective
from ring.objective_document import (
    MAX_NAME,
    read_constraints,
    read_objective,
    write_constraints,
    write_objective,
)
from ring.planner import RingPlan, Stage

SCHEMA = "swarmd-plan/1"
MAX_BYTES = 4 * 1024 * 1024
MAX_HOSTS = 4096

_MAX_LAYERS = 4096
_MAX_REASON = 4096
_MAX_SUM = 1 << 90  # a sum over stages of what announcements say
_FIGURES = (
    *("frame_width", "frames_in_flight", "circuit_ns", "bottleneck_ns"),
    *("millitok_s", "aggregate_millitok_s", "load_ns", "ttft_ns"),
)
_BODY_KEYS = (
    *(
        "schema",
        "swarm",
        "leader",
        "term",
        "number",
        "model",
        "context",
        "sessions",
        "shape",
        "inputs",
        "excluded",
    ),
    *("objective", "constraints", "ring", "left_out", "drafter", *_FIGURES),
)
# Every size there is, so that none can be left out of a plan that others recompute.
_SHAPE_KEYS = tuple(field.name for field in dataclasses.fields(ModelShape) if field.name != "model_id")
_PER_LAYER_KEYS = frozenset({"layer_bytes", "kv_token_bytes", "state_bytes", "sealed_borders"})
_STAGE_KEYS = tuple(field.name for field in dataclasses.fields(Stage))
_Reasons = tuple[tuple[PeerId, str], ...]


@dataclass(frozen=True, slots=True)
class PlanBody:
    """What a plan says, before it is signed.

    Attributes:
        swarm: the swarm's name.
        leader: the host that has planned; term: its term; number: counts its plans of the term.
        shape: the model's sizes from which memory was computed.
        context: tokens per session; sessions: how many at once.
        inputs: the hosts' signed announcements as they were gossiped, ascending in peer.
        excluded: (peer, reason) of hosts that the leader did not want to use, ascending in peer.
        objective: what the ring is to be best at; constraints: what it must respect.
        result: what the planner makes of all this.

    """

    swarm: str
    leader: PeerId
    term: int
    number: int
    shape: ModelShape
    context: int
    sessions: int
    inputs: tuple[bytes, ...]
    excluded: _Reasons
    objective: Objective
    constraints: Constraints
    result: RingPlan


def write_body(body: PlanBody) -> dict[str, object]:
    """Return the JSON object of a plan, without key and signature."""
    shape = {name: getattr(body.shape, name) for name in _SHAPE_KEYS}
    return {
        "schema": SCHEMA,
        "swarm": body.swarm,
        "leader": body.leader,
        "term": body.term,
        "number": body.number,
        "model": body.shape.model_id,
        "context": body.context,
        "sessions": body.sessions,
        "shape": shape,
        "inputs": [base64.b64encode(data).decode() for data in body.inputs],
        "excluded": _write_reasons(body.excluded),
        "objective": write_objective(body.objective),
        "constraints": write_constraints(body.constraints),
        "ring": [{key: getattr(stage, key) for key in _STAGE_KEYS} for stage in body.result.stages],
        "left_out": _write_reasons(body.result.left_out),
        "drafter": body.result.drafter,
        **{name: getattr(body.result, name) for name in _FIGURES},
    }


def read_object(data: bytes) -> dict[str, object]:
    """Return the one JSON object in `data`.

    Raises:
        FieldError: longer than MAX_BYTES, not UTF-8, not JSON, a key twice in an object, or not an object.

    """
    if len(data) > MAX_BYTES:
        raise FieldError(f"the plan has {len(data)} bytes, more than the {MAX_BYTES} that are allowed")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse_number)
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:
        raise FieldError(f"the plan is not JSON: {error}") from error
    return as_map("the plan", value)


def read_body(fields: Mapping[str, object]) -> PlanBody:
    """Return what a plan's JSON object says; the fields in it that are not the body's must have been taken
    out.

    Raises:
        FieldError: a field is missing, unknown or out of its range, or the ring does not tile the model.

    """
    refuse_other_keys("the plan", fields, _BODY_KEYS)
    if required(fields, "schema") != SCHEMA:
        raise FieldError(f"schema is {required(fields, 'schema')!r}, not {SCHEMA!r}")
    shape = _read_shape(as_text("model", required(fields, "model"), 128), required(fields, "shape"))
    result = RingPlan(
        stages=_read_ring(required(fields, "ring"), shape.layer_count),
        drafter=as_text("drafter", required(fields, "drafter"), MAX_NAME),
        left_out=_read_reasons("left_out", required(fields, "left_out")),
        **{name: as_integer(name, required(fields, name), high=_MAX_SUM) for name in _FIGURES},
    )
    return PlanBody(
        swarm=as_text("swarm", required(fields, "swarm"), 64),
        leader=as_peer("leader", required(fields, "leader")),
        term=as_integer("term", required(fields, "term")),
        number=as_integer("number", required(fields, "number")),
        shape=shape,
        context=as_integer("context", required(fields, "context"), 1),
        sessions=as_integer("sessions", required(fields, "sessions"), 1),
        inputs=tuple(map(_read_base64, as_list("inputs", required(fields, "inputs"), MAX_HOSTS))),
        excluded=_read_reasons("excluded", required(fields, "excluded")),
        objective=read_objective(required(fields, "objective")),
        constraints=read_constraints(required(fields, "constraints")),
        result=result,
    )


def _read_shape(model: str, value: object) -> ModelShape:
    fields = as_map("shape", value)
    refuse_other_keys("shape", fields, _SHAPE_KEYS)

    def sizes(name: str) -> tuple[int, ...] | int:
        value = required(fields, name)
        if name not in _PER_LAYER_KEYS:
            return as_integer(f"shape.{name}", value)
        entries = as_list(f"shape.{name}", value, _MAX_LAYERS)
        return tuple(as_integer(f"shape.{name}", entry) for entry in entries)

    values: dict[str, Any] = {name: sizes(name) for name in _SHAPE_KEYS}
    try:
        return ModelShape(model_id=model, **values)
    except ValueError as error:
        raise FieldError(f"shape: {error}") from error


def _read_ring(value: object, layers: int) -> tuple[Stage, ...]:
    stages = tuple(_read_stage(entry) for entry in as_list("ring", value, layers))
    end = 0
    for stage in stages:
        if stage.lo != end or stage.hi <= stage.lo:
            raise FieldError(f"ring: the block [{stage.lo}, {stage.hi}) does not follow on layer {end}")
        end = stage.hi
    if end != layers:
        raise FieldError(f"ring: it serves {end} of {layers} layers")
    if len({stage.peer for stage in stages}) != len(stages):
        raise FieldError("ring: a host stands in it twice")
    return stages


def _read_stage(value: object) -> Stage:
    fields = as_map("ring", value)
    refuse_other_keys("ring", fields, _STAGE_KEYS)
    numbers = {
        key: as_integer(f"ring.{key}", required(fields, key), high=_MAX_SUM) for key in _STAGE_KEYS[1:]
    }
    return Stage(peer=as_peer("ring.peer", required(fields, "peer")), **numbers)


def _read_reasons(name: str, value: object) -> _Reasons:
    reasons = []
    for entry in as_list(name, value, MAX_HOSTS):
        fields = as_map(name, entry)
        refuse_other_keys(name, fields, ("peer", "reason"))
        peer = as_peer(f"{name}.peer", required(fields, "peer"))
        reasons.append((peer, as_text(f"{name}.reason", required(fields, "reason"), _MAX_REASON)))
    peers = [peer for peer, _ in reasons]
    if sorted(set(peers)) != peers:
        raise FieldError(f"{name} is not in ascending order of peers without repeats")
    return tuple(reasons)


def _write_reasons(reasons: _Reasons) -> list[dict[str, str]]:
    return [{"peer": peer, "reason": reason} for peer, reason in reasons]


def _read_base64(value: object) -> bytes:
    text = as_text("inputs", value, MAX_BYTES)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(f"inputs: not standard base64: {error}") from error
    if base64.b64encode(data).decode() != text:
        raise FieldError("inputs: not the base64 text that encoding the same bytes gives")
    return data


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FieldError("the plan: a key stands twice in an object")
    return found


def _refuse_number(name: str) -> object:
    raise FieldError(f"the plan: {name} is not a number")
