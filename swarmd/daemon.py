"""The daemon: builds the services, starts them in order, and takes them down in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial

import trio

from conf.load import Loaded
from conf.schema import Config
from registry.models import ModelRow, checkpoint_path, load_registry
from runtimes.base import ModelSource, RuntimeFailure
from swarmd.activity import Activity
from swarmd.announcer import Announcer
from swarmd.assigner import Assigner
from swarmd.control import ControlServer, Handler
from swarmd.dialer import Dialer
from swarmd.discovery import discover
from swarmd.engine import Engine
from swarmd.facts import OwnFacts
from swarmd.generation import Generation
from swarmd.greeter import Greeter
from swarmd.http.server import listen_on, serve_http
from swarmd.http.tools import ToolRoutes
from swarmd.inspection import Inspection
from swarmd.leadership import Leadership
from swarmd.learning import Learning
from swarmd.measuring import measure_host
from swarmd.member import Member
from swarmd.net import Node, open_node
from swarmd.perf_store import FILE_NAME as PERF_FILE
from swarmd.perf_store import PerfStore
from swarmd.plans import Plans
from swarmd.rtt import RttMeter
from swarmd.serving import Serving
from swarmd.state_dir import HostKey, StateDir, StateDirError
from swarmd.uplink import UplinkMeter
from swarmd.view import SwarmView
from swarmd.watchdog import watch_runtime
from swarmd.what_ifs import WhatIfs

_FAREWELL = 0.3  # s for the last announcement to leave
_REMEMBER_EVERY = 60.0  # s


async def run_daemon(loaded: Loaded, *, on_ready: Callable[[], None] | None = None) -> None:
    """Run a daemon until it is told to leave (SIGINT, SIGTERM) or cancelled.

    on_ready is called once the daemon listens and answers on its control socket.

    Raises:
        anything with a `code`: the daemon could not start; the text says what to do.

    """
    config = loaded.config
    state = StateDir.prepare(loaded.state_dir)
    row = load_registry(config.registry.path, config.registry.publishers).row(config.model.id)
    source = ModelSource(row.id, checkpoint_path(row, config.model.path), row.layer_count, row.hf_arch)
    async with ControlServer.claimed(state.path) as server:
        key = state.host_key()
        incarnation = state.next_incarnation()
        async with open_node(
            bytes(key.signing_key), config.swarm.listen, announce=config.swarm.announce
        ) as node:
            daemon = Daemon(config, state, key, incarnation, node, row, source)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(daemon.leave_on_signal, nursery.cancel_scope)
                await daemon.run(server, on_ready)


class Daemon:
    """All services of one host; they know each other by constructor, never by lookup."""

    def __init__(
        self,
        config: Config,
        state: StateDir,
        key: HostKey,
        incarnation: int,
        node: Node,
        row: ModelRow,
        source: ModelSource,
    ) -> None:
        self._config = config
        self._state = state
        self._node = node
        self._activity = Activity(trio.current_time)
        self._facts = OwnFacts()
        self._view = SwarmView(key.peer, config.swarm.name, self._facts, self._activity)
        self._perf = PerfStore(state.path / PERF_FILE, self._activity)
        self._learning = Learning(key.peer, self._perf, self._facts)
        self._meter = RttMeter(node, self._learning.saw_rtt)
        self._uplink = UplinkMeter(node, self._view, self._facts, self._meter, self._learning.saw_uplink)
        self._engine = Engine(
            source,
            row.adapter,
            name=config.runtime.name,
            threads=config.runtime.threads,
            dtype=config.runtime.dtype,
            numerics=config.runtime.numerics,
        )
        self._dialer = Dialer(node, self._activity)
        self._announcer = Announcer(
            key, incarnation, node, self._view, self._facts, self._meter, self._activity
        )
        self._greeter = Greeter(
            node, self._view, self._dialer, self._meter, self._activity, self._announcer.hello
        )
        self._plans = Plans(node, self._view, self._facts, self._activity)
        self._serving = Serving(config, key, node, self._engine, self._facts, self._learning)
        self._member = Member(node, self._view, self._engine, self._facts, self._activity, self._serving)
        self._assigner = Assigner(node, self._view, self._member, config.plan.progress_timeout)
        self._leadership = Leadership(config, key, self._view, self._plans, self._assigner, self._activity)
        self._generation = Generation(node, self._plans, self._serving, config.plan.progress_timeout)
        self._inspection = Inspection(
            node=node,
            view=self._view,
            facts=self._facts,
            engine=self._engine,
            plans=self._plans,
            generation=self._generation,
            dialer=self._dialer,
            meter=self._meter,
            activity=self._activity,
            what_ifs=WhatIfs(config, self._view, self._plans),
        )

    async def run(self, server: ControlServer, on_ready: Callable[[], None] | None) -> None:
        """Serve until cancelled, then say farewell."""
        try:
            await self._serve(server, on_ready)
        finally:
            await self._say_farewell()

    async def _serve(self, server: ControlServer, on_ready: Callable[[], None] | None) -> None:
        await self._perf.open()
        async with trio.open_nursery() as nursery:
            for service in (
                self._perf.run,
                self._uplink.run,
                self._view.run,
                self._serving.run,
                self._member.run,
                self._greeter.run,
                self._dialer.run,
                self._announcer.run,
                self._announcer.listen,
                self._plans.follow,
                self._leadership.run,
                self._measure,
                self._remember,
            ):
                nursery.start_soon(service)
            nursery.start_soon(
                watch_runtime, self._engine, self._activity, self._config.plan.progress_timeout
            )
            nursery.start_soon(discover, self._config, self._state, self._node, self._dialer, self._activity)
            if self._config.http.listen:
                await self._serve_http(nursery)
            await nursery.start(server.run, self._operations())
            self._activity.note("listening", addresses=list(self._node.addresses()))
            if on_ready is not None:
                on_ready()

    async def _serve_http(self, nursery: trio.Nursery) -> None:
        """Answer outside tools. Raises ListenHttp."""
        sock = listen_on(self._config.http.listen)
        tools = ToolRoutes(self._perf.book, self._inspection.health)
        await nursery.start(partial(serve_http, sock, tools.routes()))
        host, port = sock.getsockname()[:2]
        self._activity.note("http_listening", address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    def _operations(self) -> Mapping[str, Handler]:
        return {
            "status": self._inspection.status,
            "peers": self._inspection.peers,
            "plan": self._inspection.plan,
            "generate": self._generation.control,
        }

    async def _measure(self) -> None:
        """Learn what this host can do; a host that cannot serve its model stays, says why, and can still be asked."""
        try:
            shape = await measure_host(
                self._config, self._engine, self._facts, self._learning, self._activity
            )
        except RuntimeFailure as error:
            self._facts.update(waiting_for=f"a model that can be served here: {error}")
            self._activity.note("cannot_serve", str(error), code=error.code)
            return
        self._member.shape = self._leadership.shape = self._plans.shape = shape

    async def leave_on_signal(self, everything: trio.CancelScope) -> None:
        """Cancel `everything` on SIGINT, SIGTERM or SIGHUP (the terminal is gone)."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                self._activity.note("leaving", f"signal {signal.Signals(number).name}")
                everything.cancel()
                return

    async def _say_farewell(self) -> None:
        """Tell the others, so that they need not wait for a silence; what they do not hear they will find out."""
        with trio.move_on_after(_FAREWELL) as scope:
            scope.shield = True
            await self._announcer.say_farewell()
            await trio.sleep(_FAREWELL / 2)  # gossip is sent by tasks of its own
        self._save_peers()

    async def _remember(self) -> None:
        while True:
            await trio.sleep(_REMEMBER_EVERY)
            self._save_peers()

    def _save_peers(self) -> None:
        try:
            self._state.remember_peers(self._node.address_book.to_dict())
        except StateDirError as error:
            self._activity.note("peers_not_saved", str(error))
