"""The faults of the stock library that the adapter mends are still there. A test that fails here is good news: the
mend that docs/libp2p.md names for it can go."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from libp2p.host.basic_host import BasicHost
from libp2p.pubsub.pubsub import Pubsub
from libp2p.stream_muxer.yamux import yamux

from swarmd.net import LIBP2P_VERSION, compat
from swarmd.net.yamux import SafeStream

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("plaintext", "offered"),
        ("handler_exception", "host ended: ExceptionGroup"),
        ("huge_negotiation", "took 16 MiB"),
        ("short_reads", "gave up"),
        ("shared_port", "both listen"),
        ("inbound_slots", "connections 0, slots held 1"),
        ("muxer_choice", "Yamux"),
    ],
)
def test_a_stock_host_still_has_this_fault(fault: str, outcome: str) -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "net_stock_host.py"), fault]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"outcome: {outcome}\n" in process.stdout, process.stdout + process.stderr[-2000:]


def test_the_stock_reader_still_answers_pings_in_line_behind_the_write_lock() -> None:
    assert "await self._write_frame(ping_header)" in inspect.getsource(yamux.Yamux.handle_incoming)


def test_the_stock_connection_still_does_not_act_on_a_ping_without_answer() -> None:
    source = inspect.getsource(yamux.Yamux._measure_rtt_loop)
    assert "move_on_after(10.0)" in source
    assert "close" not in source.replace("closed", "")


def test_the_stock_writer_still_polls_a_closed_window_and_gives_up_after_five_seconds() -> None:
    stock = SafeStream.__mro__[1]
    source = inspect.getsource(stock.write)
    assert "trio.sleep(0.01)" in source
    assert "move_on_after(5.0)" in source


def test_stock_identify_still_runs_as_a_system_task() -> None:
    assert "spawn_system_task" in inspect.getsource(BasicHost._schedule_identify)


def test_stock_message_numbers_still_start_from_seconds() -> None:
    assert "self.counter = int(time.time())" in inspect.getsource(Pubsub.__init__)


def test_the_version_that_is_mended_is_the_one_installed() -> None:
    assert version("libp2p") == LIBP2P_VERSION


def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda name: "9.9.9")
    with pytest.raises(compat.LibraryMismatch, match=r"needs libp2p 0\.8\.1, found 9\.9\.9: pip install"):
        compat._check_version()
