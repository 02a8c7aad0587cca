from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from conf.schema import BUNDLED_PUBLISHER
from registry.models import (
    BUNDLED,
    SIZE_LIMIT,
    CheckpointNotFoundError,
    ModelUnknownError,
    Registry,
    RegistryError,
    checkpoint_path,
    load_registry,
    parse_registry,
)
from registry.signed import sign_document

KEY = SigningKey(bytes(range(32)))
PUBLIC = bytes(KEY.verify_key)
# Made once with the seed 00 01 … 1f, pretty-printed as a publisher with another tool may do.
GOLDEN = """{
  "schema": "shard-models/1",
  "version": 3,
  "models": [
    {"id": "m", "hfArch": "LlamaForCausalLM", "workerModel": "w", "enginePath": "/models/m", "layerCount": 2,
     "gbPerLayer": 1.5, "kvGbPerLayer": 0, "quant": "bf16", "adapter": "hf", "tokenizerId": "t", "futureKey": ["ü"]}
  ],
  "publisher_pubkey": "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
  "signature": "anOP3fBYBSxJejogGsy9KQQEZxkUHFd8vn+4S7vphAba0DQW4/R4tQon/QbZAe6WEH03h5x7OL1UC7545chUCQ=="
}
"""


def unsigned() -> dict[str, Any]:
    document = json.loads((BUNDLED / "models.src.json").read_text())
    assert isinstance(document, dict)
    return document


def signed(document: dict[str, Any]) -> bytes:
    return json.dumps(sign_document(document, KEY)).encode()


def refusal(data: bytes, pinned: list[bytes | str] | None = None) -> RegistryError:
    with pytest.raises(RegistryError) as caught:
        parse_registry(data, [PUBLIC] if pinned is None else pinned)
    assert caught.value.code == "registry_refused"
    assert "\n" not in str(caught.value)
    return caught.value


def bundled() -> Registry:
    return load_registry(None, [BUNDLED_PUBLISHER])


def test_the_bundled_registry_verifies_against_the_default_of_the_configuration() -> None:
    registry = bundled()
    assert registry.publisher == base64.b64decode(BUNDLED_PUBLISHER)
    assert [row.id for row in registry.rows] == ["tale", "gpt-oss-120b", "GLM-5.2", "MiniMax-M2.5"]
    assert [row.layer_count for row in registry.rows] == [8, 36, 78, 62]


def test_the_bundled_registry_says_what_its_source_says() -> None:
    said = json.loads((BUNDLED / "models.json").read_bytes())
    assert {
        key: value for key, value in said.items() if key not in ("publisher_pubkey", "signature")
    } == unsigned()


