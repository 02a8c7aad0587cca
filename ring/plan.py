"""Plan: a ring that a leader has signed, together with the inputs it was computed from.

A plan is a JSON document (schema `swarmd-plan/1`) that is signed in its canonical form. It carries the
signed announcements of all hosts that were considered, so every host can check it by computing it again
(invariant I3): same inputs, same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

from nacl.signing import SigningKey

from registry.canonical import canonical_bytes
from registry.shape import ModelShape
from registry.signed import SignatureError, sign_document, verify_document
from ring.announcement import Announcement, AnnouncementError, SignedAnnouncement, verified
from ring.envelope import EnvelopeError
from ring.fields import FieldError
from ring.identity import PeerId, peer_id_of
from ring.objective import DEFAULT_OBJECTIVE, NO_CONSTRAINTS, Constraints, Objective
from ring.plan_document import MAX_BYTES, PlanBody, read_body, read_object, write_body
from ring.planner import NoPlan, PlanRequest, RingPlan, Stage, compute_ring

_KEY, _SIGNATURE = "pubkey", "signature"
_MAX_REASON = 200


class PlanRefused(Exception):
    """A plan fails a check and must not be followed. `check` names it; the text says what to do or whom to
    ask.

    check is one of: schema, signature, leader, term, swarm, model, shape, inputs, recompute, member, memory.
    """

    code: ClassVar[str] = "plan_refused"

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass(frozen=True)
class Plan:
    """A signed plan. Made by make_plan or parse_plan only; trusted only after verify_plan.

    Attributes:
        body: what it says.
        pubkey: standard base64 of the signer's raw public key.
        signature: standard base64 of the signature of the canonical document without itself.

    """

    body: PlanBody
    pubkey: str
    signature: str

    @cached_property
    def id(self) -> str:
        """The first 32 hex digits of the SHA-256 of the signed bytes."""
        signed = canonical_bytes(self.document(), without=_SIGNATURE)
        return hashlib.sha256(signed).hexdigest()[:32]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The ring, head first."""
        return self.body.result.stages

    @property
    def head(self) -> PeerId:
        """The first stage's host, where sessions are coordinated."""
        return self.stages[0].peer

    @property
    def tail(self) -> PeerId:
        """The last stage's host, which chooses the tokens."""
        return self.stages[-1].peer

    def assignment(self) -> list[tuple[PeerId, int, int]]:
        """Return (host, lo, hi) of every stage in the ring's order."""
        return [(stage.peer, stage.lo, stage.hi) for stage in self.stages]

    def stage_of(self, peer: PeerId) -> Stage | None:
        """Return the stage that a host serves, or None if it is not in the ring."""
        return next((stage for stage in self.stages if stage.peer == peer), None)

    def next_of(self, peer: PeerId) -> PeerId:
        """Return the host to which `peer` sends: the next stage, after the tail the head (in a ring of one,
        itself).

        Raises:
            ValueError: the host is not in the ring.

        """
        peers = [stage.peer for stage in self.stages]
        return peers[(peers.index(peer) + 1) % len(peers)]

    def document(self) -> dict[str, object]:
        """Return the JSON object, key and signature included."""
        return {**write_body(self.body), _KEY: self.pubkey, _SIGNATURE: self.signature}

    def to_json_bytes(self) -> bytes:
        """Return the document as it is sent: its canonical bytes."""
        return canonical_bytes(self.document())


