from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

import runtimes
from runtimes import installed_runtimes, open_runtime
from runtimes.base import RuntimeFailure, UnsupportedModel


def test_our_plugins_are_found() -> None:
    assert {"hf", "reference"} <= set(installed_runtimes())


@pytest.mark.parametrize(
    ("adapter", "name"), [("hf", "hf"), ("generic-hf", "hf"), ("reference", "reference")]
)
def test_auto_follows_the_adapter(adapter: str, name: str) -> None:
    assert open_runtime(adapter).name == name


def test_a_name_overrides_the_adapter() -> None:
    assert open_runtime("generic-hf", name="reference").name == "reference"


@pytest.mark.parametrize("adapter", ["generic-vllm", "glm-nvfp4"])
def test_an_adapter_without_a_plugin_is_refused_with_what_is_installed(adapter: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{adapter}.*hf.*reference"):
        open_runtime(adapter)


def test_a_name_that_is_not_installed_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"runtime\.name is 'quantum'"):
        open_runtime("hf", name="quantum")


def test_a_plugin_that_does_not_import_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("hf", "runtimes.no_such_module:HfRuntime", runtimes.ENTRY_POINT_GROUP)
    monkeypatch.setattr(runtimes, "entry_points", lambda group: [broken])
    with pytest.raises(RuntimeFailure, match="no_such_module"):
        open_runtime("hf")


@pytest.mark.parametrize("module", ["runtimes", "runtimes.base", "runtimes.tokenizer", "runtimes.reference"])
def test_importing_what_needs_no_torch_brings_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
