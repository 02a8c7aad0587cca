from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from vllm_distribution import install_vllm

import runtimes
from runtimes import Selection, installed_runtimes, open_runtime, select_runtime
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


@pytest.mark.parametrize("adapter", ["glm-nvfp4", "vllm"])
def test_an_adapter_without_a_plugin_is_refused_with_what_is_installed(adapter: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{adapter}.*hf.*reference"):
        open_runtime(adapter)


def test_a_name_that_is_not_installed_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"runtime\.name is 'quantum'"):
        open_runtime("hf", name="quantum")


def test_generic_vllm_is_served_by_hf_where_no_vllm_is_installed() -> None:
    assert select_runtime("generic-vllm") == Selection("hf", instead_of="vllm")
    assert open_runtime("generic-vllm").name == "hf"


def test_generic_vllm_is_served_by_an_installed_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_vllm(tmp_path, base="runtimes.reference:ReferenceRuntime")
    monkeypatch.syspath_prepend(tmp_path)
    assert "vllm" in installed_runtimes()
    assert select_runtime("generic-vllm") == Selection("vllm")
    assert open_runtime("generic-vllm").name == "vllm"
    assert select_runtime("generic-hf") == Selection("hf")
    assert select_runtime("generic-vllm", name="hf") == Selection("hf")


@pytest.mark.parametrize("target", ["runtimes.no_such_module:HfRuntime", "runtimes.base:NoSuchRuntime"])
def test_a_plugin_that_does_not_import_says_so(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("hf", target, runtimes.ENTRY_POINT_GROUP)
    monkeypatch.setattr(runtimes, "entry_points", lambda group: [broken])
    with pytest.raises(RuntimeFailure, match=r"no_such_module|NoSuchRuntime"):
        open_runtime("hf")


@pytest.mark.parametrize("module", ["runtimes", "runtimes.base", "runtimes.tokenizer", "runtimes.reference"])
def test_importing_what_needs_no_torch_brings_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
