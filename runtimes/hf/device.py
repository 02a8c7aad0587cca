"""The device that the process computes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from runtimes.base import MemoryExceeded, RuntimeFailure
from runtimes.memory import cpu_memory_free, cpu_memory_total


def choose_device() -> torch.device:
    """Return the process's first CUDA device, or the CPU. CUDA_VISIBLE_DEVICES chooses among several."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def describe(device: torch.device) -> str:
    """Return the device for people."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu ({torch.get_num_threads()} threads)"


def memory_total(device: torch.device) -> int:
    """Return the bytes that the device has, or, on the CPU, that this process's control groups allow it."""
    if device.type != "cuda":
        return cpu_memory_total()
    return int(torch.cuda.get_device_properties(device).total_memory)


def memory_free(device: torch.device) -> int:
    """Return the bytes that this process may still use on the device.

    On CUDA it is NVML's figure where nvidia-ml-py is installed (the extra `cuda`), else the CUDA driver's own.

    Raises:
        RuntimeFailure: the NVIDIA driver does not tell.

    """
    if device.type != "cuda":
        return cpu_memory_free()
    # What torch has reserved and does not use is free to this process, though not to the driver.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    free = _nvml_free(uuid) if find_spec("pynvml") else torch.cuda.mem_get_info(device)[0]
    return free + idle


def _nvml_free(uuid: str) -> int:
    """Return NVML's free bytes of a device; NVML counts devices that CUDA_VISIBLE_DEVICES hides, so go by UUID."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise RuntimeFailure(f"NVML does not tell the free memory of GPU-{uuid}: {error}") from error


def synchronize(device: torch.device) -> None:
    """Wait until the device has computed everything that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back the memory of what has been dropped. Modules and their hooks hold each other: only the collector ends them."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def refuses_memory(error: Exception) -> bool:
    """Return whether an error says that the device or the host has no memory left."""
    # The text is all that torch's CPU allocator says of itself.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


@contextmanager
def out_of_memory(doing: str) -> Iterator[None]:
    """Turn the device's refusal of memory into ours."""
    try:
        yield
    except MemoryError as error:
        raise MemoryExceeded(f"{doing}: the host has no memory left") from error
    except RuntimeError as error:
        if not refuses_memory(error):
            raise
        whose = "device" if isinstance(error, torch.OutOfMemoryError) else "host"
        raise MemoryExceeded(f"{doing}: the {whose} has no memory left: {error}") from error
