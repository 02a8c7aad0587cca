from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes_ring import GENEROUS, Ring, ignore

from runtimes.base import (
    BlockLimits,
    CheckpointError,
    ContextExceeded,
    FrameInput,
    FrameMalformed,
    FrameOutOfOrder,
    LoadProgress,
    MemoryExceeded,
    ModelSource,
    NothingLoaded,
    RuntimeFailure,
    SessionUnknown,
    Tensor,
    UnsupportedModel,
)
from runtimes.reference import ReferenceRuntime, generate

CONFIG: dict[str, Any] = {
    "arch": "ReferenceForCausalLM",
    "layers": 5,
    "vocab": 97,
    "hidden": 6,
    "context": 64,
    "seed": "tests",
}
LIMITS = BlockLimits(memory=1 << 24, context=64, sessions=2)


def model_in(path: Path, **changes: Any) -> ModelSource:
    fields = CONFIG | changes
    (path / "reference.json").write_text(json.dumps(fields))
    return ModelSource("counting", path, 5, "ReferenceForCausalLM")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return model_in(tmp_path_factory.mktemp("reference"))


@cache
def ring_of(path: Path, cuts: tuple[int, ...]) -> Ring:
    ring = Ring(ReferenceRuntime, ModelSource("counting", path, 5, "ReferenceForCausalLM"), cuts, LIMITS)
    ring.open("s")
    return ring


cuts = st.sets(st.integers(1, 4)).map(lambda inner: (0, *sorted(inner), 5))
prompts = st.lists(st.integers(0, 96), min_size=1, max_size=24)
# (width of the frame, then a wrong guess of so many tokens, then so many tokens back)
moves = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(0, 12)), max_size=12)


@settings(deadline=None, max_examples=60)
@given(cuts=cuts, prompt=prompts, moves=moves)
def test_any_split_any_frames_and_any_rewinds_give_the_whole_models_tokens(
    source: ModelSource, cuts: tuple[int, ...], prompt: list[int], moves: list[tuple[int, int, int]]
) -> None:
    expected = generate(source.path, prompt, 6)
    text = (prompt + expected)[:-1]
    ring = ring_of(source.path, cuts)
    position, choices = 0, {}
    for width, wrong, back in [*moves, (len(text), 0, 0)]:
        for offset, token in enumerate(ring.send("s", position, text[position : position + width])):
            choices[position + offset] = token
        position = min(position + width, len(text) - 1)
        if wrong:
            ring.send("s", position, [3, 1, 4][:wrong])
        position = max(position - back, 0)
    assert [choices[index] for index in range(len(prompt) - 1, len(text))] == expected


@settings(deadline=None, max_examples=30)
@given(prompt=prompts, data=st.data())
def test_every_token_and_its_position_count(
    source: ModelSource, prompt: list[int], data: st.DataObject
) -> None:
    ring = ring_of(source.path, (0, 5))
    before = [ring.generate("s", prompt, 4)]
    index = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:index], (prompt[index] + 1) % 97, *prompt[index + 1 :]]
    assert ring.generate("s", other, 4) not in before
    assert ring.generate("s", [prompt[0], *prompt], 4) not in before


def test_a_swapped_or_skipped_layer_changes_the_tokens(source: ModelSource) -> None:
    first, second, third = (ReferenceRuntime() for _ in range(3))
    first.load(source, 0, 2, LIMITS, ignore)
    second.load(source, 2, 3, LIMITS, ignore)
    third.load(source, 3, 5, LIMITS, ignore)
    for stage in (first, second, third):
        stage.open_session("s")
    [head] = first.forward([FrameInput("s", 0, (1, 2, 3), None)])
    [skipping] = third.forward([FrameInput("s", 0, None, head.activation)])
    [middle] = second.forward([FrameInput("s", 0, None, head.activation)])
    [honest] = third.forward([FrameInput("s", 0, None, middle.activation)])
    assert honest.tokens != skipping.tokens
    assert honest.tokens is not None
    assert honest.tokens[-1:] == tuple(generate(source.path, [1, 2, 3], 1))


def test_the_inventory_is_what_was_estimated(source: ModelSource) -> None:
    ring = Ring(ReferenceRuntime, source, (0, 2, 3, 5), LIMITS)
    for (lo, hi), inventory in zip(pairwise((0, 2, 3, 5)), ring.inventories, strict=True):
        assert inventory.layers == tuple(range(lo, hi))
        assert inventory.weight_bytes == inventory.memory.weights == inventory.bytes_read


def test_progress_grows_to_the_total(source: ModelSource) -> None:
    seen: list[LoadProgress] = []
    inventory = ReferenceRuntime().load(source, 0, 5, LIMITS, seen.append)
    assert [step.done for step in seen] == sorted(step.done for step in seen)
    assert seen[-1].done == seen[-1].total == inventory.weight_bytes


