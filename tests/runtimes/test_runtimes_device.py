"""Free memory of a CUDA device, with test doubles for torch.cuda and NVML: no machine of the tests has a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from runtimes.base import RuntimeFailure
from runtimes.hf import device

CUDA = torch.device("cuda", 0)


class NvmlDouble(ModuleType):
    """Stands in for pynvml: one GPU, known by its UUID."""

    class NVMLError(Exception):
        """What pynvml raises."""

    def __init__(self, uuid: str, free: int) -> None:
        super().__init__("pynvml")
        self.open = 0
        self._uuid, self._free = uuid, free

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self._uuid:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(free=self._free)


@pytest.fixture(autouse=True)
def _cuda_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="u-1", total_memory=9_000)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5_000, 9_000))


def test_nvml_is_asked_for_the_very_device_and_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = NvmlDouble("GPU-u-1", 7_000)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(device, "find_spec", lambda name: name)
    assert device.memory_free(CUDA) == 7_000 + 200
    assert nvml.open == 0


def test_a_driver_that_does_not_tell_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NvmlDouble("GPU-other", 7_000))
    monkeypatch.setattr(device, "find_spec", lambda name: name)
    with pytest.raises(RuntimeFailure, match="GPU-u-1"):
        device.memory_free(CUDA)


def test_without_nvml_the_cuda_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert device.memory_free(CUDA) == 5_000 + 200
    assert device.memory_total(CUDA) == 9_000


def test_the_cpu_has_memory() -> None:
    cpu = torch.device("cpu")
    assert 0 < device.memory_free(cpu) <= device.memory_total(cpu)
