"""What cannot be imported is refused by name, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_models import TinyGguf, tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtimes_ring import TALE_PATH, ignore
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from runtimes.base import CheckpointError, RuntimeFailure, UnsupportedModel
from runtimes.importer import import_model
from runtimes.importer.checkpoint_writer import ImportTargetUnusable
from runtimes.importer.gguf_config import config_of
from runtimes.importer.gguf_file import GgufFile
from runtimes.importer.gguf_tensors import outgoing_tensors

Change = Callable[[TinyGguf], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF that can be imported."""
    return TinyGguf(tiny_model("llama")).write(
        tmp_path_factory.mktemp("gguf") / "tiny.gguf", quantization="Q8_0"
    )


def refusal(kind: type[RuntimeFailure], source: Path, target: Path, **options: Any) -> str:
    """Import in vain; returns what is said."""
    target.parent.mkdir(exist_ok=True)
    before = set(target.parent.iterdir())
    with pytest.raises(kind) as refused:
        import_model(source, target, model_id="tiny", shard_bytes=1 << 20, progress=ignore, **options)
    assert type(refused.value) is kind
    assert set(target.parent.iterdir()) == before, "something was left behind"
    return str(refused.value)


def changed(key: str, value: Any) -> Change:
    return lambda tiny: tiny.metadata.update({key: value})


