"""runtimes: ModelRuntime and its plugins. torch lives here only, and only behind a plugin's own import."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from runtimes.base import ModelRuntime, RuntimeFailure, UnsupportedModel

ENTRY_POINT_GROUP = "swarmd.runtimes"

# What a registry row calls its adapter → the plugin that serves it. An adapter that is not listed is served by
# a plugin of the same name, if one is installed.
_PLUGIN_OF_ADAPTER = {"generic-hf": "hf"}


def installed_runtimes() -> tuple[str, ...]:
    """Return the names of the installed runtime plugins, sorted."""
    return tuple(sorted(_plugins()))


def open_runtime(
    adapter: str, *, name: str = "auto", threads: int = 0, dtype: str = "auto", numerics: str = "auto"
) -> ModelRuntime:
    """Open the runtime that serves a registry row.

    Args:
        adapter: the row's adapter, e.g. "generic-hf".
        name: plugin to use whatever the adapter says; "auto" follows the adapter.
        threads: CPU threads that the runtime may use; 0 leaves the choice to it.
        dtype: torch's name of the dtype to serve the model in; "auto" takes the checkpoint's.
        numerics: "exact", "fast" or "auto" (docs/numerics.md).

    Raises:
        UnsupportedModel: no installed plugin serves the adapter, or `name` is not installed.
        RuntimeFailure: the plugin is installed but cannot be imported.

    """
    plugins = _plugins()
    installed = ", ".join(sorted(plugins)) or "none"
    wanted = _PLUGIN_OF_ADAPTER.get(adapter, adapter) if name == "auto" else name
    if wanted not in plugins:
        if name == "auto":
            raise UnsupportedModel(
                f"adapter {adapter!r} is served by no installed runtime (installed: {installed}): "
                "install a plugin for it or set `runtime.name`"
            )
        raise UnsupportedModel(f"runtime.name is {name!r}, which is not installed (installed: {installed})")
    try:
        factory = plugins[wanted].load()
    except ImportError as error:
        raise RuntimeFailure(f"runtime {wanted!r} is installed but cannot be imported: {error}") from error
    runtime: ModelRuntime = factory(threads=threads, dtype=dtype, numerics=numerics)
    return runtime


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
