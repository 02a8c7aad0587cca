"""Import: what comes out computes and reads texts as what went in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_models import LAYERS, TinyGguf, tiny_model
from runtimes_ring import TALE_PATH
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtimes.base import LoadProgress
from runtimes.importer import Imported, import_model
from runtimes.tokenizer import Tokenizer as OurTokenizer

IDS = torch.tensor([[5, 900, 17, 2000, 33, 8, 1024, 77, 3, 450]])
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
TEXTS = [
    "Once upon a time, 12 foxes — it's 3:45!\n\n   x  2024",
    "  7 a1b22\tHELLO'LL we’ll é e\u0301  \n",
    "ünïcode 日本 <s>",
]


def imported(source: Path, target: Path, **options: Any) -> Imported:
    steps: list[LoadProgress] = []
    options = {"model_id": "tiny", "shard_bytes": 200_000, **options}
    made = import_model(source, target, progress=steps.append, **options)
    assert steps[-1].done == steps[-1].total > 0
    return made


def loaded(path: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype="auto", local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(IDS).logits
    return result


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
        ("llama", {"rope_parameters": LLAMA3, "hidden_size": 128, "head_dim": 32}),
        ("llama", {"rope_parameters": LINEAR}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"rope_parameters": YARN}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 24}),
        ("qwen3_moe", {"norm_topk_prob": True}),
    ],
)
def test_a_model_that_went_through_gguf_computes_the_same(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = tiny_model(family, **changes)
    tiny = TinyGguf(model)
    tiny.metadata[f"{tiny.arch}.attention.key_length"] = model.config.head_dim if family != "qwen2" else 16
    tiny.metadata[f"{tiny.arch}.attention.value_length"] = tiny.metadata[f"{tiny.arch}.attention.key_length"]
    rope = model.config.rope_parameters
    if rope["rope_type"] in ("yarn", "linear"):
        tiny.metadata[f"{tiny.arch}.rope.scaling.type"] = rope["rope_type"]
        tiny.metadata[f"{tiny.arch}.rope.scaling.factor"] = rope["factor"]
    if rope["rope_type"] == "yarn":
        tiny.metadata[f"{tiny.arch}.rope.scaling.original_context_length"] = rope[
            "original_max_position_embeddings"
        ]
    if rope["rope_type"] == "llama3":
        plain = 1 / rope["rope_theta"] ** (np.arange(0, 32, 2) / 32)
        tiny.tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(
            np.float32
        )
    made = imported(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "out")
    again = loaded(made.path)
    assert made.arch == type(model).__name__ == type(again).__name__
    assert (made.dtype, made.shape.layer_count) == ("float32", LAYERS)
    assert torch.equal(logits(again), logits(model))
    assert len(list(made.path.glob("model-*.safetensors"))) > 1


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_quantized_weights_come_out_as_the_gguf_package_reads_them(quantization: str, tmp_path: Path) -> None:
    tiny = TinyGguf(tiny_model("qwen2"))
    made = imported(tiny.write(tmp_path / "tiny.gguf", quantization=quantization), tmp_path / "out")
    dtype = torch.float16 if quantization == "F16" else torch.bfloat16
    assert made.dtype == str(dtype).removeprefix("torch.")
    kind = gguf.GGMLQuantizationType[quantization]
    wanted = gguf.dequantize(gguf.quantize(tiny.tensors["blk.1.ffn_down.weight"], kind), kind)
    found = loaded(made.path).model.layers[1].mlp.down_proj.weight
    assert torch.equal(found, torch.from_numpy(wanted.copy()).to(dtype))


def test_the_dtype_can_be_chosen(tmp_path: Path) -> None:
    path = TinyGguf(tiny_model("llama")).write(tmp_path / "tiny.gguf")
    assert imported(path, tmp_path / "out", dtype="bfloat16").dtype == "bfloat16"


def test_a_model_of_several_parts_is_one_model(tmp_path: Path) -> None:
    model = tiny_model("llama")
    first = TinyGguf(model).write(tmp_path / "tiny.gguf", parts=9)
    assert len(list(tmp_path.glob("*.gguf"))) > 2
    for source in (first, tmp_path):
        made = imported(source, tmp_path / f"out-{source.is_dir()}")
        assert torch.equal(logits(loaded(made.path)), logits(model))


def reference(cut: str) -> Tokenizer:
    """Tale's tokenizer with the way to cut texts that the original models' tokenizer.json files have."""
    tokenizer = Tokenizer.from_file(str(TALE_PATH / "tokenizer.json"))
    digits = r"\p{N}{1,3}" if cut == "llama-bpe" else r"\p{N}"
    split = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    if cut in ("llama-bpe", "qwen2"):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if cut == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if cut == "llama-bpe":
        tokenizer.model.ignore_merges = True
    return tokenizer


@pytest.mark.parametrize("cut", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_texts_become_the_same_ids(cut: str, tmp_path: Path) -> None:
    made = imported(TinyGguf(tiny_model("llama"), cut=cut).write(tmp_path / "tiny.gguf"), tmp_path / "out")
    ours, theirs = OurTokenizer(made.path), AutoTokenizer.from_pretrained(made.path, local_files_only=True)
    for text in TEXTS:
        wanted = reference(cut).encode(text).ids
        assert ours.encode_prompt(text) == wanted == theirs(text)["input_ids"]
        assert ours.decode(wanted) == reference(cut).decode(wanted)
    chat = [{"role": "user", "content": TEXTS[0]}]
    assert ours.encode_chat(chat) == OurTokenizer(TALE_PATH).encode_chat(chat) or cut != "gpt-2"
    assert made.has_chat_template
    assert made.eos_ids == tuple(sorted({ours.encode_prompt("</s>")[1], ours.encode_prompt("<|user|>")[1]}))


def test_a_directory_is_copied_into_shards_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    made = imported(TALE_PATH, tmp_path / "out", shard_bytes=1 << 20)
    assert torch.equal(logits(loaded(made.path)), logits(loaded(TALE_PATH)))
    index = json.loads((made.path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    for file in set(index["weight_map"].values()):
        with safe_open(made.path / file, "pt") as opened:
            assert {index["weight_map"][name] for name in opened.keys()} == {file}  # noqa: SIM118 - it is no dict
    assert OurTokenizer(made.path).eos_ids == OurTokenizer(TALE_PATH).eos_ids
    assert made.shape.layer_bytes == imported(made.path, tmp_path / "again").shape.layer_bytes


def test_only_one_shard_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer asks for a tensor only when its shard is due, and forgets the shard before."""
    sizes: list[int] = []

    def watched(tensors: dict[str, torch.Tensor], *args: Any, **named: Any) -> None:
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
        save_file(tensors, *args, **named)

    monkeypatch.setattr("runtimes.importer.checkpoint_writer.save_file", watched)
    imported(TALE_PATH, tmp_path / "out", shard_bytes=1 << 20)
    assert max(sizes) <= 1 << 20
    assert (
        sum(sizes) == sum(tensor.nbytes for tensor in loaded(TALE_PATH).state_dict().values()) - _tied_bytes()
    )


def _tied_bytes() -> int:
    model = loaded(TALE_PATH)
    return int(model.lm_head.weight.nbytes) if model.config.tie_word_embeddings else 0


def test_a_model_without_generation_config_gets_one(tmp_path: Path) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path / "in")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE_PATH / name, tmp_path / "in")
    (tmp_path / "in" / "generation_config.json").unlink()
    assert imported(tmp_path / "in", tmp_path / "out").eos_ids == (1,)
