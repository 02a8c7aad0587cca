"""The signed model registry (`shard-models/1`): which models may be served, and how.

    {"schema": "shard-models/1", "version": 1, "models": [row, …], "publisher_pubkey": base64, "signature": base64}

The signature covers canonical_bytes of all but itself. Keys that a row has beyond those of ModelRow are allowed and
covered too.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NoReturn

import pydantic
from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from registry.canonical import strict_base64
from registry.keys import PUBLIC_KEY_BYTES
from registry.signed import SignatureError, verify_document

SCHEMA = "shard-models/1"
SIZE_LIMIT = 4 * 1024 * 1024
KNOWN_ADAPTERS = ("generic-hf", "generic-vllm", "glm-nvfp4", "hf")
BUNDLED = Path(__file__).with_name("bundled")
_BUNDLED_PREFIX = "bundled:"
# Fields whose failure has a check of its own; any other is the check "row".
_CHECK_OF_FIELD = {
    "layerCount": "layer_count",
    "gbPerLayer": "layer_size",
    "kvGbPerLayer": "layer_size",
    "adapter": "adapter",
}

Text = Annotated[str, Strict(), Field(min_length=1, max_length=512)]
Count = Annotated[int, Strict(), Field(ge=1)]
Gigabytes = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]


class RegistryError(Exception):
    """The registry is not used. `check` names what failed; the text says what to do.

    check is one of: unreadable, size, json, schema, pinned_key, publisher_not_pinned, signature, row, layer_count,
    layer_size, adapter, duplicate_id.
    """

    code: ClassVar[str] = "registry_refused"

    def __init__(self, check: str, text: str) -> None:
        super().__init__(text)
        self.check = check


class ModelUnknownError(Exception):
    """The registry has no such model. Set `model.id` to one that the text names, or update the registry."""

    code: ClassVar[str] = "model_unknown"


class CheckpointNotFoundError(Exception):
    """The model's files are not on this host. Set `model.path` to the directory that holds them."""

    code: ClassVar[str] = "checkpoint_missing"


_ROW_CONFIG = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


@pydantic.dataclasses.dataclass(frozen=True, slots=True, kw_only=True, config=_ROW_CONFIG)
class SpeculationDefaults:
    """What the publisher suggests for speculation; None where he says nothing.

    Attributes:
        k: tokens drafted per frame (key "K").
        depth: frames in flight.
        draft_ctx: tokens of context; also what kv_gb_per_layer is counted for.

    """

    k: Count | None = Field(default=None, validation_alias="K")
    depth: Count | None = None
    draft_ctx: Count | None = None


