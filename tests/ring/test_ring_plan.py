"""A signed plan: its bytes, what is refused, and that every host can compute it again."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey
from planner_pools import MODEL, connected, host, shape_of

from registry.keys import sign
from registry.signed import sign_document
from ring.announcement import SignedAnnouncement, signed, verified
from ring.drafting import Drafter
from ring.identity import PeerId, peer_id_of
from ring.objective import Constraints, Objective
from ring.plan import Plan, PlanRefused, check_own, make_plan, parse_plan, verify_plan
from ring.planner import NoPlan

SHAPE = shape_of([100] * 6, head=50, tail=60, workspace=10, kv=1)
KEYS = {name: SigningKey(hashlib.sha256(name.encode()).digest()) for name in ("ada", "ben", "cyd", "dot")}
PEERS = {name: peer_id_of(bytes(key.verify_key)) for name, key in KEYS.items()}
LEADER = KEYS["ada"]


def announce(name: str, memory: int, layer_us: int, *, swarm: str = "home") -> SignedAnnouncement:
    here = replace(host(name, memory, layer_us, tail_us=5), peer=PEERS[name], swarm=swarm)
    pairs = {(PEERS[name], there): 2000 for there in PEERS.values() if there != PEERS[name]}
    (here,) = connected([here], pairs)
    key = KEYS[name]
    return verified(signed(here, lambda data: sign(key, data), bytes(key.verify_key)))


INPUTS = (
    announce("ada", 400, 20),
    announce("ben", 400, 10),
    announce("cyd", 300, 500),
    announce("dot", 5000, 1),
)


def plan_of(
    inputs: tuple[SignedAnnouncement, ...] = INPUTS, *, key: SigningKey = LEADER, **more: Any
) -> Plan:
    excluded = {PEERS["dot"]: "it refused\nthe last plan"}
    return make_plan(
        key,
        swarm="home",
        term=3,
        number=1,
        shape=SHAPE,
        context=8,
        sessions=1,
        inputs=inputs,
        excluded=excluded,
        **more,
    )


PLAN = plan_of()
GOLDEN_ID = "c827ed66fabc5d1f513631c072c6c492"
GOLDEN_SHA256 = "92add94897813af2266ddff2a06a23385be5cd60688b10eef32a1666b26aa464"


def check(plan: Plan, **changes: Any) -> None:
    known: dict[str, Any] = {"leader": PEERS["ada"], "term": 3, "shape": SHAPE, "swarm": "home"}
    verify_plan(plan, **(known | changes))


def resigned(change: Callable[[dict[str, Any]], None], key: SigningKey = LEADER) -> Plan:
    """Return PLAN with a changed document that its leader has signed all the same."""
    document = json.loads(PLAN.to_json_bytes())
    change(document)
    forged = sign_document(document, key, signature_field="signature", key_field="pubkey")
    return parse_plan(json.dumps(forged).encode())


def test_a_plan_is_the_same_bytes_whoever_computes_it() -> None:
    assert hashlib.sha256(PLAN.to_json_bytes()).hexdigest() == GOLDEN_SHA256
    assert PLAN.id == GOLDEN_ID
    assert plan_of(INPUTS[::-1]).to_json_bytes() == PLAN.to_json_bytes()


def test_a_plan_survives_the_wire_and_is_accepted() -> None:
    received = parse_plan(PLAN.to_json_bytes())
    assert received == PLAN
    assert received.id == PLAN.id
    check(received)


def test_a_plan_carries_its_objective_and_constraints() -> None:
    drafter = Drafter("small", 5000, ((0, (700_000, 600_000)), (512, (800_000,))))
    objective = Objective("aggregate", 300, 10**9, (drafter,), 60)
    plan = plan_of(objective=objective, constraints=Constraints(False, tuple(sorted(PEERS.values())), 1))
    received = parse_plan(plan.to_json_bytes())
    assert received == plan
    assert received.body.objective == objective
    check(received)


def test_a_plan_says_who_serves_what_and_sends_to_whom() -> None:
    head, tail = PEERS["ada"], PEERS["ben"]
    assert (PLAN.head, PLAN.tail) == (head, tail)
    assert PLAN.assignment() == [(head, 0, 3), (tail, 3, 6)]
    assert [PLAN.next_of(head), PLAN.next_of(tail)] == [tail, head]
    stage = PLAN.stage_of(tail)
    assert stage is not None
    assert (stage.lo, stage.hi, stage.hop_us, stage.compute_ns) == (3, 6, 1000, 3 * 10_000 + 5_000)
    assert PLAN.stage_of(PEERS["cyd"]) is None
    with pytest.raises(ValueError, match="not in"):
        PLAN.next_of(PEERS["cyd"])


def test_hosts_that_are_left_out_are_named_with_a_reason_on_one_line() -> None:
    assert dict(PLAN.body.result.left_out) == {
        PEERS["cyd"]: "the ring is faster without it",
        PEERS["dot"]: "excluded: it refused the last plan",
    }


def test_every_sampled_change_of_a_byte_is_refused() -> None:
    data = PLAN.to_json_bytes()
    dice = Random(1)
    for place in {dice.randrange(len(data)) for _ in range(400)} | set(range(40)):
        byte = dice.choice([value for value in range(256) if value != data[place]])
        with pytest.raises(PlanRefused):
            check(parse_plan(data[:place] + bytes([byte]) + data[place + 1 :]))


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_at_all_are_refused_as_a_plan(data: bytes) -> None:
    with pytest.raises(PlanRefused) as refusal:
        parse_plan(data)
    assert refusal.value.check == "schema"


def _drop(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(key)


def _drafter(acceptance: list[Any]) -> dict[str, Any]:
    return {"name": "x", "token_ns": 1, "acceptance": acceptance}


def _set(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_drop("term"), "term is missing"),
        (_set("extra", to=1), "unknown key 'extra'"),
        (_set("term", to=True), "term is True"),
        (_set("term", to=3.0), "term is 3.0"),
        (_set("schema", to="swarmd-plan/2"), "schema is 'swarmd-plan/2'"),
        (_set("context", to=0), "context is 0"),
        (_set("leader", to="me"), "leader"),
        (_set("inputs", 0, to="!"), "inputs: not standard base64"),
        (_set("inputs", 0, to="AB=="), "inputs: not the base64 text"),
        (_set("inputs", to=None), "inputs is None"),
        (_set("ring", to=[]), "serves 0 of 6 layers"),
        (_set("ring", 1, "lo", to=2), r"\[2, 6\) does not follow on layer 3"),
        (_set("ring", 1, "hi", to=5), "serves 5 of 6 layers"),
        (_set("ring", 0, "hi", to=0), r"\[0, 0\) does not follow"),
        (_set("ring", 1, "peer", to=PEERS["ada"]), "a host stands in it twice"),
        (_set("ring", 0, "note", to=""), "unknown key 'note'"),
        (_set("left_out", 0, "reason", to="a\nb"), "left_out.reason"),
        (_set("left_out", 1, "peer", to=PEERS["ada"]), "left_out is not in ascending order"),
        (_set("excluded", 0, to={"peer": PEERS["dot"]}), "reason is missing"),
        (_set("objective", "kind", to="speed"), "objective.kind"),
        (_set("objective", "prompt_tokens", to=0), "objective.prompt_tokens is 0"),
        (_set("objective", "more", to=0), "objective has an unknown key 'more'"),
        (_set("objective", "drafters", to=[{"name": "x", "token_ns": 1}]), "acceptance is missing"),
        (_set("objective", "drafters", to=[_drafter([[1, [500_000]]])]), "ascending in context from 0"),
        (_set("objective", "drafters", to=[_drafter([[0, []]])]), "a row of acceptance is empty"),
        (_set("objective", "drafters", to=[_drafter([[0, [1_000_001]]])]), r"outside \[0, 1000000\]"),
        (_set("constraints", "distinct_subnets", to=1), "constraints.distinct_subnets is 1"),
        (_set("constraints", "trusted", to=["me"]), "constraints.trusted"),
        (_set("constraints", "end_layers", to=0), "constraints.end_layers is 0"),
        (_set("drafter", to=1), "drafter is 1"),
        (_set("shape", "layer_bytes", to=[]), "shape: layer_bytes is empty"),
        (_set("shape", "kv_token_bytes", to=[1]), "one entry per layer"),
        (_set("shape", "head_bytes", to=-1), "shape.head_bytes is -1"),
    ],
)
def test_a_malformed_field_is_refused_by_name(change: Callable[[dict[str, Any]], None], named: str) -> None:
    with pytest.raises(PlanRefused, match=named) as refusal:
        resigned(change)
    assert refusal.value.check == "schema"


def test_a_document_with_a_key_twice_or_too_many_bytes_is_refused() -> None:
    data = PLAN.to_json_bytes()
    with pytest.raises(PlanRefused, match="a key stands twice"):
        parse_plan(b'{"term":3,' + data[1:])
    with pytest.raises(PlanRefused, match="4194304 that are allowed"):
        parse_plan(data + b" " * 4 * 1024 * 1024)
    with pytest.raises(PlanRefused, match="not JSON"):
        parse_plan(b"[" * 200_000)


@pytest.mark.parametrize(
    ("expected", "known"),
    [
        ("leader", {"leader": PEERS["ben"]}),
        ("term", {"term": 4}),
        ("swarm", {"swarm": "work"}),
        ("model", {"shape": replace(SHAPE, model_id="another")}),
        ("shape", {"shape": replace(SHAPE, workspace_bytes=11)}),
    ],
)
def test_a_plan_that_contradicts_what_this_host_knows_is_refused(
    expected: str, known: dict[str, Any]
) -> None:
    with pytest.raises(PlanRefused) as refusal:
        check(PLAN, **known)
    assert refusal.value.check == expected


def test_a_plan_signed_by_another_host_than_its_leader_is_refused() -> None:
    with pytest.raises(PlanRefused) as refusal:
        check(resigned(lambda document: None, KEYS["ben"]))
    assert refusal.value.check == "leader"


def test_a_plan_without_the_right_signature_is_refused() -> None:
    other = plan_of(key=KEYS["ben"])
    with pytest.raises(PlanRefused) as refusal:
        check(replace(PLAN, signature=other.signature))
    assert refusal.value.check == "signature"


def test_inputs_that_are_unsigned_foreign_or_unsorted_are_refused() -> None:
    foreign = announce("ben", 400, 10, swarm="work")
    changed = bytes([*INPUTS[1].data[:-1], INPUTS[1].data[-1] ^ 1])
    given_inputs = PLAN.body.inputs
    for inputs in (
        (*given_inputs[:2], foreign.data),
        (*given_inputs[:2], changed),
        given_inputs[::-1],
        (given_inputs[0], *given_inputs),
    ):
        with pytest.raises(PlanRefused) as refusal:
            check(resigned(_set("inputs", to=[_base64(data) for data in inputs])))
        assert refusal.value.check == "inputs"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: (_set("ring", 0, "hi", to=2)(document), _set("ring", 1, "lo", to=2)(document)),
        lambda document: document["inputs"].pop(),
        _set("ring", 0, "memory_bytes", to=1),
        _set("ring", 0, "peer", to=PEERS["cyd"]),
        _set("circuit_ns", to=1),
        _set("millitok_s", to=1),
        _set("bottleneck_ns", to=1),
        _set("ttft_ns", to=1),
        _set("drafter", to="other"),
        _set("frames_in_flight", to=2),
        _set("ring", 0, "load_bytes", to=1),
        _set("left_out", to=[]),
        _set("left_out", 0, "reason", to="because"),
        _set("excluded", to=[]),
        _set("inputs", to=[]),
        _set("sessions", to=4),
    ],
)
def test_a_leader_that_signs_another_ring_than_the_inputs_give_is_caught(
    change: Callable[[dict[str, Any]], None],
) -> None:
    with pytest.raises(PlanRefused) as refusal:
        check(resigned(change))
    assert refusal.value.check == "recompute"


def test_a_host_checks_its_own_block_against_its_own_limit() -> None:
    ben = PEERS["ben"]
    need = SHAPE.block_memory(3, 6, context=8, sessions=1).total
    assert check_own(PLAN, ben, need).peer == ben
    for peer, limit, expected in ((ben, need - 1, "memory"), (PEERS["cyd"], need, "member")):
        with pytest.raises(PlanRefused) as refusal:
            check_own(PLAN, PeerId(peer), limit)
        assert refusal.value.check == expected


def test_no_plan_is_made_of_hosts_that_cannot_hold_the_model() -> None:
    with pytest.raises(NoPlan, match=f"total memory is short by 368 bytes: {MODEL} needs"):
        plan_of(INPUTS[1:2])
