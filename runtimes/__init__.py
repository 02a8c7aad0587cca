"""runtimes: ModelRuntime and its plugins. torch lives here only, and only behind a plugin's own import."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from runtimes.base import ModelRuntime, RuntimeFailure, UnsupportedModel

ENTRY_POINT_GROUP = "swarmd.runtimes"

# What a registry row calls its adapter → the plugins that serve it, best first. An adapter that is not listed is served
# by a plugin of the same name, if one is installed.
_PLUGINS_OF_ADAPTER = {"generic-hf": ("hf",), "generic-vllm": ("vllm", "hf")}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which plugin serves a registry row. instead_of: the better one that is not installed, or ""."""

    plugin: str
    instead_of: str = ""


def installed_runtimes() -> tuple[str, ...]:
    """Return the names of the installed runtime plugins, sorted."""
    return tuple(sorted(_plugins()))


def select_runtime(adapter: str, *, name: str = "auto") -> Selection:
    """Return the plugin that serves a registry row.

    Args:
        adapter: the row's adapter, e.g. "generic-hf".
        name: plugin to use whatever the adapter says; "auto" follows the adapter.

    Raises:
        UnsupportedModel: no installed plugin serves the adapter, or `name` is not installed.

    """
    installed = _plugins()
    names = ", ".join(sorted(installed)) or "none"
    if name != "auto":
        if name not in installed:
            raise UnsupportedModel(f"runtime.name is {name!r}, which is not installed (installed: {names})")
        return Selection(name)
    wanted = _PLUGINS_OF_ADAPTER.get(adapter, (adapter,))
    found = next((plugin for plugin in wanted if plugin in installed), None)
    if found is None:
        raise UnsupportedModel(
            f"adapter {adapter!r} is served by no installed runtime (installed: {names}): "
            "install a plugin for it or set `runtime.name`"
        )
    return Selection(found, "" if found == wanted[0] else wanted[0])


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
        UnsupportedModel: as select_runtime does.
        RuntimeFailure: the plugin is installed but cannot be imported.

    """
    plugin = select_runtime(adapter, name=name).plugin
    try:
        factory = _plugins()[plugin].load()
    except (ImportError, AttributeError) as error:
        raise RuntimeFailure(f"runtime {plugin!r} is installed but cannot be imported: {error}") from error
    runtime: ModelRuntime = factory(threads=threads, dtype=dtype, numerics=numerics)
    return runtime


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
