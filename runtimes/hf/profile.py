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
from runtimes.hf.cache import BlockCache, keeps_state, state_bytes
from runtimes.hf.skeleton import Skeleton
from runtimes.hf.tail import ROWS, Tail
from runtimes.hf.tensors import OutputSpec, TensorSpec
from runtimes.hf.trail import SNAPSHOTS

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
        kv_token_bytes: keys and values, and what else grows with the context, per token of each layer.
        state_bytes: constant per session of each layer, snapshots included.
        needs_tokens: whether layers look at the token ids, so that every block needs them.
        workspace: peak of transient bytes of a prefill frame through the whole decoder or of the tail's logits.

    """

    before: frozenset[str]
    after: frozenset[str]
    everywhere: frozenset[str]
    outputs: tuple[OutputSpec, ...]
    kv_token_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    needs_tokens: bool
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
    ids = torch.zeros(1, TRACE_WIDTH, dtype=torch.long, device="meta")
    with trace, trace.descent(ids), _MetaKernels():
        output = _run(skeleton, cache, TRACE_WIDTH, ids)
        tail.logits(output, 0, 1)
    fixed = tuple(
        sum(getattr(cache.layers[index], "token_bytes", 0) for index in _cached(skeleton, layer, cache))
        for layer in range(count)
    )
    growing, constant = _states(skeleton, capacity)
    width = min(PREFILL_WIDTH, capacity)
    cache = BlockCache(skeleton.model.config, skeleton.cache_layers(0, count), capacity)
    if cache.trail is None:
        cache.rewind(capacity - width)
    elif capacity > width:
        with _MetaKernels():
            _run(skeleton, cache, capacity - width)
    with _LiveBytes() as live, _MetaKernels():
        output = _run(skeleton, cache, width)
        decoder_peak = live.peak
    with _LiveBytes() as live:
        tail.logits(output, 0, min(ROWS, width))
    before, after, everywhere = trace.parameters()
    kv = tuple(a + b for a, b in zip(fixed, growing, strict=True))
    peak = max(decoder_peak, live.peak)
    return Profile(before, after, everywhere, trace.outputs(), kv, constant, trace.needs_tokens, peak)


def _cached(skeleton: Skeleton, layer: int, cache: BlockCache) -> list[int]:
    """Return the cache entries of a layer; one without attention may have none."""
    return [index for index in skeleton.cache_layers(layer, layer + 1) if index < len(cache.layers)]


def _states(skeleton: Skeleton, capacity: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (bytes per token, constant bytes) of each layer's recurrent or compressed state, with all its snapshots.

    Seen at about half and full length: what a sliding window holds by then counts as constant.
    """
    count = len(skeleton.layers)
    seen: list[list[int]] = []
    lengths = (max(1, capacity // 2 - 1), max(2, capacity - 1))  # one short of even: buffers are fullest then
    for length in lengths:
        cache = BlockCache(skeleton.model.config, skeleton.cache_layers(0, count), capacity)
        if cache.trail is None:
            return (0,) * count, (0,) * count
        with _MetaKernels():
            _run(skeleton, cache, length)
        entries = [[cache.layers[i] for i in _cached(skeleton, n, cache)] for n in range(count)]
        seen.append([sum(state_bytes(e) for e in layer if keeps_state(e)) for layer in entries])
    steps = lengths[1] - lengths[0]
    growth = [max(0, late - early) for early, late in zip(*seen, strict=True)]
    growing = [-(-grown // steps) for grown in growth]
    constant = [
        max(0, early - grown * lengths[0] // steps) for early, grown in zip(seen[0], growth, strict=True)
    ]
    copies = SNAPSHOTS + 1
    return tuple(per * copies for per in growing), tuple(size * copies for size in constant)


def _positions(skeleton: Skeleton) -> int:
    wanted = PREFILL_WIDTH + PREFILL_PAST
    return wanted if skeleton.context is None else min(wanted, skeleton.context)


def _run(skeleton: Skeleton, cache: BlockCache, width: int, ids: torch.Tensor | None = None) -> Any:
    ids = torch.zeros(1, width, dtype=torch.long, device="meta") if ids is None else ids
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
        self._descent: _Descent | None = None
        self._beside: set[Any] = set()

    @property
    def needs_tokens(self) -> bool:
        """Whether a layer is given something beside the state that was computed from the token ids."""
        return _IDS in self._beside

    def descent(self, ids: torch.Tensor) -> _Descent:
        """Return the mode, to be entered, that follows what becomes of the token ids and of the outer parameters."""
        marks: dict[torch.Tensor, Any] = {ids: _IDS}
        marks.update((parameter, name) for name, parameter in self._skeleton.outer_parameters().items())
        self._descent = _Descent(marks)
        return self._descent

    def __enter__(self) -> None:
        layers = self._skeleton.layers
        inner = set(layers.modules())
        for module in self._skeleton.model.modules():
            if module not in inner and next(module.parameters(recurse=False), None) is not None:
                self._handles.append(module.register_forward_pre_hook(self._note))
        self._handles.append(layers[0].register_forward_pre_hook(lambda *_: self._enter(1)))
        for index, layer in enumerate(layers):
            self._handles.append(layer.register_forward_pre_hook(self._look_beside, with_kwargs=True))
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

    def _look_beside(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a layer is given beside the state: its first argument, and what the layer before returned."""
        if self._descent is None:
            return
        state = {id(args[0] if args else kwargs.get("hidden_states"))}
        state.update(id(t) for output in self._outputs for t in tree_iter(output))
        for given in tree_iter((args, kwargs)):
            if isinstance(given, torch.Tensor) and id(given) not in state:
                self._beside |= self._descent.ancestors(given)

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
            if id(parameter) in around or 1 in phases or name in self._beside:
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
    """Return the spec of what belongs to the frame's tokens; the next layer does not see attention weights and the like.

    Most states are [1, w, …]; some have another dimension before the tokens' (gemma3n: [4, 1, w, hidden]).
    """
    if not isinstance(entry, torch.Tensor):
        return None
    shape = tuple(entry.shape)
    axis = 1 if shape[:2] == (1, TRACE_WIDTH) else 2
    if shape[axis - 1 : axis + 1] != (1, TRACE_WIDTH):
        return None
    return TensorSpec(entry.dtype, shape[axis + 1 :], shape[:axis])


_IDS = object()  # the mark of what was computed from the token ids


class _Descent(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch lacks the annotation
    """Follows from which of some tensors each tensor was computed."""

    def __init__(self, marks: dict[torch.Tensor, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch lacks the annotation
        self._of = {id(tensor): frozenset({mark}) for tensor, mark in marks.items()}
        self._alive: list[torch.Tensor] = list(marks)  # an id is a tensor's own only while it lives

    def ancestors(self, tensor: torch.Tensor) -> frozenset[Any]:
        """Return the marks of the tensors that this one was computed from."""
        return self._of.get(id(tensor), frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        marks = frozenset[Any]().union(*(self.ancestors(tensor) for tensor in given))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and marks:
                self._of[id(tensor)] = self.ancestors(tensor) | marks
                self._alive.append(tensor)
        return result


class _MetaKernels(TorchFunctionMode):
    """Gives the meta device the kernels that real ones have.

    Attention is fused, without a matrix of scores; a grouped product of matrices takes every dtype. Where the model
    asks for data, which meta tensors lack, it hears that all is zero: experts that it calls one by one stay unused.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, value = args[0], args[2]
            return query.new_empty(*query.shape[:-1], value.shape[-1])
        if func in (torch.nn.functional.grouped_mm, torch._grouped_mm):
            rows, experts = args[0], args[1]
            return rows.new_empty(*rows.shape[:-1], experts.shape[-1])
        if func in (torch.nonzero, torch.Tensor.nonzero):
            return args[0].new_empty(0, args[0].ndim, dtype=torch.long)
        if func is torch.Tensor.item and args[0].is_meta:
            return 0
        if func is torch.Tensor.__bool__ and args[0].is_meta:
            return False
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