def test_a_block_over_the_limit_is_refused_with_the_largest_that_fits(source: ModelSource) -> None:
    runtime = ReferenceRuntime()
    need = runtime.shape(source).block_memory(0, 2, context=64, sessions=2).total
    with pytest.raises(MemoryExceeded, match=r"layers \[0, 4\).*fits is \[0, 2\)"):
        runtime.load(source, 0, 4, BlockLimits(need, 64, 2), ignore)
    assert runtime.inventory().model_id == ""
    assert runtime.load(source, 0, 2, BlockLimits(need, 64, 2), ignore).memory.total == need


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (FrameInput("nobody", 0, (1,), None), SessionUnknown),
        (FrameInput("s", 2, (1,), None), FrameOutOfOrder),
        (FrameInput("s", -1, (1,), None), FrameMalformed),
        (FrameInput("s", 0, (1,) * 65, None), ContextExceeded),
        (FrameInput("s", 0, (97,), None), FrameMalformed),
        (FrameInput("s", 0, (), None), FrameMalformed),
        (FrameInput("s", 0, None, None), FrameMalformed),
    ],
)
def test_a_bad_frame_is_refused_by_name_and_nothing_is_computed(
    source: ModelSource, frame: FrameInput, error: type[RuntimeFailure]
) -> None:
    runtime = ReferenceRuntime()
    runtime.load(source, 0, 5, LIMITS, ignore)
    runtime.open_session("s")
    with pytest.raises(error):
        runtime.forward([FrameInput("s", 0, (5,), None), frame])
    assert runtime.sessions() == {"s": 0}


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("float32", (1, 1, 6), bytes(24)),
        Tensor("int64", (1, 1, 5), bytes(40)),
        Tensor("int64", (1, 1, 6), bytes(40)),
        Tensor("int64", (6,), bytes(48)),
    ],
)
def test_an_activation_of_another_shape_is_refused(source: ModelSource, tensor: Tensor) -> None:
    runtime = ReferenceRuntime()
    runtime.load(source, 2, 5, LIMITS, ignore)
    runtime.open_session("s")
    with pytest.raises(FrameMalformed):
        runtime.forward([FrameInput("s", 0, None, (tensor,))])


def test_sessions_are_bounded_kept_apart_and_freed(source: ModelSource) -> None:
    ring = Ring(ReferenceRuntime, source, (0, 3, 5), LIMITS)
    ring.open("a", "b", "a")
    with pytest.raises(MemoryExceeded, match="'c'"):
        ring.open("c")
    expected = [generate(source.path, prompt, 1)[0] for prompt in ([7, 8], [9])]
    assert [ring.send("a", 0, [7, 8])[-1], ring.send("b", 0, [9])[-1]] == expected
    ring.stages[0].close_session("a")
    ring.stages[0].close_session("never opened")
    assert ring.stages[0].sessions() == {"b": 1}


def test_without_a_block_there_are_no_sessions() -> None:
    runtime = ReferenceRuntime()
    with pytest.raises(NothingLoaded):
        runtime.open_session("s")
    with pytest.raises(SessionUnknown):
        runtime.forward([FrameInput("s", 0, (1,), None)])


def test_a_model_that_is_not_the_registrys_is_refused(source: ModelSource, tmp_path: Path) -> None:
    runtime = ReferenceRuntime()
    with pytest.raises(CheckpointError, match="5 layers, the registry says 6"):
        runtime.shape(ModelSource("counting", source.path, 6, "ReferenceForCausalLM"))
    with pytest.raises(CheckpointError, match="LlamaForCausalLM"):
        runtime.shape(ModelSource("counting", source.path, 5, "LlamaForCausalLM"))
    with pytest.raises(UnsupportedModel, match=r"reference\.json does not exist"):
        runtime.shape(ModelSource("counting", tmp_path, 5, "ReferenceForCausalLM"))
    with pytest.raises(ContextExceeded, match="64 positions"):
        runtime.load(source, 0, 5, GENEROUS, ignore)


@pytest.mark.parametrize(("name", "value"), [("layers", 0), ("vocab", "many"), ("hidden", True), ("seed", 4)])
def test_a_broken_field_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=name):
        ReferenceRuntime().shape(model_in(tmp_path, **{name: value}))


def test_a_probe_measures_every_width_once(source: ModelSource) -> None:
    probe = ReferenceRuntime().probe(source, [4, 1, 4])
    assert [width for width, _ in probe.layer_ns] == [1, 4]
    assert min([probe.tail_ns, *(ns for _, ns in probe.layer_ns)]) > 0


def test_a_dtype_that_it_cannot_compute_in_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="bfloat16"):
        ReferenceRuntime(dtype="bfloat16")
