"""Requests of outside tools: nodes with sizes in GB and times in milliseconds, as schedulers of this ecosystem speak.

The same form is read from `POST /plan` and by `swarmd plan FILE.json`. docs/http.md has it field by field.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from swarmd.printable import printable

T = TypeVar("T")

MAX_NODES = 128
MAX_LAYERS = 1024

_FORM = ConfigDict(extra="forbid", strict=True)


class ToolRequestBad(Exception):
    """A request cannot be read. Correct the field that the text names.

    Attributes:
        field: path of the field ("nodes[2].vram_gb"); "" where the whole is no JSON object.

    """

    code: ClassVar[str] = "bad_request"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


Name = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_printable)]
_Milliseconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Cost = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
_Gigabytes = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_MAP, _NUMBER = "<map>", "<number>"
_Rtt = Annotated[
    Annotated[dict[Name, _Milliseconds], Field(max_length=MAX_NODES), Tag(_MAP)]
    | Annotated[_Milliseconds, Tag(_NUMBER)],
    Discriminator(lambda value: _MAP if isinstance(value, dict) else _NUMBER),
]
_Megabits = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class Node:
    """A machine that may serve layers.

    Attributes:
        node_id: its name.
        vram_gb: GB that weights and caches may take.
        rtt_ms: round trip in ms: to the asking tool (two nodes are then taken to be apart by the sum of theirs), or to
            other nodes by name. None: as told by telemetry; else 0.
        ms_per_layer: ms for one layer and one token. None: as told by telemetry; else as its class of GPU; else as the
            slowest class.
        gpu: the device's name, such as "NVIDIA GeForce RTX 4090".
        uplink_mbps: 10^6 bits a second that it can send. None: as told by telemetry; else no limit.

    """

    node_id: Name
    vram_gb: _Gigabytes
    rtt_ms: _Rtt | None = None
    ms_per_layer: _Cost | None = None
    gpu: Annotated[str, Field(max_length=128), AfterValidator(_printable)] = ""
    uplink_mbps: _Megabits | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class ToolRequest:
    """What is to be planned.

    Attributes:
        nodes: the machines.
        total_layers: layers of the model.
        gb_per_layer: GB of weights of a layer; kv_gb_per_layer: GB of KV cache of a layer for one session.
        head_gb, tail_gb: GB beside layers that the first stage (embedding) and the last one (norm, lm_head) hold.
        objective: what is to be best.
        model: its name, under which telemetry tells of speeds.
        sessions: sessions at once.
        prompt_tokens: length of the prompt for which the time to the first token is predicted.
        hidden_size: numbers in one token's hidden state, two bytes each; it counts where uplinks are given.

    """

    nodes: Annotated[tuple[Node, ...], Field(min_length=1, max_length=MAX_NODES)]
    total_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    gb_per_layer: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    kv_gb_per_layer: _Gigabytes = 0.0
    head_gb: _Gigabytes = 0.0
    tail_gb: _Gigabytes = 0.0
    objective: Literal["tok_s", "latency", "aggregate"] = "tok_s"
    model: Name = "model"
    sessions: Annotated[int, Field(ge=1, le=4096)] = 1
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 512
    hidden_size: Annotated[int, Field(ge=1, le=1 << 20)] = 8192


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class NodeSample:
    """What was measured of a node; None: nothing. Fields are those of Node with the same names."""

    node_id: Name
    rtt_ms: _Rtt | None = None
    ms_per_layer: _Cost | None = None
    uplink_mbps: _Megabits | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class Telemetry:
    """Measurements of nodes, for one model."""

    nodes: Annotated[tuple[NodeSample, ...], Field(min_length=1, max_length=MAX_NODES)]
    model: Name = "model"


_REQUEST: TypeAdapter[ToolRequest] = TypeAdapter(ToolRequest)
_TELEMETRY: TypeAdapter[Telemetry] = TypeAdapter(Telemetry)


def read_request(data: bytes) -> ToolRequest:
    """Return the request in a JSON document. Raises ToolRequestBad."""
    request = _read(_REQUEST, data)
    _check_ids([node.node_id for node in request.nodes])
    return request


def read_telemetry(data: bytes) -> Telemetry:
    """Return the measurements in a JSON document. Raises ToolRequestBad."""
    telemetry = _read(_TELEMETRY, data)
    _check_ids([node.node_id for node in telemetry.nodes])
    return telemetry


def _check_ids(ids: list[str]) -> None:
    seen = set()
    for place, node_id in enumerate(ids):
        if node_id in seen:
            raise ToolRequestBad(f"nodes[{place}].node_id", f"{node_id!r} stands twice")
        seen.add(node_id)


def _read(form: TypeAdapter[T], data: bytes) -> T:
    try:
        document = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ToolRequestBad("", f"the document is not JSON: {printable(str(error))[:200]}") from error
    if not isinstance(document, dict):
        raise ToolRequestBad("", "the document must be a JSON object")
    try:
        # Strictness is about JSON's types here: a list is a tuple, and a whole number may stand for a real one.
        return form.validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ToolRequestBad(_path(first["loc"]), _reason(first)) from error


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in (_MAP, _NUMBER, "[key]"):
            path += f".{printable(part)[:64]}" if path else printable(part)[:64]
    return path


def _reason(problem: Any) -> str:
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return "is not a field of this request"
    given = printable(repr(problem["input"]))[:80]
    return f"{problem['msg'].removeprefix('Value error, ')}, not {given}"


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
