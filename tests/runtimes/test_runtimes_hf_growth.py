"""A block that grows, shrinks and moves: what both blocks hold stays in its memory, the rest is read or freed."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from model_catalogue import LAYERS, config_of, make_checkpoint
from runtimes_ring import GENEROUS, TALE, Ring, ignore

from runtimes.base import BlockLimits, CheckpointError, FrameInput, LoadProgress, MemoryExceeded, ModelSource
from runtimes.hf import HfRuntime
from runtimes.hf.takeover import weights_held

LIMITS = BlockLimits(memory=1 << 30, context=64, sessions=2)


def held_by(runtime: HfRuntime) -> dict[str, torch.Tensor]:
    loaded: Any = runtime._loaded
    return weights_held(loaded.block.skeleton.model) if loaded else {}


def fresh(source: ModelSource, lo: int, hi: int, limits: BlockLimits) -> HfRuntime:
    runtime = HfRuntime()
    runtime.load(source, lo, hi, limits, ignore)
    return runtime


def assert_moves(source: ModelSource, blocks: list[tuple[int, int]], limits: BlockLimits) -> None:
    runtime = fresh(source, *blocks[0], limits)
    for lo, hi in blocks[1:]:
        places = {name: tensor.data_ptr() for name, tensor in held_by(runtime).items()}
        watched = {name: weakref.ref(tensor) for name, tensor in held_by(runtime).items()}
        runtime.open_session("s")
        inventory = runtime.load(source, lo, hi, limits, ignore)
        assert runtime.sessions() == {}, "a change ends all sessions"

        after, wanted = held_by(runtime), fresh(source, lo, hi, limits)
        assert inventory.tensors == wanted.inventory().tensors
        assert inventory.weight_bytes == inventory.memory.weights
        assert after.keys() == held_by(wanted).keys()
        for name, tensor in held_by(wanted).items():
            assert torch.equal(after[name], tensor), name
            assert places.get(name) in (None, after[name].data_ptr()), f"{name} was copied"
        new = {t.data_ptr(): t.nbytes for t in after.values() if t.data_ptr() not in places.values()}
        assert inventory.bytes_read == sum(new.values())
        still = {id(tensor) for tensor in after.values()}
        assert [name for name, ref in watched.items() if ref() is not None and id(ref()) not in still] == []


MOVES = [(2, 4), (1, 5), (0, 6), (0, 3), (1, 3), (3, 6)]


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_only_what_is_new_is_read_and_only_what_is_old_is_freed(name: str, tmp_path: Path) -> None:
    assert LAYERS == 6
    assert_moves(make_checkpoint(config_of(name), tmp_path), MOVES, LIMITS)


def test_the_bundled_model_grows_at_both_ends() -> None:
    assert_moves(TALE, [(3, 5), (3, 8), (0, 8), (0, 2), (6, 8)], GENEROUS)


def test_a_layers_bytes_are_all_that_is_read_for_it() -> None:
    shape = HfRuntime().shape(TALE)
    runtime = fresh(TALE, 2, 4, GENEROUS)
    assert runtime.load(TALE, 2, 6, GENEROUS, ignore).bytes_read == sum(shape.layer_bytes[4:6])
    assert runtime.load(TALE, 3, 5, GENEROUS, ignore).bytes_read == 0


def test_weights_that_layers_share_are_found_under_any_of_their_names(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("zamba2"), tmp_path)
    runtime = fresh(source, 4, 5, LIMITS)
    for lo, hi in ((1, 5), (0, LAYERS), (4, 5)):
        known = {tensor.data_ptr() for tensor in held_by(runtime).values()}
        inventory = runtime.load(source, lo, hi, LIMITS, ignore)
        new = {t.data_ptr(): t.nbytes for t in held_by(runtime).values() if t.data_ptr() not in known}
        assert inventory.bytes_read <= sum(new.values())
        for name, tensor in held_by(fresh(source, lo, hi, LIMITS)).items():
            assert torch.equal(held_by(runtime)[name], tensor), name


def test_a_ring_writes_the_same_after_its_blocks_have_moved() -> None:
    prompt = [0, *range(5, 25)]
    ring = Ring(HfRuntime, TALE, (0, 3, 8))
    ring.open("s")
    expected = ring.generate("s", prompt, 12)
    for border in (5, 2, 7, 3):
        ring.stages[0].load(TALE, 0, border, GENEROUS, ignore)
        ring.stages[1].load(TALE, border, 8, GENEROUS, ignore)
        ring.open("s")
        assert ring.generate("s", prompt, 12) == expected


def test_progress_counts_what_was_kept() -> None:
    runtime = fresh(TALE, 0, 4, GENEROUS)
    seen: list[LoadProgress] = []
    inventory = runtime.load(TALE, 0, 6, GENEROUS, seen.append)
    assert seen[0].done > inventory.weight_bytes / 2
    assert seen[-1].done == seen[-1].total == inventory.weight_bytes


class Stopped(BaseException):
    """What a cancelled load is ended by."""


def stop_half_way(step: LoadProgress) -> None:
    if step.done > 0.9 * step.total:
        raise Stopped


FRAME = FrameInput("s", 0, (0, 5, 6), None)


def test_a_move_that_fails_leaves_the_old_block_where_both_fit() -> None:
    runtime = fresh(TALE, 0, 4, GENEROUS)
    runtime.open_session("s")
    expected, held = runtime.forward([FRAME]), runtime.inventory()
    pointers = {name: tensor.data_ptr() for name, tensor in held_by(runtime).items()}
    with pytest.raises(Stopped):
        runtime.load(TALE, 0, 8, GENEROUS, stop_half_way)
    assert runtime.inventory() == held
    assert runtime.sessions() == {}
    assert {name: tensor.data_ptr() for name, tensor in held_by(runtime).items()} == pointers
    runtime.open_session("s")
    assert runtime.forward([FRAME]) == expected


@pytest.mark.parametrize("block", [(1, 5), (4, 8)], ids=["too large beside the old one", "disjoint"])
def test_a_move_that_fails_leaves_nothing_where_the_old_block_had_to_go_first(block: tuple[int, int]) -> None:
    runtime = fresh(TALE, 0, 4, GENEROUS)
    tight = runtime.shape(TALE).block_memory(*block, context=256, sessions=4).total
    limits = GENEROUS if block == (4, 8) else BlockLimits(tight, 256, 4)
    with pytest.raises(Stopped):
        runtime.load(TALE, *block, limits, stop_half_way)
    assert runtime.inventory().weight_bytes == 0
    assert runtime.load(TALE, *block, limits, ignore).layers == tuple(range(*block))


def test_a_load_that_is_refused_changes_nothing() -> None:
    runtime = fresh(TALE, 0, 4, GENEROUS)
    runtime.open_session("s")
    expected, held = runtime.forward([FRAME]), runtime.inventory()
    with pytest.raises(MemoryExceeded):
        runtime.load(TALE, 0, 8, BlockLimits(1 << 20, 256, 4), ignore)
    assert runtime.inventory() == held
    assert runtime.sessions() == {"s": 3}
    assert runtime.forward([FRAME]) == expected


def test_another_models_weights_are_not_taken_over(tmp_path: Path) -> None:
    runtime = fresh(make_checkpoint(config_of("qwen3"), tmp_path / "one"), 0, 4, LIMITS)
    other = make_checkpoint(config_of("qwen3"), tmp_path / "two")
    inventory = runtime.load(other, 0, 4, LIMITS, ignore)
    assert inventory.bytes_read == fresh(other, 0, 4, LIMITS).inventory().bytes_read > 0


def test_a_checkpoint_that_has_been_damaged_since_leaves_the_old_block(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("gpt2"), tmp_path)
    runtime = fresh(source, 0, 2, LIMITS)
    held = runtime.inventory()
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:64])
    with pytest.raises(CheckpointError, match="safetensors"):
        runtime.load(source, 0, 4, LIMITS, ignore)
    assert runtime.inventory() == held
    assert runtime.load(source, 1, 2, LIMITS, ignore).bytes_read == 0, "what is held needs no file"
