"""The state directory: what is wrong in it is named, what is harmless is set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.state_dir import StateDir, StateDirError


def test_every_start_counts_one_more(tmp_path: Path) -> None:
    state = StateDir.prepare(tmp_path)
    assert [state.next_incarnation() for _ in range(3)] == [1, 2, 3]
    assert StateDir.prepare(tmp_path).next_incarnation() == 4


@pytest.mark.parametrize("content", ["-5", "1" + "0" * 20, "many", ""])
def test_a_count_that_is_none_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "incarnation").write_text(content)
    with pytest.raises(StateDirError, match=str(tmp_path / "incarnation")):
        StateDir.prepare(tmp_path).next_incarnation()


def test_a_directory_in_the_place_of_the_count_is_named(tmp_path: Path) -> None:
    (tmp_path / "incarnation").mkdir()
    with pytest.raises(StateDirError, match="incarnation"):
        StateDir.prepare(tmp_path).next_incarnation()


def test_remembered_peers_come_back(tmp_path: Path) -> None:
    state = StateDir.prepare(tmp_path)
    assert state.remembered_peers() == {}
    state.remember_peers({"a": {"b": 1}})
    assert state.remembered_peers() == {"a": {"b": 1}}


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[1]", "\0"])
def test_a_damaged_address_book_costs_only_itself(tmp_path: Path, content: str) -> None:
    (tmp_path / "peers.json").write_text(content)
    state = StateDir.prepare(tmp_path)
    assert state.remembered_peers() == {}
    state.remember_peers({"a": {}})
    assert state.remembered_peers() == {"a": {}}


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(StateDirError, match=r"state\.dir"):
        StateDir.prepare(tmp_path / "state")
