"""A WAN on one machine: network namespaces, and a switch between them that delays every packet.

Whatever runs in a namespace has an address of its own and sees real round trips: TCP's handshakes, slow start and
acknowledgements go the long way, too. Needs Linux, root and iproute2; nothing outside the namespaces is reached.
`python -m swarmd.bench.wan` is the switch itself; DelayedHosts runs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import trio

_NETWORK = "10.97.0"
_MTU = 1500
_READY_WITHIN = 20.0  # s
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_PRIORITY = 20


class WanUnavailable(Exception):
    """There are no network namespaces to be had. Run the bench as root on Linux, with iproute2."""

    code: ClassVar[str] = "wan_unavailable"


@dataclass(frozen=True, slots=True)
class DelayedHosts:
    """Namespaces 1 … count, joined by the switch. Made by delayed_hosts()."""

    prefix: str
    switch: trio.Process

    def address(self, host: int) -> str:
        """Return the IPv4 address of a host."""
        return f"{_NETWORK}.{host}"

    def launch(self, host: int) -> tuple[str, ...]:
        """Return what stands before a command that is to run on a host."""
        return ("ip", "netns", "exec", f"{self.prefix}{host}")

    async def delay(self, seconds: float) -> None:
        """Delay every packet between two hosts by so much from now on: a round trip takes twice as long."""
        assert self.switch.stdin is not None  # noqa: S101 - it was opened with one
        await self.switch.stdin.send_all(f"{seconds!r}\n".encode())


@asynccontextmanager
async def delayed_hosts(count: int) -> AsyncIterator[DelayedHosts]:
    """Make hosts that end with the block.

    Raises:
        WanUnavailable: the system does not allow it; says why.

    """
    prefix = f"swarmd{os.getpid()}-"
    switch = await trio.lowlevel.open_process(
        [sys.executable, "-m", "swarmd.bench.wan", prefix, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said = b""
        with trio.move_on_after(_READY_WITHIN):
            while b"READY\n" not in said:
                assert switch.stdout is not None  # noqa: S101 - it was opened with one
                chunk = await switch.stdout.receive_some()
                if not chunk:
                    break
                said += chunk
        if b"READY\n" not in said:
            lines = said.decode(errors="replace").strip().splitlines()
            raise WanUnavailable(
                f"no network namespaces: {lines[-1] if lines else 'the switch says nothing'}"
            )
        yield DelayedHosts(prefix, switch)
    finally:
        with trio.CancelScope(shield=True):
            assert switch.stdin is not None  # noqa: S101 - it was opened with one
            await switch.stdin.aclose()  # the switch cleans up when its input ends
            await switch.wait()


class _Switch:
    """Takes packets from the namespaces' TUN devices, and hands each to its destination's when it is due."""

    def __init__(self, prefix: str, count: int) -> None:
        self._prefix = prefix
        self._hosts = range(1, count + 1)
        self._devices: dict[bytes, int] = {}
        self._delay_ns = 0
        self._due: list[tuple[int, int, int, bytes]] = []
        self._count = 0

    def __enter__(self) -> _Switch:
        try:
            for host in self._hosts:
                address = f"{_NETWORK}.{host}"
                self._devices[bytes(map(int, address.split(".")))] = self._make(
                    f"{self._prefix}{host}", host, address
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            subprocess.run(  # noqa: S603
                ["ip", "netns", "del", f"{self._prefix}{host}"],  # noqa: S607
                stderr=subprocess.DEVNULL,
                check=False,
            )

    def _make(self, space: str, host: int, address: str) -> int:
        _ip("netns", "add", space)
        device = f"swarmd{host}"
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        # The device is made here and moved: its name must not be taken outside.
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("link", "set", device, "netns", space)
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
        _ip("-n", space, "link", "set", device, "mtu", str(_MTU), "txqueuelen", "5000", "up")
        return descriptor

    def run(self) -> None:
        """Switch until the input ends; a line on it is the delay in seconds from then on."""
        commands, devices = sys.stdin.fileno(), list(self._devices.values())
        while True:
            patience = max(0, self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
            ready, _, _ = select.select([commands, *devices], [], [], patience)
            if commands in ready:
                line = os.read(commands, 4096).decode()
                if not line:
                    return
                self._delay_ns = round(1e9 * float(line.split()[-1]))
            for device in ready:
                if device != commands:
                    self._take(device)
            self._hand_on()

    def _take(self, device: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(device, _MTU + 64)
                target = self._devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if target is not None:
                    self._count += 1
                    heapq.heappush(
                        self._due, (time.monotonic_ns() + self._delay_ns, self._count, target, packet)
                    )

    def _hand_on(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic_ns():
            _, _, target, packet = heapq.heappop(self._due)
            with contextlib.suppress(
                BlockingIOError
            ):  # its queue is full: a packet is lost, as on any network
                os.write(target, packet)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)  # noqa: S603, S607


def main() -> None:
    """Switch between new namespaces PREFIX1 … PREFIXn."""
    prefix, count = sys.argv[1], int(sys.argv[2])
    with contextlib.suppress(OSError):  # on a loaded machine the switch would add to the delay
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    try:
        with _Switch(prefix, count) as switch:
            print("READY", flush=True)  # noqa: T201
            switch.run()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
