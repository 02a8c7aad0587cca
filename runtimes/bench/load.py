"""What loading a block reads and what it takes of memory, measured in a process of its own.

`python -m runtimes.bench.load CHECKPOINT LO HI LAYERS WARM_UP` prints the figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from runtimes.base import BlockLimits, LoadProgress, ModelSource, RuntimeFailure
from runtimes.bench.models import llama_config, write_checkpoint
from runtimes.hf import HfRuntime

_MINUTES = 4
_SHARDS = 4


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What was measured, in bytes.

    Attributes:
        checkpoint: size of all weight files.
        block: weights held after the load.
        estimate: weights, and what the load needs beside them, under which the block was admitted.
        read: what the process has read in the load, by the kernel's count; -1 where it does not count.
        baseline: resident memory before the load, everything imported and a small model loaded and dropped.
        peak: most resident memory during the load.
        seconds: how long the load took.

    """

    checkpoint: int
    block: int
    estimate: int
    read: int
    baseline: int
    peak: int
    seconds: float


def measure_load(*, hidden: int, intermediate: int, layers: int, lo: int, hi: int) -> LoadFigures:
    """Write a checkpoint of random bfloat16 Llama layers, load [lo, hi) of it in a fresh process, and delete it.

    Raises:
        RuntimeFailure: the process failed, or the system does not tell a process's peak of memory.

    """
    if not Path("/proc/self/clear_refs").exists():
        raise RuntimeFailure("this system does not tell a process's peak of memory: Linux does, in /proc")
    with tempfile.TemporaryDirectory(prefix="swarmd-bench-") as directory:
        whole, small = Path(directory) / "whole", Path(directory) / "small"
        _write(whole, hidden, intermediate, layers)
        _write(small, 64, 128, layers)
        command = [sys.executable, "-m", __name__, str(whole), str(lo), str(hi), str(layers), str(small)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60 * _MINUTES, check=True)  # noqa: S603 - ours
        except subprocess.CalledProcessError as error:
            raise RuntimeFailure(
                f"the process that loads has failed: {error.stderr.strip()[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeFailure(f"the process that loads was not done after {_MINUTES} minutes") from error
        return LoadFigures(**json.loads(done.stdout.splitlines()[-1]))


def _write(path: Path, hidden: int, intermediate: int, layers: int) -> None:
    path.mkdir()
    config = llama_config(hidden, intermediate, hidden // 64, max(1, hidden // 256), layers, vocabulary=8000)
    write_checkpoint(path, config, _SHARDS)


def _load(whole: Path, lo: int, hi: int, layers: int, small: Path) -> LoadFigures:
    runtime = HfRuntime(threads=1)
    limits = BlockLimits(runtime.memory_free(), 512, 1)

    def load(path: Path) -> None:
        source = ModelSource("bench", path, layers, "LlamaForCausalLM")
        runtime.shape(source)
        runtime.load(source, lo, hi, limits, _ignore)

    load(small)
    runtime.unload()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    baseline, read = _status("VmHWM"), _read_so_far()
    began = time.monotonic()
    load(whole)
    seconds = time.monotonic() - began
    inventory = runtime.inventory()
    return LoadFigures(
        checkpoint=sum(file.stat().st_size for file in whole.glob("*.safetensors")),
        block=inventory.weight_bytes,
        estimate=inventory.memory.weights + inventory.memory.workspace,
        read=-1 if read < 0 else _read_so_far() - read,
        baseline=baseline,
        peak=_status("VmHWM"),
        seconds=seconds,
    )


def _status(field: str) -> int:
    """Return a size of this process in bytes."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise RuntimeFailure(f"/proc/self/status does not tell {field}")


def _read_so_far() -> int:
    io = Path("/proc/self/io")  # absent where the kernel was built without it
    return int(io.read_text("ascii").split()[1]) if io.exists() else -1


def _ignore(_: LoadProgress) -> None:
    """Progress interests nobody here."""


if __name__ == "__main__":
    path, lo, hi, layers, small = sys.argv[1:]
    print(json.dumps(asdict(_load(Path(path), int(lo), int(hi), int(layers), Path(small)))))  # noqa: T201 - read by the parent