def dropped(key: str) -> Change:
    return lambda tiny: tiny.metadata.pop(key)


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (dropped("llama.block_count"), CheckpointError, "lacks the metadata llama.block_count"),
        (dropped("tokenizer.ggml.merges"), CheckpointError, "tokenizer.ggml.merges"),
        (dropped("tokenizer.ggml.bos_token_id"), CheckpointError, "bos_token_id"),
        (changed("tokenizer.ggml.eos_token_id", 4000), CheckpointError, "eos_token_id is 4000"),
        (changed("tokenizer.ggml.model", "llama"), UnsupportedModel, "'llama'"),
        (changed("tokenizer.ggml.pre", "mystery"), UnsupportedModel, "'mystery'"),
        (changed("llama.expert_count", 8), UnsupportedModel, "llama.expert_count = 8"),
        (changed("llama.attention.sliding_window", 64), UnsupportedModel, "sliding_window = 64"),
        (
            changed("llama.feed_forward_length", [128, 64, 128]),
            UnsupportedModel,
            "differs from layer to layer",
        ),
        (changed("llama.rope.dimension_count", 8), UnsupportedModel, "rotary embeddings over 8"),
        (changed("llama.rope.scaling.type", "longrope"), UnsupportedModel, "'longrope'"),
        (changed("llama.embedding_length", 0), UnsupportedModel, "embedding_length = 0"),
        (changed("llama.embedding_length", 96), CheckpointError, "has shape"),
        (changed("llama.block_count", 4), CheckpointError, "lacks tensor blk.3."),
        (changed("llama.block_count", 2), UnsupportedModel, "no place for tensor blk.2."),
        (changed("llama.block_count", 1 << 31), CheckpointError, "block_count"),
        (changed("llama.attention.head_count", 3), CheckpointError, "head"),
        (
            lambda tiny: tiny.tensors.pop("blk.1.attn_q.weight"),
            CheckpointError,
            "lacks tensor blk.1.attn_q.weight",
        ),
        (
            lambda tiny: tiny.tensors.pop("token_embd.weight"),
            CheckpointError,
            "lacks tensor token_embd.weight",
        ),
        (
            lambda tiny: tiny.tensors.update({"rope_freqs.weight": np.linspace(1, 7, 8, dtype=np.float32)}),
            UnsupportedModel,
            "not those of Llama 3",
        ),
        (
            lambda tiny: tiny.tensors.update({"blk.0.attn_sinks.weight": np.ones(4, np.float32)}),
            UnsupportedModel,
            "no place for tensor blk.0.attn_sinks.weight",
        ),
    ],
)
def test_a_gguf_that_does_not_hold_what_we_know_is_refused(
    change: Change, kind: type[RuntimeFailure], told: str, tmp_path: Path
) -> None:
    tiny = TinyGguf(tiny_model("llama"))
    change(tiny)
    assert told in refusal(kind, tiny.write(tmp_path / "tiny.gguf"), tmp_path / "to" / "out")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = TinyGguf(tiny_model("llama")).write(tmp_path / "tiny.gguf", architecture="gemma2")
    told = refusal(UnsupportedModel, path, tmp_path / "to" / "out")
    assert "'gemma2'" in told
    assert "qwen3moe" in told


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    assert "no GGUF file" in refusal(CheckpointError, tmp_path / "text.gguf", tmp_path / "to" / "out")


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.1, 0.9, 0.999])
def test_a_truncated_gguf_is_refused(share: float, whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    (tmp_path / "half.gguf").write_bytes(data[: max(4, int(len(data) * share))])
    told = refusal(CheckpointError, tmp_path / "half.gguf", tmp_path / "to" / "out")
    assert "truncated or broken" in told


def test_an_unknown_quantization_is_refused_by_its_number(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    at = data.index(b"blk.1.ffn_down.weight") + len(b"blk.1.ffn_down.weight") + 4 + 2 * 8
    assert data[at] == 8  # Q8_0
    (tmp_path / "new.gguf").write_bytes(data[:at] + bytes([199]) + data[at + 1 :])
    assert "199" in refusal(UnsupportedModel, tmp_path / "new.gguf", tmp_path / "to" / "out")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_bytes_are_a_named_failure_or_harmless(
    data: st.DataObject, whole: Path, scratch: Path
) -> None:
    content = bytearray(whole.read_bytes())
    names = (b"tokenizer.ggml.tokens", b"general.alignment", b"llama.", b"blk.", b"token_embd", b"GGUF")
    near = data.draw(st.sampled_from([name for name in names if name in content]))
    start = data.draw(st.integers(0, 30)) + bytes(content).index(near)
    for offset, value in data.draw(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4)):
        content[start + offset] = value
    path = scratch / "broken.gguf"
    path.write_bytes(content)
    with suppress(RuntimeFailure):  # whatever else it raises fails the test
        file = GgufFile(path)
        outgoing_tensors(file, config_of(file, torch.float32))


def test_parts_must_be_complete_and_begin_with_the_first(tmp_path: Path) -> None:
    first = TinyGguf(tiny_model("llama")).write(tmp_path / "tiny.gguf", parts=9)
    second = first.with_name(first.name.replace("-00001-", "-00002-"))
    assert "not the first part" in refusal(CheckpointError, second, tmp_path / "to" / "out")
    second.unlink()
    assert second.name in refusal(CheckpointError, first, tmp_path / "to" / "out")


def test_several_models_in_a_directory_must_be_told_apart(whole: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(whole, tmp_path / name)
    assert "several GGUF files (a.gguf, b.gguf)" in refusal(
        CheckpointError, tmp_path, tmp_path / "to" / "out"
    )


def test_pickles_are_refused(tmp_path: Path) -> None:
    shutil.copy(TALE_PATH / "config.json", tmp_path)
    torch.save({"weight": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(UnsupportedModel, tmp_path, tmp_path / "to" / "out")


def test_a_file_of_a_checkpoint_is_not_the_checkpoint(tmp_path: Path) -> None:
    told = refusal(CheckpointError, TALE_PATH / "model.safetensors", tmp_path / "to" / "out")
    assert "give the directory" in told


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "absent" in refusal(CheckpointError, tmp_path / "absent", tmp_path / "to" / "out")
    assert "config.json" in refusal(CheckpointError, tmp_path, tmp_path / "to" / "out")


def tale_copy(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    path.mkdir()
    for file in TALE_PATH.glob("*.json"):
        shutil.copy(file, path)
    tensors = load_file(TALE_PATH / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_a_directory_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    name = "model.layers.5.mlp.up_proj.weight"
    source = tale_copy(tmp_path / "in", lambda tensors: tensors.pop(name))
    assert name in refusal(CheckpointError, source, tmp_path / "to" / "out")


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    source = tale_copy(tmp_path / "in", lambda tensors: None)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer_config.json").unlink()
    assert "tokenizer.json" in refusal(CheckpointError, source, tmp_path / "to" / "out")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    source = tale_copy(tmp_path / "in", lambda tensors: None)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    extra = {**tokenizer["added_tokens"][0], "id": 2048, "content": "<more>"}
    tokenizer["added_tokens"].append(extra)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "2049 ids" in refusal(CheckpointError, source, tmp_path / "to" / "out")


def test_the_dtype_of_a_directory_cannot_be_chosen(tmp_path: Path) -> None:
    assert "--dtype" in refusal(UnsupportedModel, TALE_PATH, tmp_path / "to" / "out", dtype="float32")


def test_an_existing_target_is_left_alone(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").touch()
    assert "exists already" in refusal(ImportTargetUnusable, whole, target)
    assert (target / "precious").exists()


def test_a_disk_without_room_is_named_before_anything_is_read(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr("runtimes.importer.checkpoint_writer.shutil.disk_usage", lambda _: usage)
    assert "100,000 bytes free" in refusal(ImportTargetUnusable, whole, tmp_path / "to" / "out")


def test_a_disk_that_fills_up_meanwhile_is_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("runtimes.importer.checkpoint_writer.save_file", full)
    assert "No space left" in refusal(ImportTargetUnusable, whole, tmp_path / "to" / "out")


def test_without_the_gguf_package_it_is_said_what_to_install(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("runtimes.importer.gguf")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "swarmd[import]" in refusal(RuntimeFailure, whole, tmp_path / "to" / "out")
