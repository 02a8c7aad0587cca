"""The reference model: integer layers, their derived weights, and the whole model in one function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.base import CheckpointError, UnsupportedModel

ARCHITECTURE = "ReferenceForCausalLM"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """Contents of reference.json: sizes in layers, token ids, int64 per token, and positions."""

    layers: int
    vocab: int
    hidden: int
    context: int
    seed: str

    @classmethod
    def read(cls, path: Path) -> ReferenceConfig:
        """Read `path`/reference.json.

        Raises:
            UnsupportedModel: there is no such file, or it names another architecture.
            CheckpointError: a field is missing or out of bounds.

        """
        file = path / "reference.json"
        try:
            fields = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise UnsupportedModel(
                f"{file} does not exist: the reference runtime serves no other models"
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if not isinstance(fields, dict) or fields.get("arch") != ARCHITECTURE:
            raise UnsupportedModel(f"{file}: arch must be {ARCHITECTURE!r}")
        if not isinstance(fields.get("seed"), str):
            raise CheckpointError(f"{file}: seed must be a text")
        bounds = {"layers": 4096, "vocab": 1 << 20, "hidden": 4096, "context": 1 << 20}
        sizes = {name: _size(file, name, fields.get(name), most) for name, most in bounds.items()}
        return cls(**sizes, seed=fields["seed"])


def _size(file: Path, name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise CheckpointError(f"{file}: {name} is {value!r}; it must be an integer from 1 to {most}")
    return value


@dataclass(slots=True)
class ReferenceCache:
    """KV cache of one session: per layer [context, hidden], filled up to `length`."""

    values: dict[int, Integers]
    length: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceBlock:
    """Layers [lo, hi) and their tensors, int64 by name."""

    config: ReferenceConfig
    lo: int
    hi: int
    tensors: dict[str, Integers]

    def step(self, hidden: Integers, position: int, cache: ReferenceCache) -> Integers:
        """Run `hidden` [w, hidden] through the layers at `position`, filling the cache."""
        end = position + len(hidden)
        for layer in range(self.lo, self.hi):
            held = cache.values[layer]
            held[position:end] = _value(self.tensors, layer, hidden)
            hidden = _layer(self.tensors, layer, hidden, held[:end])
        cache.length = end
        return hidden


def tensor_shapes(config: ReferenceConfig, lo: int, hi: int) -> dict[str, tuple[int, ...]]:
    """Return name → shape of all tensors of a block, in the order of loading."""
    h = config.hidden
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab, h)} if lo == 0 else {}
    for layer in range(lo, hi):
        shapes |= {
            f"layers.{layer}.value": (h, h),
            f"layers.{layer}.mix": (h, h),
            f"layers.{layer}.bias": (h,),
            f"layers.{layer}.reach": (2,),
        }
    if hi == config.layers:
        shapes |= {"norm": (h,), "head": (h, config.vocab)}
    return shapes


def derive(config: ReferenceConfig, name: str, shape: tuple[int, ...]) -> Integers:
    """Return a tensor's values."""
    count = int(np.prod(shape))
    digest = hashlib.shake_256(f"{config.seed}/{name}".encode()).digest(8 * count)
    return np.frombuffer(digest, dtype="<i8").astype(np.int64).reshape(shape)


def _scramble(x: Integers) -> Integers:
    """Mix the bits of each element, so that layers do not commute (the finalizer of SplitMix64)."""
    u = x.astype(np.uint64)
    u = (u ^ (u >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    u = (u ^ (u >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (u ^ (u >> np.uint64(31))).astype(np.int64)


def _value(tensors: dict[str, Integers], layer: int, hidden: Integers) -> Integers:
    return _scramble(hidden @ tensors[f"layers.{layer}.value"])


def _layer(tensors: dict[str, Integers], layer: int, hidden: Integers, held: Integers) -> Integers:
    """One layer: the last len(hidden) of the positions in `held` look back on all positions up to their own."""
    ends = np.arange(len(held) - len(hidden), len(held), dtype=np.int64)[:, None]
    keys = np.arange(len(held), dtype=np.int64)[None, :]
    far, near = tensors[f"layers.{layer}.reach"]
    weights = np.where(keys <= ends, _scramble(ends * far + keys * near), np.int64(0))
    seen = weights @ held
    return hidden + _scramble(
        (hidden ^ seen) @ tensors[f"layers.{layer}.mix"] + tensors[f"layers.{layer}.bias"]
    )


def choose(tensors: dict[str, Integers], hidden: Integers) -> tuple[int, ...]:
    """Return the token chosen after each row of `hidden` [w, hidden]; the lowest id of equals."""
    return tuple(int(token) for token in _scores(tensors, hidden).argmax(axis=1))


def logits(tensors: dict[str, Integers], hidden: Integers) -> npt.NDArray[np.float32]:
    """Return float32 [w, vocabulary], from -4 to 4: what a sampler chooses by after each row of `hidden` [w, hidden]."""
    return np.asarray(_scores(tensors, hidden) / 2.0**61, np.float32)


def _scores(tensors: dict[str, Integers], hidden: Integers) -> Integers:
    return _scramble(hidden + tensors["norm"]) @ tensors["head"]


def generate(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Return the `count` tokens that the whole model chooses after `prompt`.

    Computed without frames and without a cache, every position anew for every token: what a swarm is compared with.
    """
    config = ReferenceConfig.read(path)
    tensors = {
        name: derive(config, name, shape) for name, shape in tensor_shapes(config, 0, config.layers).items()
    }
    ids = list(prompt)
    for _ in range(count):
        hidden = tensors["embed"][ids]
        for layer in range(config.layers):
            hidden = _layer(tensors, layer, hidden, _value(tensors, layer, hidden))
        ids.append(choose(tensors, hidden[-1:])[0])
    return ids[len(prompt) :]
