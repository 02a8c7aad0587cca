from __future__ import annotations

from pathlib import Path

import psutil

from runtimes.memory import cpu_memory_free, cpu_memory_total

MEBI = 1 << 20


def group(
    path: Path, limit_file: str, usage_file: str, reclaimable: str, limit: str, usage: int, cache: int
) -> None:
    path.mkdir(parents=True)
    (path / limit_file).write_text(f"{limit}\n")
    (path / usage_file).write_text(f"{usage}\n")
    (path / "memory.stat").write_text(f"anon 17\n{reclaimable} {cache}\n")


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def test_a_version_2_group_limits_what_is_free_and_its_idle_page_cache_does_not_count(tmp_path: Path) -> None:
    group(tmp_path / "user" / "job", *V2, str(64 * MEBI), 40 * MEBI, 8 * MEBI)
    (tmp_path / "proc").write_text("0::/user/job\n")
    assert cpu_memory_free(tmp_path / "proc", tmp_path) == 32 * MEBI


def test_the_tightest_parent_counts(tmp_path: Path) -> None:
    group(tmp_path / "user", *V2, str(48 * MEBI), 40 * MEBI, 0)
    group(tmp_path / "user" / "job", *V2, "max", 4 * MEBI, 0)
    (tmp_path / "proc").write_text("0::/user/job\n")
    assert cpu_memory_free(tmp_path / "proc", tmp_path) == 8 * MEBI
    assert cpu_memory_total(tmp_path / "proc", tmp_path) == 48 * MEBI


def test_a_version_1_group_seen_from_inside_its_container_counts(tmp_path: Path) -> None:
    group(tmp_path / "memory", *V1, str(32 * MEBI), 30 * MEBI, MEBI)
    (tmp_path / "proc").write_text("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n")
    assert cpu_memory_free(tmp_path / "proc", tmp_path) == 3 * MEBI


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    group(tmp_path / "memory", *V1, str(MEBI), 2 * MEBI, 0)
    (tmp_path / "proc").write_text("4:memory:/\n")
    assert cpu_memory_free(tmp_path / "proc", tmp_path) == 0


def test_without_groups_the_system_counts(tmp_path: Path) -> None:
    assert 0 < cpu_memory_free(tmp_path / "absent", tmp_path) <= psutil.virtual_memory().total
    assert cpu_memory_total(tmp_path / "absent", tmp_path) == psutil.virtual_memory().total
