"""Plans from files: saved ones shown, verified and varied; requests of tools planned. No daemon takes part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from registry.models import ModelRow
from ring.perf import PerfBook
from ring.plan import parse_plan, request_of, verify_plan
from ring.plan_document import MAX_BYTES, SCHEMA
from ring.planner import compute_ring
from swarmd.tool_plan import in_tools_words, plan_request
from swarmd.tool_request import read_request
from swarmd.what_if import answer_what_if, changed, described
from swarmd.what_if_form import NOTHING, WhatIf


class PlanFileBad(Exception):
    """A file holds neither a plan nor a request for one. Give what `swarmd ctl plan --json` or docs/http.md says."""

    code: ClassVar[str] = "plan_file_bad"


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan or a request, as it lies in a file.

    Attributes:
        document: its JSON object.
        data: the file's bytes.

    """

    document: Mapping[str, Any]
    data: bytes

    @property
    def is_plan(self) -> bool:
        """Whether it is a signed plan; else it is a request."""
        return self.document.get("schema") == SCHEMA


def read_plan_file(file: Path) -> PlanFile:
    """Return the plan or the request in a file.

    Raises:
        PlanFileBad: it holds neither.
        OSError: it cannot be read.

    """
    with file.open("rb") as source:
        data = source.read(2 * MAX_BYTES)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlanFileBad(f"{file} is not JSON: {error}") from error
    if isinstance(document, dict) and isinstance(document.get("plan"), dict):
        document = document["plan"]  # as `swarmd ctl plan --json` prints it
    if not isinstance(document, dict) or not ("nodes" in document or document.get("schema") == SCHEMA):
        raise PlanFileBad(
            f"{file} is neither a plan ({SCHEMA}) as `swarmd ctl plan --json` prints it, nor a request with nodes"
        )
    return PlanFile(document, data)


def saved_answer(
    document: Mapping[str, Any], what_if: WhatIf, row: ModelRow | None, verify: bool
) -> dict[str, Any]:
    plan = parse_plan(json.dumps(document).encode())
    if what_if != NOTHING:
        return {"ok": True, **answer_what_if(request_of(plan), what_if, row, plan.assignment())}
    answer = {"ok": True, "plan": document, "id": plan.id, "state": "saved"}
    return answer | ({"verified": verified(document)} if verify else {})


def made_answer(data: bytes, what_if: WhatIf, row: ModelRow | None) -> dict[str, Any]:
    """Plan for a tool's request. What a daemon has been told of its nodes by telemetry, only that daemon knows."""
    request, assumed = plan_request(read_request(data), PerfBook())
    request, more = changed(request, what_if, row)
    ring = compute_ring(request)
    return {
        "plan": described(request, ring),
        "state": "made",
        "assumed": [*assumed, *more],
        "tool": in_tools_words(ring, [*assumed, *more]),
    }


def verified(document: Mapping[str, Any]) -> str:
    """Check a signed plan against the inputs that it carries; returns in words what holds.

    Whether its leader leads, only the swarm can tell.

    Raises:
        ring.plan.PlanRefused: it names the check that fails.

    """
    plan = parse_plan(json.dumps(document).encode())
    body = plan.body
    verify_plan(plan, leader=body.leader, term=body.term, shape=body.shape, swarm=body.swarm)
    return (
        f"signed by {body.leader}, and its {len(body.inputs)} inputs by their hosts;"
        " computed again from them, the ring is the same in every field"
    )
