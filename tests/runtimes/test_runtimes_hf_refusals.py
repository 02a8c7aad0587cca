"""Everything that the Hugging Face runtime refuses, by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_catalogue import config_of, make_checkpoint
from runtimes_ring import GENEROUS, TALE, TALE_PATH, ignore
from safetensors.torch import load_file, save_file

from runtimes.base import (
    BlockLimits,
    CheckpointError,
    ContextExceeded,
    FrameInput,
    FrameMalformed,
    FrameOutOfOrder,
    MemoryExceeded,
    ModelSource,
    NothingLoaded,
    RuntimeFailure,
    SessionUnknown,
    Tensor,
    UnsupportedModel,
)
from runtimes.hf import HfRuntime
from runtimes.hf.device import out_of_memory

Change = Callable[[dict[str, torch.Tensor]], object]
NORM = "model.layers.5.input_layernorm.weight"
FOREIGN = "model.layers.1.input_layernorm.weight"


def damaged(path: Path, change: Change) -> ModelSource:
    tensors = load_file(TALE_PATH / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    shutil.copy(TALE_PATH / "config.json", path)
    return ModelSource("tale", path, 8, "LlamaForCausalLM")


def configured(path: Path, **changes: Any) -> ModelSource:
    fields = json.loads((TALE_PATH / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(fields | changes))
    return ModelSource("tale", path, 8, "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop(NORM), "lacks tensor"),
        (lambda tensors: tensors.update({NORM: torch.ones(191)}), r"has shape \[191\].*\[192\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_tensor_and_file(
    tmp_path: Path, change: Change, problem: str
) -> None:
    runtime = HfRuntime()
    with pytest.raises(CheckpointError, match=problem) as refusal:
        runtime.load(damaged(tmp_path, change), 4, 6, GENEROUS, ignore)
    assert NORM in str(refusal.value)
    assert str(tmp_path / "model.safetensors") in str(refusal.value)
    assert runtime.inventory().weight_bytes == 0


def test_what_is_wrong_with_foreign_layers_does_not_matter(tmp_path: Path) -> None:
    source = damaged(tmp_path, lambda tensors: tensors.update({FOREIGN: torch.ones(3)}))
    assert HfRuntime().load(source, 4, 6, GENEROUS, ignore).layers == (4, 5)


def test_the_files_of_foreign_layers_need_not_be_there(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("gpt2"), tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    own = {file for name, file in index.items() if ".h.1." in name}
    for file in set(index.values()) - own:
        (tmp_path / file).unlink()
    limits = BlockLimits(1 << 30, 64, 1)
    assert HfRuntime().load(source, 1, 2, limits, ignore).layers == (1,)
    with pytest.raises(CheckpointError, match=r"model-\d+-of-\d+\.safetensors"):
        HfRuntime().load(source, 2, 3, limits, ignore)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    source = damaged(tmp_path, lambda tensors: None)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        HfRuntime().load(source, 0, 8, GENEROUS, ignore)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    source = configured(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors"):
        HfRuntime().load(source, 0, 8, GENEROUS, ignore)


def test_an_index_cannot_point_outside_its_directory(tmp_path: Path) -> None:
    source = configured(tmp_path)
    index = {"weight_map": {NORM: "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        HfRuntime().load(source, 0, 8, GENEROUS, ignore)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "nobody_knows"},
        {"model_type": "remote", "auto_map": {"AutoConfig": "code.Config"}},
        {"model_type": "clip"},
    ],
)
def test_an_architecture_that_transformers_does_not_know_is_unsupported(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="transformers"):
        HfRuntime().shape(ModelSource("unknown", tmp_path, 8, "LlamaForCausalLM"))


def test_a_missing_or_broken_configuration_is_named(tmp_path: Path) -> None:
    source = ModelSource("tale", tmp_path, 8, "LlamaForCausalLM")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        HfRuntime().shape(source)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        HfRuntime().shape(source)


def test_a_model_that_is_not_the_registrys_is_refused() -> None:
    runtime = HfRuntime()
    with pytest.raises(CheckpointError, match="8 layers, the registry says 9"):
        runtime.shape(ModelSource("tale", TALE_PATH, 9, "LlamaForCausalLM"))
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*QwenForCausalLM"):
        runtime.shape(ModelSource("tale", TALE_PATH, 8, "QwenForCausalLM"))


def test_the_limits_are_kept() -> None:
    runtime = HfRuntime()
    shape = runtime.shape(TALE)
    need = shape.block_memory(2, 4, context=64, sessions=1).total
    with pytest.raises(MemoryExceeded, match=rf"{need:,} bytes.*allowed are {need - 1:,}.*fits is \[2, 3\)"):
        runtime.load(TALE, 2, 4, BlockLimits(need - 1, 64, 1), ignore)
    with pytest.raises(CheckpointError, match=r"\[4, 9\)"):
        runtime.load(TALE, 4, 9, GENEROUS, ignore)
    with pytest.raises(ContextExceeded, match="1024 positions"):
        runtime.load(TALE, 2, 4, BlockLimits(1 << 30, 1025, 1), ignore)
    with pytest.raises(NothingLoaded):
        runtime.open_session("s")
    runtime.load(TALE, 2, 4, BlockLimits(need, 64, 1), ignore)
    runtime.open_session("s")
    with pytest.raises(MemoryExceeded, match="'t'"):
        runtime.open_session("t")


def test_a_cache_takes_what_was_estimated() -> None:
    runtime = HfRuntime()
    inventory = runtime.load(TALE, 2, 4, BlockLimits(1 << 30, 64, 1), ignore)
    block = runtime._loaded.block if runtime._loaded else None
    assert block is not None
    cache = block.new_cache(64)
    block.forward(None, torch.zeros(1, 3, 192, dtype=torch.bfloat16), 3, cache)
    held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None]
    assert sum(tensor.nbytes for tensor in held) == inventory.memory.kv


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (FrameInput("nobody", 0, (1,), None), SessionUnknown),
        (FrameInput("s", 4, (1,), None), FrameOutOfOrder),
        (FrameInput("s", 2, (1,) * 255, None), ContextExceeded),
        (FrameInput("s", 0, (2048,), None), FrameMalformed),
        (FrameInput("s", 0, (-1,), None), FrameMalformed),
        (FrameInput("s", 0, None, None), FrameMalformed),
    ],
)
def test_a_bad_frame_is_refused_before_any_is_computed(
    head: HfRuntime, frame: FrameInput, error: type[RuntimeFailure]
) -> None:
    with pytest.raises(error):
        head.forward([FrameInput("s", 0, (1, 2, 3), None), frame])
    assert head.sessions() == {"s": 0}


@pytest.mark.parametrize(
    "activation",
    [
        None,
        (),
        (None,),
        (Tensor("float32", (1, 2, 192), bytes(2 * 192 * 4)),),
        (Tensor("bfloat16", (1, 2, 191), bytes(2 * 191 * 2)),),
        (Tensor("bfloat16", (1, 2, 192), bytes(2 * 192)),),
        (Tensor("bfloat16", (192,), bytes(192 * 2)),),
        (Tensor("bfloat16", (1, 0, 192), b""),),
    ],
)
def test_an_activation_of_another_kind_is_refused(
    middle: HfRuntime, activation: tuple[Tensor | None, ...] | None
) -> None:
    with pytest.raises(FrameMalformed, match="'s'"):
        middle.forward([FrameInput("s", 0, None, activation)])


@pytest.fixture(scope="module")
def head() -> HfRuntime:
    return loaded(0, 1)


@pytest.fixture(scope="module")
def middle() -> HfRuntime:
    return loaded(1, 2)


def loaded(lo: int, hi: int) -> HfRuntime:
    runtime = HfRuntime()
    runtime.load(TALE, lo, hi, GENEROUS, ignore)
    runtime.open_session("s")
    return runtime


def test_a_frame_of_read_only_bytes_at_an_odd_offset_is_taken(middle: HfRuntime) -> None:
    message = memoryview(b"!" + bytes(2 * 192))
    [output] = middle.forward([FrameInput("s", 0, None, (Tensor("bfloat16", (1, 1, 192), message[1:]),))])
    assert output.activation is not None


def test_a_device_without_memory_is_named() -> None:
    with pytest.raises(MemoryExceeded, match="computing"), out_of_memory("computing"):
        torch.empty(1 << 60)
    with pytest.raises(RuntimeError, match="other"), out_of_memory("computing"):
        raise RuntimeError("something other")


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "quick"])
def test_a_dtype_that_cannot_be_served_is_refused(dtype: str) -> None:
    with pytest.raises(UnsupportedModel, match=dtype):
        HfRuntime(dtype=dtype).shape(TALE)
