"""Inspection: what `swarmd ctl status|peers|plan` shows, read off the live services and never off what they meant to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import trio

from ring.announcement import Announcement
from ring.identity import PeerId
from swarmd import __version__
from swarmd.activity import Activity
from swarmd.dialer import Dialer
from swarmd.engine import Engine
from swarmd.facts import OwnFacts
from swarmd.generation import Generation
from swarmd.net import Node
from swarmd.plans import Plans
from swarmd.rtt import RttMeter
from swarmd.view import SwarmView
from swarmd.what_ifs import WhatIfs


class Inspection:
    """Answers the read-only operations of the control socket with JSON-ready maps."""

    def __init__(
        self,
        *,
        node: Node,
        view: SwarmView,
        facts: OwnFacts,
        engine: Engine,
        plans: Plans,
        generation: Generation,
        dialer: Dialer,
        meter: RttMeter,
        activity: Activity,
        what_ifs: WhatIfs,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._node = node
        self._view = view
        self._facts = facts
        self._engine = engine
        self._plans = plans
        self._generation = generation
        self._dialer = dialer
        self._meter = meter
        self._activity = activity
        self._what_ifs = what_ifs
        self._clock = clock
        self._started = clock()

    async def status(self, request: dict[str, Any], emit: object) -> dict[str, Any]:
        """Return this host's state in one map."""
        facts, source = self._facts, self._engine.source
        leader = self._view.leader
        return {
            "peer": self._view.peer,
            "version": __version__,
            "swarm": self._view.swarm,
            "state": facts.state,
            "waiting_for": self._waiting_for(),
            "uptime_s": round(self._clock() - self._started, 1),
            "addresses": list(self._node.addresses()),
            "leader": leader and {"peer": leader, "term": self._view.term, "me": self._view.is_leader},
            "hosts": len(self._view.alive()),
            "device": facts.device,
            "memory": {
                "total": facts.memory_total,
                "limit": facts.memory_limit,
                "free": facts.memory_free,
            },
            "model": {
                "id": source.model_id,
                "layers": source.layer_count,
                "path": str(source.path),
                "runtime": self._engine.runtime_name,
                "numerics": self._engine.numerics,
                "runtime_instead_of": self._engine.instead_of or None,
            },
            "working": self._working(),
            "block": self._block(),
            "plan": self._plan_line(),
            "sessions": {"coordinated": self._generation.coordinated(), "held": facts.sessions},
            "log": [
                {
                    "ago_s": round(self._clock() - entry.at, 1),
                    "event": entry.event,
                    "reason": entry.reason or _about(entry.fields),
                }
                for entry in self._activity.recent()
            ],
        }

    def health(self) -> dict[str, Any]:
        """Return in a few words how this host is."""
        return {
            "version": __version__,
            "swarm": self._view.swarm,
            "peer": self._view.peer,
            "state": self._facts.state,
            "hosts": len(self._view.alive()),
            "plan": self._plans.active_id or None,
        }

    def _working(self) -> dict[str, Any] | None:
        """Say what the runtime is doing, and for how long without progress."""
        working = self._engine.working()
        return None if working is None else {"doing": working[0], "silent_s": round(working[1], 1)}

    def _waiting_for(self) -> str | None:
        """Say in one line what is missing until this host serves, or None if nothing is."""
        if self._facts.waiting_for:
            return self._facts.waiting_for
        if self._plans.active is not None:
            return None
        waits = [self._plans.reason]
        if len(self._view.alive()) < 2:
            waits.append("no other host has been found yet")
        return "; ".join([*waits, *self._dialer.troubles()[:3]])

    def _block(self) -> dict[str, Any] | None:
        held, block = self._engine.held, self._facts.block
        if block is None:
            return None
        answer: dict[str, Any] = {
            "plan": block.plan,
            "lo": block.lo,
            "hi": block.hi,
            "state": block.state,
            "loaded": block.loaded,
            "total": block.total,
        }
        if held is not None:
            inside = range(held.lo, held.hi)
            answer |= {
                "layers": list(held.layers),
                "tensors": len(held.tensors),
                "weight_bytes": held.weight_bytes,
                "bytes_read": held.bytes_read,
                "foreign_layers": [layer for layer in held.layers if layer not in inside],
            }
        return answer

    def _plan_line(self) -> dict[str, Any] | None:
        plan = self._plans.active
        if plan is None:
            return None
        return {
            "id": plan.id,
            "state": "active",
            "term": plan.body.term,
            "head": plan.head,
            "predicted_tok_s": plan.body.result.millitok_s / 1000,
        }

    async def peers(self, request: dict[str, Any], emit: object) -> dict[str, Any]:
        """Return a row for each live host, this one first, and one for each that cannot be reached."""
        rtts = self._meter.minimum_us()
        rows = [self._row(signed.announcement, rtts) for signed in self._view.alive()]
        known = {row["peer"] for row in rows}
        rows.sort(key=lambda row: (not row["me"], row["peer"]))
        for peer, target in sorted(self._dialer.targets.items()):
            if peer not in known and not target.hearsay:
                rows.append(_unreached(peer, target.error or "being dialled"))
        return {"peers": rows}

    def _row(self, host: Announcement, rtts: Mapping[PeerId, int]) -> dict[str, Any]:
        me = host.peer == self._view.peer
        rtt = rtts.get(host.peer)
        block, heard = host.block, self._view.heard_seconds_ago(host.peer)
        return {
            "peer": host.peer,
            "me": me,
            "state": "suspected" if self._view.life(host.peer) == "suspected" else host.state,
            "connection": "self"
            if me
            else "direct"
            if host.peer in self._node.connected()
            else "not connected",
            "address": None if me else self._node.remote_address(host.peer),
            "rtt_ms": None if rtt is None else rtt / 1000,
            "memory_limit": host.memory_limit,
            "memory_free": host.memory_free,
            "layer_ms": host.layer_ns[0][1] / 1e6 if host.layer_ns else None,
            "block": f"[{block.lo}, {block.hi}) {block.state}" if block else None,
            "version": host.version,
            "follows": host.leader or None,
            "heard_ago_s": None if heard is None else round(heard, 1),
            "note": "",
        }

    async def plan(self, request: dict[str, Any], emit: object) -> dict[str, Any]:
        """Return the active plan as its signed document, or why there is none; or the answer to a what-if."""
        if "what_if" in request:
            return await self._what_ifs.answer(request["what_if"])
        plan = self._plans.active
        if plan is None:
            return {"plan": None, "reason": self._plans.reason}
        return {"plan": json.loads(plan.to_json_bytes()), "id": plan.id, "state": "active"}


def _unreached(peer: PeerId, note: str) -> dict[str, Any]:
    nothing = ("address", "rtt_ms", "memory_limit", "memory_free", "layer_ms", "block", "version", "follows")
    return {
        "peer": peer,
        "me": False,
        "state": "unknown",
        "connection": "not connected",
        **dict.fromkeys(nothing),
        "heard_ago_s": None,
        "note": note,
    }


def _about(fields: Mapping[str, object]) -> str:
    """Return what a transition without a reason was about, for people."""
    return ", ".join(f"{name} {value}" for name, value in fields.items())
