"""Which runtime serves a model is chosen by the registry row, and told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from signed_tale import signed_registry
from vllm_distribution import install_vllm

from swarmd.local_swarm import local_swarm

pytestmark = pytest.mark.swarm


@pytest.mark.parametrize("installed", [False, True])
async def test_generic_vllm_falls_back_to_hf_and_says_so(
    installed: bool, swarm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        site = swarm_home / "site"
        site.mkdir()
        install_vllm(site, base="runtimes.hf:HfRuntime")
        monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    path, publisher = signed_registry(swarm_home, adapter="generic-vllm")
    settings = {
        "registry.path": str(path),
        "registry.publishers": [publisher],
        "runtime.threads": 1,
        "plan.settle_seconds": 0.5,
    }
    async with local_swarm(swarm_home, "test-vllm", settings) as swarm:
        host = await swarm.add()
        await swarm.ring(within=90)
        status = await host.status()
        fallbacks = [line for line in host.log.read_text().splitlines() if "runtime_fallback" in line]
    if installed:
        assert status["model"]["runtime"] == "vllm"
        assert status["model"]["runtime_instead_of"] is None
        assert fallbacks == []
    else:
        assert status["model"]["runtime"] == "hf"
        assert status["model"]["runtime_instead_of"] == "vllm"
        assert len(fallbacks) == 1
        assert "no runtime vllm is installed: hf serves adapter generic-vllm" in fallbacks[0]