@pydantic.dataclasses.dataclass(frozen=True, slots=True, kw_only=True, config=_ROW_CONFIG)
class ModelRow:
    """One model. In JSON the names are in camel case ("hfArch", "layerCount" …). Sizes in GB of 1e9 bytes.

    Attributes:
        id: the name that users and `model.id` say.
        hf_arch: architecture class, as in config.json.
        worker_model: the name under which workers of other tools register.
        engine_path: "bundled:NAME", the absolute path of a checkpoint directory, or a hub id.
        layer_count: number of transformer layers; receipts must tile [0, layer_count).
        gb_per_layer: weights of one layer as served (the largest kind of layer).
        kv_gb_per_layer: KV cache of one layer for one session of defaults.draft_ctx tokens.
        quant: format of the weights ("bf16", "fp8", "mxfp4" …).
        adapter: which kind of runtime serves it, one of KNOWN_ADAPTERS.
        tokenizer_id: "bundled:NAME" or a hub id.
        chat_template: None: the tokenizer's own.
        weight_manifest_cid: content id of the signed weight manifest, "" for none.

    """

    id: Text
    hf_arch: Text
    worker_model: Text
    engine_path: Text
    layer_count: Count
    gb_per_layer: Gigabytes
    kv_gb_per_layer: Gigabytes
    quant: Text
    adapter: Text
    tokenizer_id: Text
    chat_template: Annotated[str, Strict()] | None = None
    weight_manifest_cid: Annotated[str, Strict()] = ""
    defaults: SpeculationDefaults = SpeculationDefaults()

    @pydantic.field_validator("adapter")
    @classmethod
    def _known(cls, adapter: str) -> str:
        if adapter not in KNOWN_ADAPTERS:
            raise ValueError(f"known adapters are {', '.join(KNOWN_ADAPTERS)}")
        return adapter


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that has passed every check. version grows with every change; publisher: the 32-byte public key."""

    version: int
    rows: tuple[ModelRow, ...]
    publisher: bytes

    def row(self, model_id: str) -> ModelRow:
        """Return the row of a model. Raises ModelUnknownError, which names the nearest id and all ids."""
        ids = [row.id for row in self.rows]
        if model_id in ids:
            return self.rows[ids.index(model_id)]
        # Compared without case: "glm-5.2" should find "GLM-5.2".
        nearest = difflib.get_close_matches(model_id.lower(), [known.lower() for known in ids], n=1)
        hint = (
            f"did you mean {next(known for known in ids if known.lower() == nearest[0])!r}? "
            if nearest
            else ""
        )
        raise ModelUnknownError(f"the registry has no model {model_id!r}: {hint}It has {', '.join(ids)}")


_ROWS = TypeAdapter(list[ModelRow])


def load_registry(path: Path | None, pinned: Collection[bytes | str]) -> Registry:
    """Read and check a registry file; None: the bundled one. Raises RegistryError, like parse_registry."""
    path = path or BUNDLED / "models.json"
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise RegistryError(
            "unreadable", f"cannot read the registry {path} (`registry.path`): {error.strerror or error}"
        ) from error
    return parse_registry(data, pinned)


def parse_registry(data: bytes, pinned: Collection[bytes | str]) -> Registry:
    """Check a registry document and return what it says.

    The checks run in this order: size, JSON, schema, pinned publisher, signature, rows.

    Args:
        data: the JSON document, at most SIZE_LIMIT bytes.
        pinned: public keys of trusted publishers, raw (32 bytes) or as standard base64.

    Raises:
        RegistryError: a check failed; nothing of the document may be used.

    """
    if len(data) > SIZE_LIMIT:
        raise RegistryError(
            "size", f"the registry is larger than {SIZE_LIMIT} bytes: it is not a registry of models"
        )
    document = _parse_object(data)
    version, rows = _check_schema(document)
    publisher = _check_publisher(document, pinned)
    return Registry(version, _check_rows(rows), publisher)


def checkpoint_path(row: ModelRow, override: Path | None) -> Path:
    """Return the directory that holds a model's files.

    Args:
        row: the model; its engine_path counts when it is "bundled:NAME" or an absolute path.
        override: the user's `model.path`, which wins.

    Raises:
        CheckpointNotFoundError: there is no such directory.

    """
    if override is not None:
        path, origin = override, "`model.path`"
    elif row.engine_path.startswith(_BUNDLED_PREFIX):
        path, origin = BUNDLED / Path(row.engine_path.removeprefix(_BUNDLED_PREFIX)).name, "the registry"
    else:
        path, origin = Path(row.engine_path), "the registry"
    # A relative engine_path is a hub id: taken as a directory, it would mean another one wherever we are started.
    if not path.is_absolute() and override is None:
        raise CheckpointNotFoundError(
            f"the files of {row.id!r} are not part of swarmd: download {row.engine_path} and set `model.path` to its directory"
        )
    if not path.is_dir():
        raise CheckpointNotFoundError(
            f"there is no directory {path}, where {origin} says that the files of {row.id!r} are: set `model.path`"
        )
    return path


def _parse_object(data: bytes) -> dict[str, object]:
    try:
        document = json.loads(data.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RegistryError("json", f"the registry is not a JSON document that we accept: {error}") from error
    if not isinstance(document, dict):
        raise RegistryError("schema", "the registry is not a JSON object: fetch it anew from its publisher")
    return document


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) != len(pairs):  # readers differ in which one counts, so a signature would cover two meanings
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object"
        )
    return keys


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_schema(document: Mapping[str, object]) -> tuple[int, list[object]]:
    if document.get("schema") != SCHEMA:
        raise RegistryError(
            "schema", f"the registry's `schema` is {document.get('schema')!r}: this swarmd reads {SCHEMA!r}"
        )
    version, models = document.get("version"), document.get("models")
    if type(version) is not int or version < 1:
        raise RegistryError(
            "schema", f"the registry's `version` is {version!r}: a whole number from 1 is needed"
        )
    if not isinstance(models, list) or not models:
        raise RegistryError("schema", "the registry's `models` is not a list of at least one model")
    return version, models


def _check_publisher(document: Mapping[str, object], pinned: Collection[bytes | str]) -> bytes:
    claimed = document.get("publisher_pubkey")
    if not isinstance(claimed, str) or claimed not in {_pinned_text(key) for key in pinned}:
        raise RegistryError(
            "publisher_not_pinned",
            f"the registry's publisher {claimed!r} is not pinned: if you trust that key, add it to `registry.publishers`",
        )
    try:
        return verify_document(document)
    except SignatureError as error:
        raise RegistryError(
            "signature",
            f"the registry is not what its publisher signed ({error}): fetch it anew from the publisher",
        ) from error


def _pinned_text(key: bytes | str) -> str:
    text = key if isinstance(key, str) else base64.b64encode(key).decode()
    try:
        strict_base64(text, PUBLIC_KEY_BYTES)
    except ValueError as error:
        raise RegistryError(
            "pinned_key", f"`registry.publishers`: {text!r} is not a public key: {error}"
        ) from error
    return text


def _check_rows(models: list[object]) -> tuple[ModelRow, ...]:
    try:
        # by_name=False: a document says "layerCount", never "layer_count".
        rows = _ROWS.validate_python(models, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _row_error(models, error) from error
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise RegistryError("duplicate_id", f"the registry has two models {row.id!r}: tell its publisher")
        seen.add(row.id)
    return tuple(rows)


def _row_error(models: list[object], error: ValidationError) -> RegistryError:
    first = error.errors(include_url=False)[0]
    index, *path = first["loc"]
    row = models[int(index)]
    name = row.get("id") if isinstance(row, dict) else None
    field = ".".join(str(part) for part in path) or "row"
    value = "" if first["type"] == "missing" else f" {first['input']!r}"
    return RegistryError(
        _CHECK_OF_FIELD.get(field, "row"),
        f"model {name!r} of the registry: `{field}`{value}: {first['msg']}. Tell its publisher",
    )
