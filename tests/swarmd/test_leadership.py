"""A leader that has a ring: it changes it for one that is worth it, and only while nobody uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from nacl.signing import SigningKey
from trio.testing import MockClock

from conf.load import load
from registry.shape import ModelShape
from ring.announcement import Announcement, BlockHeld, SignedAnnouncement, signed, verified
from ring.assignment import Completed
from ring.identity import PeerId
from ring.objective import Objective
from ring.plan import Plan
from swarmd.activity import Activity
from swarmd.assigner import Assigner
from swarmd.bench.plan_pools import made_up_host
from swarmd.changes import Changes
from swarmd.facts import OwnFacts
from swarmd.leadership import Leadership
from swarmd.net import Node
from swarmd.plans import Plans
from swarmd.state_dir import HostKey
from swarmd.view import SwarmView

MB = 10**6
SHAPE = ModelShape("made-up", (MB,) * 4, (0,) * 4, (0,) * 4, 0, 0, 0, 64, 0)


class ViewDouble:
    """In place of SwarmView: a swarm that this host leads, with the hosts that the test says there are."""

    def __init__(self, peer: PeerId, hosts: dict[PeerId, SignedAnnouncement]) -> None:
        self.peer, self.swarm, self.hosts = peer, "bench", hosts
        self.leader, self.term, self.is_leader = peer, 3, True
        self.stable_since = 0.0
        self.changes = Changes()

    def alive(self) -> tuple[SignedAnnouncement, ...]:
        return tuple(self.hosts[peer] for peer in sorted(self.hosts))

    def announcement(self, peer: PeerId) -> Announcement | None:
        host = self.hosts.get(peer)
        return None if host is None else host.announcement


class AssignerDouble:
    """In place of Assigner: every plan is loaded at once."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self.plans: list[Plan] = []

    async def assign(self, plan: Plan) -> Completed:
        self.plans.append(plan)
        for peer, lo, hi in plan.assignment():
            held = BlockHeld(plan.id, SHAPE.model_id, lo, hi, "serving", 1, 1)
            self._swarm.change(peer, block=held, state="member")
        return Completed()


class NodeDouble:
    """In place of Node: nobody calls."""

    def serve(self, *_: object, **__: object) -> None:
        """Take a handler that nobody will call."""


class Swarm:
    """Two hosts that could each serve the whole model alone; this one leads."""

    def __init__(self, **settings: str) -> None:
        keys = [HostKey(SigningKey(bytes([number]) * 32)) for number in (1, 2)]
        self._keys = {key.peer: key for key in keys}
        self.hosts: dict[PeerId, SignedAnnouncement] = {}
        for peer in self._keys:
            rtts = tuple((there, 1000) for there in self._keys if there != peer)
            self._say(replace(made_up_host(peer, 1000 * MB, 1000, 10), peer=peer, rtt_us=rtts))
        flags = {f"plan.{name}": value for name, value in settings.items()}
        config = load(flags=flags, environ={"HOME": "/h"}, file=None, cwd=Path("/h")).config
        view = cast(SwarmView, ViewDouble(keys[0].peer, self.hosts))
        self.activity = Activity(trio.current_time)
        self.plans = Plans(cast(Node, NodeDouble()), view, OwnFacts(), self.activity)
        self.assigner = AssignerDouble(self)
        assigner = cast(Assigner, self.assigner)
        self.leadership = Leadership(config, keys[0], view, self.plans, assigner, self.activity)
        self.leadership.shape = SHAPE

    def change(self, peer: PeerId, **fields: Any) -> None:
        """Let a host announce something else."""
        self._say(replace(self.hosts[peer].announcement, **fields))

    def speed(self, peer: PeerId, layer_us: int) -> None:
        """Let a host announce another time for a layer."""
        self.change(peer, layer_ns=((1, layer_us * 1000),))

    def _say(self, announcement: Announcement) -> None:
        key = self._keys[announcement.peer]
        said = signed(announcement, key.sign, key.public_key)
        self.hosts[announcement.peer] = verified(said)

    @property
    def served(self) -> list[PeerId]:
        """Who served alone, one after the other."""
        return [plan.head for plan in self.assigner.plans]

    @asynccontextmanager
    async def led(self) -> AsyncIterator[tuple[PeerId, PeerId]]:
        """Lead; yields the host that serves first, and the other one."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.leadership.run)
            await trio.sleep(5)
            (first,) = self.served
            (other,) = self._keys.keys() - {first}
            yield first, other
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _threads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time jumps as soon as all tasks wait, and would jump while a thread computes."""

    async def here(function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)


async def test_a_ring_gives_way_to_a_better_one(autojump_clock: MockClock) -> None:
    swarm = Swarm()
    async with swarm.led() as (first, other):
        swarm.speed(other, 500)
        await trio.sleep(70)
        assert swarm.served == [first, other]
        assert any(entry.event == "replanning" for entry in swarm.activity.recent())
        await trio.sleep(600)
        assert swarm.served == [first, other]


async def test_a_ring_in_use_stays(autojump_clock: MockClock) -> None:
    swarm = Swarm()
    async with swarm.led() as (first, other):
        swarm.change(first, sessions=1)
        swarm.speed(other, 500)
        await trio.sleep(600)
        assert swarm.served == [first]
        swarm.change(first, sessions=0)
        await trio.sleep(70)
        assert swarm.served == [first, other]


@pytest.mark.parametrize("settings", [{"replan_seconds": "0"}, {"least_gain": "1.5"}])
async def test_a_ring_stays_if_the_settings_say_so(
    settings: dict[str, str], autojump_clock: MockClock
) -> None:
    swarm = Swarm(**settings)
    async with swarm.led() as (first, other):
        swarm.speed(other, 500)
        await trio.sleep(600)
        assert swarm.served == [first]


async def test_a_ring_is_not_changed_for_what_was_measured_only_once(autojump_clock: MockClock) -> None:
    swarm = Swarm()
    async with swarm.led() as (first, other):
        for _ in range(10):
            swarm.speed(other, 500)
            await trio.sleep(30)
            swarm.speed(other, 1000)
            await trio.sleep(30)
        assert swarm.served == [first]


async def test_a_ring_that_slows_down_gives_way(autojump_clock: MockClock) -> None:
    swarm = Swarm()
    async with swarm.led() as (first, other):
        swarm.speed(first, 3000)
        await trio.sleep(70)
        assert swarm.served == [first, other]


async def test_plans_carry_what_the_settings_ask(autojump_clock: MockClock) -> None:
    swarm = Swarm(objective="aggregate", prompt_tokens="77", ttft_limit_seconds="2.5", horizon_seconds="60")
    async with swarm.led():
        objective = swarm.assigner.plans[0].body.objective
        assert objective == Objective("aggregate", 77, 2_500_000, (), 60)


async def test_a_dead_ring_is_replaced_at_once_whoever_uses_it(autojump_clock: MockClock) -> None:
    swarm = Swarm()
    async with swarm.led() as (first, other):
        swarm.change(first, sessions=1)
        del swarm.hosts[first]
        await trio.sleep(5)
        assert swarm.served == [first, other]
