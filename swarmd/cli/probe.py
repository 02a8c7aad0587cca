"""`swarmd probe`: what this machine could hold of a model, and how fast, before anything is downloaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from registry.shape import ModelShape
from runtimes.base import MemoryExceeded, ModelRuntime, ModelSource, Probe
from swarmd.cli import tables
from swarmd.cli.options import AsJson, ConfigFile, Settings, load_configuration
from swarmd.cli.probe_table import probe_table


def probe(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="ID|PATH", help="Model of the registry, or a directory with its config.json."
        ),
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Tokens a session.")] = None,
    sessions: Annotated[int | None, typer.Option("--sessions", min=1, help="Sessions at once.")] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="Instead of what is free.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Say how much of a model fits on this machine, and how fast it would be; config.json is enough."""
    flags = {
        "model.context": context,
        "model.sessions": sessions,
        "runtime.memory_limit": memory_limit,
    }
    given = {key: str(value) for key, value in flags.items() if value is not None}
    configuration = load_configuration(config, settings, given).config

    # These bring the runtimes along, which take seconds to import.
    from swarmd.engine import PROBE_WIDTHS
    from swarmd.measuring import automatic_limit

    runtime, source = _open(configuration, model or configuration.model.id)
    shape = runtime.shape(source)
    free = runtime.memory_free()
    chosen = configuration.runtime.memory_limit
    limit = automatic_limit(free) if chosen == "auto" else int(chosen)
    try:
        measured, reason = runtime.probe(source, PROBE_WIDTHS), ""
    except MemoryExceeded as error:
        measured, reason = None, str(error)
    answer = {
        "ok": True,
        "model": {
            "id": source.model_id,
            "arch": source.arch,
            "layers": shape.layer_count,
            "runtime": runtime.name,
        },
        "device": runtime.device(),
        "memory": {"total": runtime.memory_total(), "free": free, "limit": limit},
        "sizes": _sizes(shape),
        "speed": _speed(measured, shape.layer_count),
        "not_measured": reason or None,
        "fits": _fits(shape, limit, configuration.model.context, configuration.model.sessions),
    }
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        tables.show(probe_table(answer))


def _open(configuration: Config, model: str) -> tuple[ModelRuntime, ModelSource]:
    from runtimes import open_runtime

    chosen = configuration.runtime
    options: dict[str, Any] = {
        "name": chosen.name,
        "threads": chosen.threads,
        "dtype": chosen.dtype,
        "numerics": chosen.numerics,
    }
    path = Path(model)
    if path.is_dir() or os.sep in model:
        runtime = open_runtime("generic-hf", **options)
        from runtimes.hf.source import source_of

        return runtime, source_of(path, path.resolve().name)
    row = load_registry(configuration.registry.path, configuration.registry.publishers).row(model)
    own = configuration.model.path if model == configuration.model.id else None
    source = ModelSource(row.id, checkpoint_path(row, own), row.layer_count, row.hf_arch)
    return open_runtime(row.adapter, **options), source


def _sizes(shape: ModelShape) -> dict[str, Any]:
    """Return bytes; of layers that differ, the largest."""
    return {
        "weights": shape.block_memory(0, shape.layer_count, context=0, sessions=0).weights,
        "layer": max(shape.layer_bytes),
        "head": shape.head_bytes,
        "tail": shape.tail_bytes,
        "kv_per_token": sum(shape.kv_token_bytes),
        "kv_per_token_and_layer": max(shape.kv_token_bytes),
        "state_per_session": sum(shape.state_bytes),
        "activation_per_token": shape.hidden_bytes,
        "workspace": shape.workspace_bytes,
    }


def _speed(measured: Probe | None, layers: int) -> dict[str, Any] | None:
    if measured is None:
        return None
    times = dict(measured.layer_ns)
    return {
        "layer_ms": {str(width): ns / 1e6 for width, ns in measured.layer_ns},
        "tail_ms": measured.tail_ns / 1e6,
        "whole_tok_s": 1e9 / (layers * times[min(times)] + measured.tail_ns),
    }


def _fits(shape: ModelShape, limit: int, context: int, sessions: int) -> dict[str, Any]:
    from swarmd.capacity import capacity

    found = capacity(shape, limit, context=context, sessions=sessions)
    blocks = {
        kind: {"layers": block.layers, "lo": block.lo, "hi": block.hi, **asdict(block.memory)}
        for kind, block in (("head", found.head), ("middle", found.middle), ("tail", found.tail))
    }
    whole = {"fits": found.whole_fits, "bytes": found.whole.total, **asdict(found.whole)}
    return {"context": context, "sessions": sessions, **blocks, "whole": whole}
