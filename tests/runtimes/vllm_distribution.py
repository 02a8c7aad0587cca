"""An installed distribution with a runtime plugin called vllm, as pip would leave it in a directory of the path."""

from __future__ import annotations

from pathlib import Path


def install_vllm(site: Path, *, base: str) -> None:
    """Install it into `site`. base: "module:Class" of the runtime that does the work under the name vllm."""
    module, _, name = base.partition(":")
    (site / "swarmd_vllm_double.py").write_text(
        f"from {module} import {name}\n\n\nclass VllmRuntime({name}):\n    name = 'vllm'\n"
    )
    info = site / "swarmd_vllm_double-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swarmd-vllm-double\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swarmd.runtimes]\nvllm = swarmd_vllm_double:VllmRuntime\n")
