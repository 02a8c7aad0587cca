"""LocalSwarm: real daemons in their own processes on loopback, for the demo, the benchmarks and the whole-swarm tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import trio

from swarmd import control

_CONTROL_WITHIN = 60.0  # s until a fresh daemon answers on its control socket
_LEAVE_WITHIN = 8.0  # s until a daemon that was asked to leave is killed
_POLL = 0.1  # s


class LocalSwarmFailed(Exception):
    """A daemon of the local swarm died, or the swarm did not get where it should in time. Read the log it names."""

    code: ClassVar[str] = "local_swarm_failed"


@dataclass(slots=True)
class LocalHost:
    """One daemon process. `home` holds its configuration, state and log; `launch` stands before its command."""

    name: str
    home: Path
    launch: tuple[str, ...] = ()
    process: trio.Process | None = None

    @property
    def socket(self) -> Path:
        """Its control socket."""
        return self.home / "state" / "control.sock"

    @property
    def log(self) -> Path:
        """Its log, JSON lines."""
        return self.home / "log.jsonl"

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process is not None and self.process.poll() is None

    async def status(self) -> dict[str, Any]:
        """Return what `swarmd ctl status --json` shows."""
        return await self.ask("status")

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the daemon's control socket.

        Raises:
            control.DaemonNotRunning: it does not listen yet.
            LocalSwarmFailed: it has ended; says what it said last.

        """
        try:
            return await control.request(self.socket, op, **fields)
        except control.DaemonNotRunning:
            if self.running:
                raise
            raise LocalSwarmFailed(f"{self.name} ended: {self.last_words()}") from None

    async def addresses(self) -> list[str]:
        """Wait until the daemon listens, and return its multiaddrs."""
        with trio.move_on_after(_CONTROL_WITHIN):
            while self.running:
                try:
                    return list((await self.status())["addresses"])
                except control.DaemonNotRunning:
                    await trio.sleep(_POLL)
        raise LocalSwarmFailed(f"{self.name} does not answer: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last line of the log, for an error message."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return f"{lines[-1] if lines else 'it wrote nothing'} (log: {self.log})"

    def kill(self) -> None:
        """Kill -9: what a power cut looks like to the others."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGKILL)

    async def leave(self) -> None:
        """Ask the daemon to leave, as Ctrl-C does; kill it if it does not."""
        if self.process is None:
            return
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            with trio.move_on_after(_LEAVE_WITHIN):
                await self.process.wait()
            self.kill()
        await self.process.wait()


@dataclass(slots=True)
class LocalSwarm:
    """Hosts of one swarm below `home`. settings: dotted key → value, the same for all hosts."""

    home: Path
    name: str
    settings: Mapping[str, Any]
    hosts: list[LocalHost] = field(default_factory=list)

    async def add(
        self, settings: Mapping[str, Any] | None = None, *, launch: tuple[str, ...] = ()
    ) -> LocalHost:
        """Start a daemon that joins through the running hosts; returns as soon as it listens.

        launch: what runs the command, such as `ip netns exec NAME`.
        """
        number = len(self.hosts) + 1
        host = LocalHost(f"host-{number}", self.home / f"h{number}", launch)
        host.home.mkdir(mode=0o700)
        self.hosts.append(host)
        await self.start(host, settings or {})
        return host

    async def start(self, host: LocalHost, settings: Mapping[str, Any]) -> None:
        """Start the daemon of a host, or start it again after its end."""
        await host.leave()
        bootstrap = [
            address
            for other in self.hosts
            if other is not host and other.running
            for address in await other.addresses()
        ]
        values = {
            "swarm.name": self.name,
            "swarm.listen": ["/ip4/127.0.0.1/tcp/0"],
            "swarm.mdns": False,
            "swarm.bootstrap": bootstrap,
            "state.dir": str(host.home / "state"),
            "log.format": "json",
            **self.settings,
            **settings,
        }
        config = host.home / "swarmd.toml"
        config.write_text(_toml(values))
        # The user's own settings must not leak into a swarm of ours.
        environment = {name: text for name, text in os.environ.items() if not name.startswith("SWARMD_")}
        with host.log.open("ab") as log:
            host.process = await trio.lowlevel.open_process(
                [*host.launch, sys.executable, "-m", "swarmd", "join", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=host.home,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on
            )
        await host.addresses()

    async def ring(self, *, within: float) -> dict[str, Any]:
        """Wait for a serving ring and return the first running host's `plan` answer.

        Raises:
            LocalSwarmFailed: there is none in time; names what the swarm waits for.

        """
        waiting = "no host is running"
        with trio.move_on_after(within):
            while True:
                for host in self.hosts:
                    if not host.running:
                        continue
                    answer = await host.ask("plan")
                    if answer.get("plan") is not None:
                        return answer
                    waiting = str(answer.get("reason"))
                    break
                self._check_alive()
                await trio.sleep(_POLL)
        raise LocalSwarmFailed(f"no ring within {within:g} s: {waiting}")

    def _check_alive(self) -> None:
        for host in self.hosts:
            if host.process is not None and host.process.poll() not in (None, -signal.SIGKILL):
                raise LocalSwarmFailed(f"{host.name} ended: {host.last_words()}")

    async def stop(self) -> None:
        """Let all hosts leave."""
        async with trio.open_nursery() as nursery:
            for host in self.hosts:
                nursery.start_soon(host.leave)


@asynccontextmanager
async def local_swarm(home: Path, name: str, settings: Mapping[str, Any]) -> AsyncIterator[LocalSwarm]:
    """Make a swarm that ends with the block, whatever happens in it."""
    swarm = LocalSwarm(home, name, settings)
    try:
        async with _ending_on_signals():
            yield swarm
    finally:
        with trio.CancelScope(shield=True):
            await swarm.stop()


@asynccontextmanager
async def _ending_on_signals() -> AsyncIterator[None]:
    """End the block on SIGTERM and SIGHUP, which would else leave the daemons behind as orphans."""
    scope, token = trio.CancelScope(), trio.lowlevel.current_trio_token()
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        received.append(number)
        token.run_sync_soon(scope.cancel)

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with scope:
            yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if received:
        raise LocalSwarmFailed(f"ended by {signal.Signals(received[0]).name}")


def _toml(values: Mapping[str, Any]) -> str:
    """Write settings as TOML; JSON's strings, numbers, booleans and arrays are TOML's."""
    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
