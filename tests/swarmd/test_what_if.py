"""What-ifs: what would be different, and what cannot be asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from conf.schema import BUNDLED_PUBLISHER
from registry.models import ModelRow, load_registry
from ring.identity import PeerId
from ring.perf import PerfBook
from ring.planner import NoPlan, PlanRequest
from swarmd.tool_plan import plan_request
from swarmd.tool_request import read_request
from swarmd.what_if import answer_what_if, changed
from swarmd.what_if_form import NOTHING, WhatIf, WhatIfBad, read_what_if, write_what_if

GB = 10**9


def swarm(**sizes: Any) -> PlanRequest:
    """Two hosts that hold the model together, and a slow one that could hold it alone."""
    nodes = [
        {"node_id": "host-a", "vram_gb": 3, "rtt_ms": 1, "ms_per_layer": 0.5},
        {"node_id": "host-b", "vram_gb": 3, "rtt_ms": 1, "ms_per_layer": 0.5},
        {"node_id": "fat", "vram_gb": 9, "rtt_ms": 1, "ms_per_layer": 9},
    ]
    document = {"nodes": nodes, "total_layers": 6, "gb_per_layer": 1.0, **sizes}
    return plan_request(read_request(json.dumps(document).encode()), PerfBook())[0]


def ask(**fields: Any) -> WhatIf:
    return read_what_if(fields)


def ring_of(answer: dict[str, Any]) -> set[str]:
    return {stage["peer"] for stage in answer["plan"]["ring"]}


def test_nothing_different_is_the_ring_that_is() -> None:
    answer = answer_what_if(swarm(), NOTHING)
    assert answer["plan"] == answer["now"]
    assert (answer["state"], answer["assumed"]) == ("hypothetical", [])
    assert ring_of(answer) == {"host-a", "host-b"}


def test_without_a_host_the_others_serve() -> None:
    answer = answer_what_if(swarm(), ask(without=["-a"]))
    assert ring_of(answer) == {"fat", "host-b"}
    assert answer["plan"]["millitok_s"] < answer["now"]["millitok_s"]
    assert "host-a" not in {entry["peer"] for entry in answer["plan"]["left_out"]}


def test_without_all_there_is_no_ring() -> None:
    with pytest.raises(NoPlan, match="then there would be no ring"):
        answer_what_if(swarm(), ask(without=["host-a", "host-b", "fat"]))


def test_a_better_host_would_be_used() -> None:
    answer = answer_what_if(swarm(), ask(**{"with": [{"vram": 9, "ms": 0.1, "rtt": 5}]}))
    assert ring_of(answer) == {"extra-1"}
    assert answer["plan"]["circuit_ns"] == 600_000
    two = answer_what_if(swarm(), ask(**{"with": [{"vram": 3, "ms": 0.1, "rtt": 0.2, "uplink": 900}] * 2}))
    assert ring_of(two) == {"extra-1", "extra-2"}


def test_a_new_host_is_like_the_others_at_other_widths() -> None:
    here = swarm()
    first = replace(here.hosts[0], layer_ns=((1, 500_000), (16, 2_000_000)), tail_ns=1000)
    asked, _ = changed(
        replace(here, hosts=(first, *here.hosts[1:])), ask(**{"with": [{"vram": 9, "ms": 0.1, "rtt": 5}]})
    )
    assert asked.hosts[-1].layer_ns == ((1, 100_000), (16, 400_000)), (
        "16 tokens cost 4 times as much there, too"
    )
    assert asked.hosts[-1].tail_ns == 200
    assert dict(asked.hosts[0].rtt_us)[asked.hosts[-1].peer] == 5000, "an edge is measured by both ends"


def test_objective_context_and_sessions_can_differ() -> None:
    asked, _ = changed(swarm(), ask(objective="aggregate", context=77, sessions=9))
    assert (asked.objective.kind, asked.context, asked.sessions) == ("aggregate", 77, 9)
    with_cache = swarm(kv_gb_per_layer=0.4)
    answer_what_if(with_cache, NOTHING)
    with pytest.raises(NoPlan):
        answer_what_if(with_cache, ask(sessions=9))


def tale(**changes: Any) -> ModelRow:
    row = load_registry(None, [BUNDLED_PUBLISHER]).row("tale")
    return ModelRow(**{**{name: getattr(row, name) for name in row.__dataclass_fields__}, **changes})


def test_another_model_has_the_registrys_sizes_and_speeds_in_proportion() -> None:
    row = tale(id="big", layer_count=12, gb_per_layer=0.5, kv_gb_per_layer=0.0)
    asked, assumed = changed(swarm(), ask(model="big"), row)
    assert asked.shape.layer_bytes == (GB // 2,) * 12
    assert [one.layer_ns[0][1] for one in asked.hosts] == [250_000, 250_000, 4_500_000]
    assert {one.model for one in asked.hosts} == {"big"}
    assert len(assumed) == 1
    assert answer_what_if(swarm(), ask(model="big"), row)["plan"]["model"] == "big"


def test_a_model_of_unknown_size_is_refused() -> None:
    with pytest.raises(WhatIfBad, match="gbPerLayer is 0"):
        changed(swarm(), ask(model="big"), tale(id="big", gb_per_layer=0.0))
    with pytest.raises(WhatIfBad, match="no registry"):
        changed(swarm(), ask(model="big"))


def test_the_standing_ring_is_what_is_compared_with() -> None:
    standing = ((PeerId("fat"), 0, 6),)
    answer = answer_what_if(swarm(), NOTHING, None, standing)
    assert {stage["peer"] for stage in answer["now"]["ring"]} == {"fat"}
    gone = answer_what_if(swarm(), NOTHING, None, ((PeerId("gone"), 0, 6),))
    assert gone["now"] is None


@pytest.mark.parametrize("name", ["nobody", "", "…", "host-"])
def test_a_host_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(WhatIfBad, match="no host is called so; there are host-a, host-b, fat"):
        changed(swarm(), ask(without=[name]))


def test_a_host_that_cannot_be_told_from_another_is_refused() -> None:
    here = swarm()
    twins = tuple(replace(one, peer=PeerId(f"{one.peer}-x")) for one in here.hosts)
    with pytest.raises(WhatIfBad, match="3 hosts are called so"):
        changed(replace(here, hosts=twins), ask(without=["-x"]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([], "what_if"),
        ({"witout": []}, "witout"),
        ({"without": "abc"}, "without"),
        ({"with": [{"vram": 24, "ms": 1}]}, "with.0.rtt"),
        ({"with": [{"vram": "24", "ms": 1, "rtt": 1}]}, "with.0.vram"),
        ({"with": [{"vram": 0, "ms": 1, "rtt": 1}]}, "with.0.vram"),
        ({"with": [{"vram": 1, "ms": float("nan"), "rtt": 1}]}, "with.0.ms"),
        ({"with": [{"vram": 1, "ms": 1, "rtt": 1}] * 17}, "with"),
        ({"objective": "speed"}, "objective"),
        ({"sessions": 0}, "sessions"),
        ({"context": True}, "context"),
    ],
)
def test_a_wrong_field_is_named(fields: object, named: str) -> None:
    with pytest.raises(WhatIfBad, match=f"^{named}: "):
        read_what_if(fields)


def test_a_what_if_survives_the_control_socket() -> None:
    what_if = ask(
        **{
            "without": ["x"],
            "with": [{"vram": 1.5, "ms": 1, "rtt": 0}],
            "objective": "latency",
            "sessions": 3,
        }
    )
    assert read_what_if(json.loads(json.dumps(write_what_if(what_if)))) == what_if
