"""Families that differ in kind: in three blocks against the whole, in float32. docs/models.md has them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_catalogue import DIFFERENT_IN_KIND, LAYERS, config_of, make_checkpoint
from model_check import LIMITS, check
from runtimes_ring import Ring, ignore
from transformers import AutoConfig

from runtimes.base import CheckpointError, FrameOutOfOrder, ModelSource, RuntimeFailure, UnsupportedModel
from runtimes.hf import HfRuntime


@pytest.mark.parametrize("name", DIFFERENT_IN_KIND)
def test_a_model_in_three_blocks_is_the_whole_in_any_frames(name: str, tmp_path: Path) -> None:
    outcome = check(make_checkpoint(config_of(name), tmp_path))
    assert outcome.same
    assert outcome.logit_difference <= 1e-3 * outcome.largest_logit
    assert outcome.read_share <= 1.02
    assert outcome.weights_share == (1.0, 1.0)
    assert outcome.cache_share[0] >= 0.999
    assert outcome.token_wise == (name == "jamba")


def test_a_model_that_would_come_out_wrong_is_refused_by_name(tmp_path: Path) -> None:
    config = config_of("llama")
    config.update({"quantization_config": {"quant_method": "fp8"}, "architectures": ["Any"]})
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        HfRuntime().load(ModelSource("llama", tmp_path, LAYERS, "Any"), 0, 1, LIMITS, ignore)


def test_a_model_with_a_cache_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("minimax"), tmp_path)
    with pytest.raises(UnsupportedModel, match="MiniMax"):
        HfRuntime().load(source, 0, 1, LIMITS, ignore)


def test_a_model_that_keeps_its_past_in_itself_is_refused_by_name(tmp_path: Path) -> None:
    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "head_dim": 16,
        "lru_width": 64,
    }
    config = AutoConfig.for_model("recurrent_gemma", vocab_size=384, num_hidden_layers=LAYERS, **small)
    with pytest.raises(
        UnsupportedModel, match=r"RecurrentGemmaForCausalLM (keeps its past in|does not run in pieces)"
    ):
        HfRuntime().load(make_checkpoint(config, tmp_path), 0, 1, LIMITS, ignore)


def test_layers_that_share_keys_and_values_stay_together(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("gemma4_text"), tmp_path)
    runtime = HfRuntime()
    shape = runtime.shape(source)
    assert shape.sealed_borders == (3, 4, 5)
    assert shape.block_around(4) == (2, 6)
    with pytest.raises(CheckpointError, match=r"\[0, 4\).*layers 3 and 4"):
        runtime.load(source, 0, 4, LIMITS, ignore)
    assert runtime.probe(source, [1]).layer_ns[0][0] == 1


@pytest.mark.parametrize(("name", "needs"), [("gemma4_text", True), ("deepseek_v4", True), ("qwen3", False)])
def test_who_needs_the_token_ids_is_seen_on_the_model(name: str, needs: bool, tmp_path: Path) -> None:
    runtime = HfRuntime()
    assert not runtime.needs_tokens_everywhere
    runtime.load(make_checkpoint(config_of(name), tmp_path), 0, 2, LIMITS, ignore)
    assert runtime.needs_tokens_everywhere == needs


def test_a_recurrent_state_goes_back_as_far_as_its_snapshots_and_says_when_it_cannot(tmp_path: Path) -> None:
    ring = Ring(HfRuntime, make_checkpoint(config_of("mamba2"), tmp_path), (0, LAYERS), LIMITS)
    ring.open("s")
    text = [5 + n for n in range(40)]
    ring.send("s", 0, text[:10])
    expected = [ring.send("s", n, [text[n]]) for n in range(10, 40)]
    with pytest.raises(FrameOutOfOrder, match=r"'s'.*position 15.*24, 25.*start at 0"):
        ring.send("s", 15, [1])
    assert ring.send("s", 30, text[30:31]) == expected[20], "a refused rewind has changed nothing"
    for n in range(31, 40):
        assert ring.send("s", n, [text[n]]) == expected[n - 10]
    ring.send("s", 0, text[:10])
    assert ring.send("s", 10, text[10:11]) == expected[0]


def test_a_frame_that_failed_half_way_leaves_no_trace_in_a_recurrent_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(HfRuntime, make_checkpoint(config_of("mamba2"), tmp_path), (0, LAYERS), LIMITS)
    ring.open("s", "t")
    text = list(range(5, 25))
    for session in "st":
        ring.send(session, 0, text)
    loaded: Any = ring.stages[0]._loaded  # type: ignore[attr-defined]
    layer = loaded.block.skeleton.layers[3]
    with monkeypatch.context() as broken:
        broken.setattr(layer, "forward", _out_of_memory)
        with pytest.raises(RuntimeFailure):
            ring.send("s", 20, [7])
    assert ring.send("s", 20, [9, 11, 13]) == ring.send("t", 20, [9, 11, 13])


def _out_of_memory(*args: Any, **kwargs: Any) -> None:
    raise MemoryError


def test_a_model_without_weights_can_be_sized_and_probed(tmp_path: Path) -> None:
    config = config_of("llama")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    source = ModelSource("sketch", tmp_path, LAYERS, "LlamaForCausalLM")
    runtime = HfRuntime(dtype="bfloat16")
    shape = runtime.shape(source)
    layer = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)
    assert shape.layer_bytes == (layer,) * LAYERS
    assert shape.kv_token_bytes == (2 * 2 * 2 * 16,) * LAYERS
    assert shape.state_bytes == (0,) * LAYERS
    assert (shape.head_bytes, shape.tail_bytes) == (2 * 384 * 64, 2 * 385 * 64)
    assert (shape.hidden_bytes, shape.replay_tokens, shape.sealed_borders) == (2 * 64, 0, ())
    assert runtime.probe(source, [2]).layer_ns[0][0] == 2


def test_a_tied_embedding_is_counted_once_where_both_ends_are_one_host(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("qwen3"), tmp_path)
    runtime = HfRuntime()
    shape = runtime.shape(source)
    assert shape.shared_end_bytes == shape.head_bytes == 4 * 384 * 64
    inventory = runtime.load(source, 0, LAYERS, LIMITS, ignore)
    assert inventory.weight_bytes == inventory.memory.weights


def test_weights_that_layers_share_are_read_under_the_first_layers_name(tmp_path: Path) -> None:
    source = make_checkpoint(config_of("zamba2"), tmp_path)
    runtime = HfRuntime()
    alone = runtime.load(source, 4, 5, LIMITS, ignore)
    assert alone.layers == (4,)
    assert alone.bytes_read <= alone.weight_bytes == alone.memory.weights
    names = [name for name in alone.tensors if "shared_transformer" in name]
    assert names
    assert all(name.startswith("model.layers.4.") for name in names)
