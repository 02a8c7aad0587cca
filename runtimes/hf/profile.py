"""What a model's forward pass on the meta device tells: who uses which weight, what crosses the wire, what it takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from runtimes.base import RuntimeFailure, UnsupportedModel
from runtimes.hf.cache import BlockCache
from runtimes.hf.skeleton import Skeleton
from runtimes.hf.tail import ROWS, Tail
from runtimes.hf.tensors import OutputSpec, TensorSpec

PREFILL_WIDTH = 512  # frames as wide as this …
TRACE_WIDTH = 13  # tells [1, width, …] from other shapes
PREFILL_PAST = 3584  # … behind so many tokens are what the workspace is measured for


@dataclass(frozen=True, slots=True)
class Profile:
    """One look at a model.

    Attributes:
        before, after: names of the parameters outside the layers that are used before the first layer (by the
            head) and after the last one (by the tail).
        everywhere: names of those that every block needs.
        outputs: what each layer hands on.
        kv_token_bytes: keys and values per token of each layer.
        workspace: peak of transient bytes of a prefill frame through the whole decoder or of the tail's logits.

    """

    before: frozenset[str]
    after: frozenset[str]
    everywhere: frozenset[str]
    outputs: tuple[OutputSpec, ...]
    kv_token_bytes: tuple[int, ...]
    workspace: int

    def held(self, *, head: bool, tail: bool) -> frozenset[str]:
        """Return the names of the parameters outside the layers that a block needs."""
        return (
            self.everywhere | (self.before if head else frozenset()) | (self.after if tail else frozenset())
        )


@torch.no_grad()
def profile_model(skeleton: Skeleton) -> Profile:
    """Run the skeleton, which must not have been cut into a block yet; a model seen before is not run again.

    Raises:
        UnsupportedModel: the forward pass is of a kind that this runtime cannot split.

    """
    key = (skeleton.model.config.to_json_string(), skeleton.dtype)
    try:
        if key not in _seen:
            while len(_seen) >= _MOST_SEEN:
                _seen.pop(next(iter(_seen)))
            _seen[key] = _profile(skeleton)
        return _seen[key]
    except RuntimeFailure:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"{type(skeleton.model).__name__} does not run as transformers models do: {type(error).__name__}: {error}"
        ) from error


# A profile follows from the configuration and the dtype. Sizing, probing and loading each need it, and a deep model
# takes seconds to run on the meta device.
_seen: dict[tuple[str, torch.dtype], Profile] = {}
_MOST_SEEN = 8


def _profile(skeleton: Skeleton) -> Profile:
    count = len(skeleton.layers)
    tail = Tail(skeleton.model, skeleton.decoder)
    capacity = _positions(skeleton)
    cache = BlockCache(skeleton.model.config, skeleton.cache_layers(0, count), capacity)
    trace = _Trace(skeleton)
    with trace, _MetaKernels():
        output = _run(skeleton, cache, TRACE_WIDTH)
        tail.logits(output, 0, 1)
    kv = tuple(
        sum(cache.layers[index].token_bytes for index in skeleton.cache_layers(layer, layer + 1))
        for layer in range(count)
    )
    width = min(PREFILL_WIDTH, capacity)
    cache.rewind(capacity - width)
    with _LiveBytes() as live, _MetaKernels():
        output = _run(skeleton, cache, width)
        decoder_peak = live.peak
    with _LiveBytes() as live:
        tail.logits(output, 0, min(ROWS, width))
    before, after, everywhere = trace.parameters()
    return Profile(before, after, everywhere, trace.outputs(), kv, max(decoder_peak, live.peak))


def _positions(skeleton: Skeleton) -> int:
    wanted = PREFILL_WIDTH + PREFILL_PAST
    return wanted if skeleton.context is None else min(wanted, skeleton.context)


def _run(skeleton: Skeleton, cache: BlockCache, width: int) -> Any:
    ids = torch.zeros(1, width, dtype=torch.long, device="meta")
    positions = torch.arange(cache.length, cache.length + width, device="meta")[None]
    with torch.device("meta"):
        return skeleton.decoder(
            input_ids=ids, position_ids=positions, use_cache=True, **{skeleton.cache_keyword: cache}
        )


class _Trace:
    """Watches which modules run before, between and after the layers, and what the layers return."""

    def __init__(self, skeleton: Skeleton) -> None:
        self._skeleton = skeleton
        self._phase = 0
        self._phases: dict[int, set[int]] = {}  # id of parameter → phases in which it is used
        self._outputs: list[Any] = [None] * len(skeleton.layers)
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        layers = self._skeleton.layers
        inner = set(layers.modules())
        for module in self._skeleton.model.modules():
            if module not in inner and next(module.parameters(recurse=False), None) is not None:
                self._handles.append(module.register_forward_pre_hook(self._note))
        self._handles.append(layers[0].register_forward_pre_hook(lambda *_: self._enter(1)))
        for index, layer in enumerate(layers):
            self._handles.append(layer.register_forward_hook(self._recorder(index)))
        self._handles.append(layers[-1].register_forward_hook(lambda *_: self._enter(2)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, phase: int) -> None:
        self._phase = phase

    def _note(self, module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            self._phases.setdefault(id(parameter), set()).add(self._phase)

    def _recorder(self, index: int) -> Callable[..., None]:
        def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._outputs[index] = output

        return record

    def parameters(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """Return the names used before and after the layers, and those that every block needs.

        A module that contains the layers may use its own parameters at any time, so they are needed everywhere.
        """
        around = {
            id(parameter)
            for module in self._skeleton.model.modules()
            if self._skeleton.layers in set(module.modules())
            for parameter in module.parameters(recurse=False)
        }
        sets: tuple[set[str], set[str], set[str]] = (set(), set(), set())
        for name, parameter in self._skeleton.outer_parameters().items():
            phases = self._phases.get(id(parameter), set())
            if id(parameter) in around or 1 in phases:
                sets[2].add(name)
            else:
                for phase in phases:
                    sets[0 if phase == 0 else 1].add(name)
        return frozenset(sets[0]), frozenset(sets[1]), frozenset(sets[2])

    def outputs(self) -> tuple[OutputSpec, ...]:
        """Return what each layer hands on."""
        return tuple(_output_spec(output) for output in self._outputs)


def _output_spec(output: Any) -> OutputSpec:
    entries = output if isinstance(output, tuple) else (output,)
    specs = tuple(_tensor_spec(entry) for entry in entries)
    if specs[0] is None:
        raise UnsupportedModel("a layer's first result is not a state of shape [1, width, …]")
    return OutputSpec(not isinstance(output, tuple), specs)


def _tensor_spec(entry: Any) -> TensorSpec | None:
    """Return the spec of what belongs to the frame's tokens; the next layer does not see attention weights and the like."""
    if not isinstance(entry, torch.Tensor) or tuple(entry.shape[:2]) != (1, TRACE_WIDTH):
        return None
    return TensorSpec(entry.dtype, tuple(entry.shape[2:]))


class _MetaKernels(TorchFunctionMode):
    """Gives the meta device the kernels that real ones have.

    Attention is fused, without a matrix of scores; a grouped product of matrices takes every dtype.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, value = args[0], args[2]
            return query.new_empty(*query.shape[:-1], value.shape[-1])
        if func in (torch.nn.functional.grouped_mm, torch._grouped_mm):
            rows, experts = args[0], args[1]
            return rows.new_empty(*rows.shape[:-1], experts.shape[-1])
        return func(*args, **(kwargs or {}))


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch lacks the annotation
    """Tracks the bytes of all storages that operations make, while they live. `peak` is their largest sum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch lacks the annotation
        self.peak = 0
        self._now = 0
        self._owners: dict[int, int] = {}  # storage → tensors that share it

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given = {_storage(t) for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and (
                _storage(tensor) in self._owners or _storage(tensor) not in given
            ):
                self._add(tensor)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        key, size = _storage(tensor), tensor.untyped_storage().nbytes()
        if key not in self._owners:
            self._now += size
            self.peak = max(self.peak, self._now)
        self._owners[key] = self._owners.get(key, 0) + 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._owners[key] -= 1
        if self._owners[key] == 0:
            del self._owners[key]
            self._now -= size


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
