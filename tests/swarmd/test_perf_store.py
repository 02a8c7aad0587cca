"""PerfStore: survives a kill at any moment and any damage to its file."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring.perf import Estimate, PerfBook, Subject
from swarmd import perf_store
from swarmd.activity import Activity
from swarmd.perf_store import PerfFile, PerfFileDamaged, PerfStore

WRITER = Path(__file__).with_name("perf_writer_process.py")


def activity() -> Activity:
    return Activity(lambda: 0.0)


def full_book() -> PerfBook:
    book = PerfBook()
    book.saw_layer("a", "m", 64, 10)
    book.saw_tail("a", "m", 11)
    book.saw_rtt("a", "b", 12)
    book.saw_uplink("a", 13)
    book.saw_overhead("a", 14)
    book.saw_drafts("m", "d", context=600, offered=2, accepted=1, token_ns=15)
    return book


async def test_what_is_learned_outlives_the_daemon(tmp_path: Path) -> None:
    file = tmp_path / "perf.sqlite"
    store = PerfStore(file, activity())
    await store.open()
    store.book = full_book()
    await store.save()
    again = PerfStore(file, activity())
    await again.open()
    assert again.book.layer_ns("a", "m") == ((64, 10),)
    assert again.book.tail_ns("a", "m") == 11
    assert (again.book.rtt_us("a", "b"), again.book.uplink("a"), again.book.overhead_ns("a")) == (12, 13, 14)
    assert again.book.acceptance("m", "d") == ((0, (1_000_000, 0)),)
    assert again.book.draft_ns("m", "d") == 15
    assert file.stat().st_mode & 0o077 == 0
    assert os.listdir(tmp_path) == ["perf.sqlite"]


def test_what_is_forgotten_is_forgotten_on_disk(tmp_path: Path) -> None:
    file = PerfFile(tmp_path / "perf.sqlite")
    subject: Subject = ("uplink", ("a",))
    file.write([(subject, Estimate(1, 1)), (("uplink", ("b",)), Estimate(2, 1))])
    file.write([(subject, None)])
    assert file.read() == [(("uplink", ("b",)), Estimate(2, 1))]


def test_what_was_renewed_last_is_read_last(tmp_path: Path) -> None:
    file = PerfFile(tmp_path / "perf.sqlite")
    for peer in ("c", "a", "b"):
        file.write([(("uplink", (peer,)), Estimate(1, 1))])
    assert [names for (_, names), _ in file.read()] == [("c",), ("a",), ("b",)]


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path, seed: int) -> None:
    """The kill falls at a random byte of what the writer does: it does not wait for us."""
    path, number, generator = tmp_path / "perf.sqlite", 0, random.Random(seed)
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), str(number)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        saved = number
        for _ in range(generator.randrange(1, 12)):
            saved = int(writer.stdout.readline())
        time.sleep(generator.random() / 500)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        read = dict(PerfFile(path).read())
        first, second = read["uplink", ("a",)].value, read["uplink", ("b",)].value
        assert first == second >= saved, "a transaction is there as a whole, and one that was confirmed stays"
        number = first


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "perf.sqlite"
    file = PerfFile(path)
    file.write(full_book().take_changes())
    file.write([(("rtt", (f"host-{n}", "b")), Estimate(n, 1)) for n in range(300)])
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_a_damaged_file_is_read_or_set_aside_and_never_ends_the_daemon(
    sound: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(sound[: data.draw(st.integers(0, len(sound)))])
    for _ in range(data.draw(st.integers(0, 6))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "perf.sqlite"
        path.write_bytes(damaged)
        store = PerfStore(path, activity())
        await store.open()
        store.book.saw_uplink("new", 77)
        await store.save()
        await store.save()  # damage may show only when something is written: then the next save begins anew
        again = PerfStore(path, activity())
        await again.open()
        assert again.book.uplink("new") == 77


@pytest.mark.parametrize(
    "content",
    [b"not a database at all, but long enough for a header" * 100, b"SQLite format 3\0" + b"\xff" * 5000],
)
async def test_a_file_that_is_no_database_is_kept_and_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "perf.sqlite"
    path.write_bytes(content)
    log = activity()
    await PerfStore(path, log).open()
    assert (tmp_path / "perf.sqlite.damaged").read_bytes() == content
    (entry,) = log.recent()
    assert (entry.event, "perf.sqlite.damaged" in entry.reason) == ("perf_set_aside", True)


@pytest.mark.parametrize(
    "statement",
    ["PRAGMA user_version = 99", "DROP TABLE estimates", "ALTER TABLE estimates RENAME value TO worth"],
)
def test_another_shape_counts_as_damage(tmp_path: Path, sound: bytes, statement: str) -> None:
    path = tmp_path / "perf.sqlite"
    path.write_bytes(sound)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(PerfFileDamaged):
        PerfFile(path).read()


@pytest.mark.parametrize(
    ("kind", "subject", "value", "samples"),
    [
        ("layer", '["a", "m", 0]', 1, 1),
        ("layer", '["a", "m"]', 1, 1),
        ("uplink", '["a", "b"]', 1, 1),
        ("uplink", "[3]", 1, 1),
        ("uplink", '"a"', 1, 1),
        ("uplink", "[[", 1, 1),
        ("uplink", '["a"]', -1, 1),
        ("uplink", '["a"]', 1, -1),
        ("uplink", '["a"]', "much", 1),
        ("speed", '["a"]', 1, 1),
        (b"uplink", b"\xff", 1, 1),
    ],
)
def test_a_row_that_makes_no_sense_is_passed_over(
    tmp_path: Path, sound: bytes, kind: object, subject: object, value: object, samples: object
) -> None:
    path = tmp_path / "perf.sqlite"
    path.write_bytes(sound)
    before = PerfFile(path).read()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT OR REPLACE INTO estimates VALUES (?, ?, ?, ?, 0)", (kind, subject, value, samples)
    )
    connection.commit()
    connection.close()
    replaced = (kind, subject) == ("uplink", '["a"]')
    assert len(PerfFile(path).read()) == len(before) - replaced


async def test_a_locked_file_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_store, "_LOCKED_FOR", 0.0)
    path, log = tmp_path / "perf.sqlite", activity()
    store = PerfStore(path, log)
    store.book.saw_uplink("a", 5)
    await store.save()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN EXCLUSIVE")
    store.book.saw_uplink("a", 9)
    await store.save()
    assert [entry.event for entry in log.recent()] == ["perf_not_saved"]
    reader.close()
    await store.save()
    assert dict(PerfFile(path).read()) == {("uplink", ("a",)): Estimate(7, 2)}


async def test_a_directory_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    home = tmp_path / "state"
    log = activity()
    store = PerfStore(home / "perf.sqlite", log)
    await store.open()
    store.book.saw_uplink("a", 5)
    await store.save()
    assert [entry.event for entry in log.recent()] == ["perf_not_read", "perf_not_saved"]
    home.mkdir()
    await store.save()
    assert dict(PerfFile(home / "perf.sqlite").read()) == {("uplink", ("a",)): Estimate(5, 1)}