def make_plan(
    key: SigningKey,
    *,
    swarm: str,
    term: int,
    number: int,
    shape: ModelShape,
    context: int,
    sessions: int,
    inputs: Iterable[SignedAnnouncement],
    excluded: Mapping[PeerId, str],
    objective: Objective = DEFAULT_OBJECTIVE,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Plan:
    """Compute and sign a plan. It may take seconds of computing in a large pool.

    Args:
        key: the leader's, whose PeerId becomes the plan's leader.
        swarm: the swarm's name.
        term: the leader's term.
        number: counts the leader's plans of the term.
        shape: the model's sizes.
        context: tokens per session.
        sessions: how many sessions at once.
        inputs: the announcements of all live hosts, in any order.
        excluded: reasons of hosts that must not be used.
        objective: what the ring is to be best at.
        constraints: what it must respect beside memory and edges.

    Raises:
        NoPlan: no ring is possible, or the inputs are more than a plan can carry.

    """
    hosts = sorted(inputs, key=lambda entry: entry.announcement.peer)
    reasons = tuple(sorted((peer, _one_line(reason)) for peer, reason in excluded.items()))
    leader = peer_id_of(bytes(key.verify_key))
    announcements = tuple(entry.announcement for entry in hosts)
    request = PlanRequest(
        *(swarm, leader, term, number, shape, context, sessions, announcements, reasons),
        objective=objective,
        constraints=constraints,
    )
    result = compute_ring(request)
    body = PlanBody(
        *(swarm, leader, term, number, shape, context, sessions),
        inputs=tuple(entry.data for entry in hosts),
        excluded=reasons,
        objective=objective,
        constraints=constraints,
        result=result,
    )
    plan = _signed(body, key)
    size = len(plan.to_json_bytes())
    if size > MAX_BYTES:
        raise NoPlan(
            f"a plan of {len(hosts)} hosts has {size} bytes, more than the {MAX_BYTES} allowed: give fewer hosts"
        )
    return plan


def parse_plan(data: bytes) -> Plan:
    """Return the plan in a JSON document. Nothing in it is to be trusted before verify_plan.

    Raises:
        PlanRefused: check "schema": too long, not JSON, or not as `swarmd-plan/1` says.

    """
    try:
        document = read_object(data)
        pubkey, signature = document.pop(_KEY, None), document.pop(_SIGNATURE, None)
        if not isinstance(pubkey, str) or not isinstance(signature, str):
            raise FieldError(f"{_KEY} and {_SIGNATURE} must be text: the plan is unsigned")
        return Plan(read_body(document), pubkey, signature)
    except FieldError as error:
        raise PlanRefused("schema", str(error)) from error


def verify_plan(plan: Plan, *, leader: PeerId, term: int, shape: ModelShape, swarm: str) -> None:
    """Check a plan against what this host knows itself, and by computing it again (as long as make_plan
    takes).

    Args:
        plan: the plan.
        leader: the host that this host follows.
        term: the term for which it does.
        shape: this host's own estimate of the model.
        swarm: this host's swarm.

    Raises:
        PlanRefused: the first check that fails, in the order signature, leader, term, swarm, model, shape,
            inputs, recompute.

    """
    body = plan.body
    _check_signer(plan, leader)
    if body.term != term:
        raise PlanRefused("term", f"the plan is of term {body.term}, and this host follows term {term}")
    if body.swarm != swarm:
        raise PlanRefused("swarm", f"the plan is for the swarm {body.swarm!r}, and this host is in {swarm!r}")
    _check_shape(body.shape, shape)
    hosts = _checked_inputs(body)
    _check_result(body, hosts)


def request_of(plan: Plan) -> PlanRequest:
    """Return the request that a plan answers, read from the inputs that it carries.

    Raises:
        PlanRefused: check "inputs".

    """
    return _request(plan.body, _checked_inputs(plan.body))


def check_own(plan: Plan, self_peer: PeerId, memory_limit: int) -> Stage:
    """Return the stage that this host is to serve, after checking that it can.

    Raises:
        PlanRefused: check "member": the host is not in the ring; "memory": its block needs more than it may
            use.

    """
    stage = plan.stage_of(self_peer)
    if stage is None:
        raise PlanRefused("member", f"{self_peer} is not in the ring of plan {plan.id}")
    if stage.memory_bytes > memory_limit:
        raise PlanRefused(
            "memory",
            f"layers [{stage.lo}, {stage.hi}) need {stage.memory_bytes} bytes, and this host may use {memory_limit}",
        )
    return stage


def _signed(body: PlanBody, key: SigningKey) -> Plan:
    document = sign_document(write_body(body), key, signature_field=_SIGNATURE, key_field=_KEY)
    return Plan(body, str(document[_KEY]), str(document[_SIGNATURE]))


def _check_signer(plan: Plan, leader: PeerId) -> None:
    try:
        key = verify_document(plan.document(), signature_field=_SIGNATURE, key_field=_KEY)
    except SignatureError as error:
        raise PlanRefused("signature", str(error)) from error
    signer = peer_id_of(key)
    if signer != leader or plan.body.leader != leader:
        raise PlanRefused(
            "leader",
            f"the plan names {plan.body.leader} as leader and {signer} has signed it, but this host follows {leader}",
        )


def _check_shape(planned: ModelShape, own: ModelShape) -> None:
    if planned.model_id != own.model_id:
        raise PlanRefused("model", f"the plan is for {planned.model_id}, and this host serves {own.model_id}")
    for field in fields(ModelShape):
        there, here = getattr(planned, field.name), getattr(own, field.name)
        if there != here:
            raise PlanRefused(
                "shape",
                f"{field.name} of {own.model_id} is {there} in the plan and {here} by this host's own estimate:"
                " the checkpoints, dtypes or versions differ",
            )


def _checked_inputs(body: PlanBody) -> tuple[Announcement, ...]:
    try:
        hosts = tuple(verified(data).announcement for data in body.inputs)
    except (AnnouncementError, EnvelopeError) as error:
        raise PlanRefused("inputs", str(error)) from error
    for host in hosts:
        if host.swarm != body.swarm:
            raise PlanRefused("inputs", f"the announcement of {host.peer} is of the swarm {host.swarm!r}")
    peers = [host.peer for host in hosts]
    if sorted(set(peers)) != peers:
        raise PlanRefused("inputs", "the announcements are not in ascending order of peers without repeats")
    return hosts


def _check_result(body: PlanBody, hosts: tuple[Announcement, ...]) -> None:
    try:
        result = compute_ring(_request(body, hosts))
    except NoPlan as error:
        raise PlanRefused("recompute", f"the plan's inputs allow no ring: {error}") from error
    if result != body.result:
        raise PlanRefused(
            "recompute", f"the plan's inputs give another ring: {_shown(result)}, not {_shown(body.result)}"
        )


def _request(body: PlanBody, hosts: tuple[Announcement, ...]) -> PlanRequest:
    return PlanRequest(
        *(body.swarm, body.leader, body.term, body.number, body.shape, body.context, body.sessions),
        hosts=hosts,
        excluded=body.excluded,
        objective=body.objective,
        constraints=body.constraints,
    )


def _one_line(reason: str) -> str:
    # A reason comes from another host: it must not keep the plan from being read or shown.
    line = "".join(letter if letter.isprintable() else " " for letter in reason)
    return line[:_MAX_REASON]


def _shown(result: RingPlan) -> str:
    return ", ".join(f"{stage.peer} [{stage.lo}, {stage.hi})" for stage in result.stages)
