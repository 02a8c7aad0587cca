"""`swarmd models`: make checkpoints that a swarm can serve."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import Progress

from runtimes.base import LoadProgress
from swarmd.cli.options import AsJson

models_app = typer.Typer(name="models", help="Prepare models for a swarm.", no_args_is_help=True)

_QUANT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # torch's name → the registry's
_DRAFT_CONTEXT = 8192  # tokens for which a row's kvGbPerLayer is counted
_DTYPES = ("auto", "bfloat16", "float16", "float32")


@models_app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="GGUF file (the first of its parts), or checkpoint directory."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Directory to make; by default PATH's name, in the current one."
        ),
    ] = None,
    model_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Name for the registry; by default the directory's."),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            help="Of a GGUF's weights: auto (its own if not quantized, else bfloat16), bfloat16, float16, float32.",
        ),
    ] = "auto",
    shard_size: Annotated[
        str,
        typer.Option("--shard-size", metavar="SIZE", help="Most bytes of a weight file, and of memory used."),
    ] = "1GiB",
    as_json: AsJson = False,
) -> None:
    """Make a checkpoint that every runtime and transformers load: sharded safetensors, tokenizer and chat template."""
    target = (out or Path(source.name.removesuffix(".gguf"))).absolute()
    if not target.name:
        raise typer.BadParameter(f"{out} names no new directory", param_hint="--out")
    if dtype not in _DTYPES:
        raise typer.BadParameter(f"{dtype!r} is none of {', '.join(_DTYPES)}", param_hint="--dtype")
    shard_bytes = _size(shard_size)

    from runtimes.importer import import_model  # brings torch along, which takes seconds to import

    with _progress(quiet=as_json) as progress:
        made = import_model(
            source,
            target,
            model_id=model_id or target.name,
            dtype=dtype,
            shard_bytes=shard_bytes,
            progress=progress,
        )
    layers = made.shape.layer_count
    weights = made.shape.block_memory(0, layers, context=0, sessions=0).weights
    row = _row(
        made.shape.model_id,
        made.path,
        made.arch,
        made.dtype,
        made.shape.layer_bytes,
        made.shape.kv_token_bytes,
    )
    if as_json:
        print(
            json.dumps(
                {
                    "ok": True,
                    "path": str(made.path),
                    "weight_bytes": weights,
                    "eos_ids": made.eos_ids,
                    "chat_template": made.has_chat_template,
                    "row": row,
                },
                ensure_ascii=False,
            )
        )
        return
    print(f"imported  {made.path}")
    print(
        f"model     {made.arch}, {layers} layers, {made.dtype}, {ByteSize(weights).human_readable(separator=' ')}"
    )
    if not made.eos_ids:
        print("note      the model names no token that ends a text: generations run to their limit")
    if not made.has_chat_template:
        print("note      the model has no chat template: it takes plain prompts only")
    print(
        _ADVICE.format(
            rows=json.dumps({"schema": "shard-models/1", "version": 1, "models": [row]}, indent=2),
            id=json.dumps(row["id"]),
            path=json.dumps(str(made.path)),
        )
    )


_ADVICE = """
To serve it, save this as rows.json (or add the model to the rows of your registry):

{rows}

sign it, and give models.json and the public key that is printed to every host:

  python -m registry.publish rows.json --key publisher.key --create-key --out models.json

and set in the swarmd.toml of every host:

  [registry]
  path = "models.json"
  publishers = ["PUBLIC KEY"]

  [model]
  id = {id}
  path = {path}"""


def _size(text: str) -> int:
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise typer.BadParameter(f"{text!r} is no size, such as 1GiB", param_hint="--shard-size") from error
    if size < 1:
        raise typer.BadParameter(f"{text!r} is less than a byte", param_hint="--shard-size")
    return size


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    """Give a callable that shows how far the import is, where somebody watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("importing", total=None)

        def show(step: LoadProgress) -> None:
            bar.update(task, completed=step.done, total=step.total)

        yield show


def _row(
    model_id: str,
    path: Path,
    arch: str,
    dtype: str,
    layer_bytes: tuple[int, ...],
    kv_token_bytes: tuple[int, ...],
) -> dict[str, Any]:
    """Return the registry's row of the model; see docs/registry.md."""
    return {
        "id": model_id,
        "hfArch": arch,
        "workerModel": model_id,
        "enginePath": str(path),
        "layerCount": len(layer_bytes),
        "gbPerLayer": _gigabytes(max(layer_bytes)),
        "kvGbPerLayer": _gigabytes(_DRAFT_CONTEXT * max(kv_token_bytes)),
        "quant": _QUANT.get(dtype, dtype),
        "adapter": "generic-hf",
        "tokenizerId": str(path),
        "chatTemplate": None,
        "weightManifestCid": "",
        "defaults": {"K": 4, "depth": 2, "draftCtx": _DRAFT_CONTEXT},
    }


def _gigabytes(count: int) -> float | int:
    """Return GB with six decimals; rounded up to 0.0001, since less would be printed with an exponent."""
    value = max(round(count / 1e9, 6), 0.0001)
    return int(value) if value == int(value) else value