def test_the_row_of_the_bundled_model_fits_its_checkpoint() -> None:
    row = bundled().row("tale")
    path = checkpoint_path(row, None)
    config = json.loads((path / "config.json").read_text())
    assert config["architectures"] == [row.hf_arch]
    assert config["num_hidden_layers"] == row.layer_count
    with (path / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    layer = sum(
        tensor["data_offsets"][1] - tensor["data_offsets"][0]
        for name, tensor in header.items()
        if name.startswith("model.layers.0.")
    )
    assert row.gb_per_layer == layer / 1e9
    bf16_bytes, keys_and_values = 2, 2
    kv_token = keys_and_values * config["num_key_value_heads"] * config["head_dim"] * bf16_bytes
    assert row.defaults.draft_ctx == config["max_position_embeddings"]
    assert row.kv_gb_per_layer == kv_token * config["max_position_embeddings"] / 1e9


def test_no_single_byte_of_the_bundled_registry_can_be_changed() -> None:
    original = (BUNDLED / "models.json").read_bytes()
    assert len(original) > 1000
    # Every position with four values: neighbours in ASCII, the other case, white space, and an exponent's letter.
    for position, byte in enumerate(original):
        for value in {byte ^ 0x01, byte ^ 0x20, 0x20, 0x0A, 0x65, byte ^ 0x80} - {byte}:
            mutated = original[:position] + bytes([value]) + original[position + 1 :]
            with pytest.raises(RegistryError):
                parse_registry(mutated, [BUNDLED_PUBLISHER])


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_truncated_registry_is_refused(cut: int) -> None:
    assert refusal((BUNDLED / "models.json").read_bytes()[:-cut], [BUNDLED_PUBLISHER]).check == "json"


def test_a_golden_registry_of_the_format_is_read() -> None:
    registry = parse_registry(GOLDEN.encode(), [PUBLIC])
    row = registry.row("m")
    assert (registry.version, row.layer_count, row.gb_per_layer, row.kv_gb_per_layer) == (3, 2, 1.5, 0)
    assert (row.chat_template, row.weight_manifest_cid, row.defaults.k) == (None, "", None)


def test_keys_that_we_do_not_know_are_covered_by_the_signature() -> None:
    assert refusal(GOLDEN.replace("futureKey", "otherKey_").encode()).check == "signature"


@pytest.mark.parametrize("pinned", [[PUBLIC], [base64.b64encode(PUBLIC).decode()], [bytes(32), PUBLIC]])
def test_a_publisher_may_be_pinned_as_bytes_or_text(pinned: list[bytes | str]) -> None:
    assert parse_registry(GOLDEN.encode(), pinned).publisher == PUBLIC


@pytest.mark.parametrize("pinned", [[], [bytes(32)], [BUNDLED_PUBLISHER]])
def test_a_publisher_who_is_not_pinned_is_refused(pinned: list[bytes | str]) -> None:
    error = refusal(GOLDEN.encode(), pinned)
    assert error.check == "publisher_not_pinned"
    assert "registry.publishers" in str(error)


@pytest.mark.parametrize("pinned", [["abc"], [b"short"]])
def test_a_pin_that_is_no_key_is_named(pinned: list[bytes | str]) -> None:
    assert refusal(GOLDEN.encode(), pinned).check == "pinned_key"


def test_who_is_not_pinned_is_told_before_the_signature_is_looked_at() -> None:
    document = {**json.loads(GOLDEN), "publisher_pubkey": BUNDLED_PUBLISHER}
    assert refusal(json.dumps(document).encode()).check == "publisher_not_pinned"
    assert refusal(json.dumps(document).encode(), [BUNDLED_PUBLISHER]).check == "signature"


def test_a_registry_that_nobody_signed_is_refused() -> None:
    assert refusal(json.dumps(unsigned()).encode()).check == "publisher_not_pinned"
    document = sign_document(unsigned(), KEY)
    del document["signature"]
    assert refusal(json.dumps(document).encode()).check == "signature"


@pytest.mark.parametrize(
    ("data", "check", "text"),
    [
        (b" " * (SIZE_LIMIT + 1), "size", "larger"),
        (b"", "json", "JSON"),
        (b"\xff", "json", "utf-8"),
        (b'{"a":1,"a":1}', "json", "'a' stands twice"),
        (b'{"a":[{"b":1,"b":2}]}', "json", "'b' stands twice"),
        (b'{"a":NaN}', "json", "NaN"),
        (b"[" * 200_000, "json", "JSON"),
        (b"[]", "schema", "object"),
        (b"{}", "schema", "schema"),
        (b'{"schema":"shard-models/2"}', "schema", "shard-models/1"),
        (b'{"schema":"shard-models/1","version":true,"models":[1]}', "schema", "version"),
        (b'{"schema":"shard-models/1","version":1.0,"models":[1]}', "schema", "version"),
        (b'{"schema":"shard-models/1","version":1,"models":{}}', "schema", "models"),
        (b'{"schema":"shard-models/1","version":1,"models":[]}', "schema", "models"),
        (
            b'{"schema":"shard-models/1","version":1,"models":[1],"publisher_pubkey":[]}',
            "publisher_not_pinned",
            "pinned",
        ),
    ],
)
def test_a_document_that_is_no_registry_is_refused_before_any_signature(
    data: bytes, check: str, text: str
) -> None:
    error = refusal(data)
    assert error.check == check
    assert text in str(error)


ROW_ERRORS: list[tuple[str, str, object]] = [
    ("layer_count", "layerCount", 0),
    ("layer_count", "layerCount", True),
    ("layer_count", "layerCount", 8.0),
    ("layer_count", "layerCount", "8"),
    ("layer_size", "gbPerLayer", -0.5),
    ("layer_size", "gbPerLayer", True),
    ("layer_size", "kvGbPerLayer", "1"),
    ("adapter", "adapter", "magic"),
    ("row", "id", ""),
    ("row", "hfArch", 3),
    ("row", "chatTemplate", 3),
    ("row", "weightManifestCid", None),
    ("row", "defaults", None),
    ("row", "defaults", {"K": 1.5}),
    ("row", "defaults", {"depth": 0}),
]


@pytest.mark.parametrize(("check", "field", "value"), ROW_ERRORS)
def test_a_row_that_makes_no_sense_is_refused_though_signed(check: str, field: str, value: object) -> None:
    document = unsigned()
    document["models"][1][field] = value
    error = refusal(signed(document))
    assert error.check == check
    assert field in str(error)


@pytest.mark.parametrize(
    ("check", "field"),
    [("row", "id"), ("row", "quant"), ("layer_count", "layerCount"), ("adapter", "adapter")],
)
def test_a_row_that_lacks_a_field_is_refused(check: str, field: str) -> None:
    document = unsigned()
    del document["models"][0][field]
    error = refusal(signed(document))
    assert (error.check, f"`{field}`" in str(error)) == (check, True)


def test_our_own_spelling_of_a_field_does_not_count_in_a_document() -> None:
    document = unsigned()
    document["models"][0]["layer_count"] = document["models"][0].pop("layerCount")
    assert refusal(signed(document)).check == "layer_count"


def test_a_row_that_is_no_object_is_refused() -> None:
    assert refusal(signed({**unsigned(), "models": [7]})).check == "row"


def test_two_rows_of_one_id_are_refused() -> None:
    document = unsigned()
    document["models"].append({**document["models"][1], "layerCount": 1})
    error = refusal(signed(document))
    assert (error.check, "gpt-oss-120b" in str(error)) == ("duplicate_id", True)


def test_a_registry_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(RegistryError, match=str(path)) as caught:
            load_registry(path, [PUBLIC])
        assert caught.value.check == "unreadable"


def test_a_registry_file_of_ones_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(GOLDEN)
    assert load_registry(tmp_path / "r.json", [PUBLIC]).version == 3


@pytest.mark.parametrize(
    ("asked", "nearest"), [("tail", "tale"), ("glm-5.1", "GLM-5.2"), ("gpt-oss", "gpt-oss-120b")]
)
def test_an_unknown_model_is_answered_with_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(ModelUnknownError, match=f"did you mean '{nearest}'") as caught:
        bundled().row(asked)
    assert caught.value.code == "model_unknown"


def test_a_model_that_is_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(ModelUnknownError, match=r"It has tale, gpt-oss-120b, GLM-5\.2, MiniMax-M2\.5"):
        bundled().row("xyz")


def test_the_bundled_model_is_found_without_a_setting() -> None:
    assert (checkpoint_path(bundled().row("tale"), None) / "model.safetensors").is_file()


def test_the_users_directory_wins(tmp_path: Path) -> None:
    for model in ("tale", "GLM-5.2"):
        assert checkpoint_path(bundled().row(model), tmp_path) == tmp_path


def test_an_absolute_engine_path_is_taken(tmp_path: Path) -> None:
    document = unsigned()
    document["models"][0]["enginePath"] = str(tmp_path)
    row = parse_registry(signed(document), [PUBLIC]).row("tale")
    assert checkpoint_path(row, None) == tmp_path


def a_hub_id(tmp_path: Path) -> tuple[str, Path | None]:
    return "openai/gpt-oss-120b", None


def a_missing_engine_path(tmp_path: Path) -> tuple[str, Path | None]:
    return str(tmp_path / "none"), None


def a_missing_bundled_model(tmp_path: Path) -> tuple[str, Path | None]:
    return "bundled:none", None


def a_missing_override(tmp_path: Path) -> tuple[str, Path | None]:
    return "bundled:tale", tmp_path / "none"


@pytest.mark.parametrize(
    "case", [a_hub_id, a_missing_engine_path, a_missing_bundled_model, a_missing_override]
)
def test_a_missing_checkpoint_names_the_setting_to_change(
    case: Callable[[Path], tuple[str, Path | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_path, override = case(tmp_path)
    document = unsigned()
    document["models"][0]["enginePath"] = engine_path
    row = parse_registry(signed(document), [PUBLIC]).row("tale")
    (tmp_path / "openai" / "gpt-oss-120b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # a directory that happens to be called like a hub id is not taken
    with pytest.raises(CheckpointNotFoundError, match=r"`model\.path`") as caught:
        checkpoint_path(row, override)
    assert caught.value.code == "checkpoint_missing"
