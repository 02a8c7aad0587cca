"""A block: layers [lo, hi) of a model, run by the model's own forward.

The model keeps its full length. Foreign layers are stubs, foreign cache entries hold only their length, and at a block
that does not begin the model the embeddings are dummies that the first stub replaces by the received state. Masks,
rotary tables, layer types, soft caps, norm and head thus come from transformers, and a layer keeps its own index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from runtimes.base import LoadProgress, ModelSource, UnsupportedModel
from runtimes.hf.cache import BlockCache
from runtimes.hf.checkpoint import Checkpoint
from runtimes.hf.device import refuses_memory
from runtimes.hf.loading import hollow_out, initialize_weights, is_hollow, load_weights
from runtimes.hf.packing import ATTENTION, PackedCache, can_pack, packed, spans
from runtimes.hf.profile import Profile
from runtimes.hf.skeleton import Skeleton
from runtimes.hf.tail import Tail
from runtimes.hf.takeover import take_over, weights_held
from runtimes.hf.tensors import LayerOutput, OutputSpec, part_of

NARROW = 32
"""Frames up to this width are decoded, not prefilled: their rows are computed as if each were alone."""


class _Passing:
    """What flows past the stubs in one forward pass: the state received, then the state produced."""

    def __init__(self) -> None:
        self.state: LayerOutput | None = None


class _Stub(nn.Module):
    """Stands for a layer that another host holds: returns the passing state, whatever it is given.

    Other attributes (attention type, index) are those of the layer that it stands for.
    """

    def __init__(self, original: nn.Module, passing: _Passing) -> None:
        super().__init__()
        # Past nn.Module's registration: the original's parameters are not the model's any more.
        self.__dict__["_original"] = original
        self.__dict__["_passing"] = passing

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"], name)

    def forward(self, *args: Any, **kwargs: Any) -> LayerOutput | None:
        state: LayerOutput | None = self.__dict__["_passing"].state
        return state


class Block:
    """Layers [lo, hi) with their weights.

    Args:
        skeleton: an uncut skeleton; it is cut in place and belongs to the block from then on.
        profile: the skeleton's.
        lo, hi: the block.
        device: where it computes.

    Attributes:
        takes: what the first layer takes from the stage before; None at the head.
        takes_ids: whether it needs the token ids: at the head, and everywhere in models whose layers look at them.
        token_wise: whether frames behind position 0 are computed token by token (see `check_chunks`).
        packs: whether frames of several sessions may go through the layers together.
        by_rows: whether a narrow frame behind position 0 goes row by row (runtimes/hf/packing.py) even when it is alone.
        gives: what the last layer hands on.
        kept: bytes of weights taken over from the block before.
        bytes_read: bytes of tensor data read from the checkpoint.

    """

    def __init__(self, skeleton: Skeleton, profile: Profile, lo: int, hi: int, device: torch.device) -> None:
        self.lo, self.hi = lo, hi
        self.skeleton = skeleton
        self.device = device
        self.kept = self.bytes_read = 0
        layers = skeleton.layers
        self.head, self.tail = lo == 0, hi == len(layers)
        self.takes: OutputSpec | None = None if self.head else profile.outputs[lo - 1]
        self.takes_ids = self.head or profile.needs_tokens
        self.token_wise = self.packs = self.by_rows = False
        self.gives = profile.outputs[hi - 1]
        self.vocab_size = skeleton.model.get_input_embeddings().num_embeddings
        self._embedding = (skeleton.model.get_input_embeddings().embedding_dim, skeleton.dtype)
        self._own = skeleton.cache_layers(lo, hi)
        self._kinds = list(
            getattr(skeleton.model.config.get_text_config(decoder=True), "layer_types", None) or ()
        )
        self._passing = _Passing()
        for index in range(len(layers)):
            if not lo <= index < hi:
                layers[index] = _Stub(layers[index], self._passing)
        layers[hi - 1].register_forward_hook(self._keep)
        hollow_out(skeleton, profile.held(head=self.head, tail=self.tail), device)
        self._tail = Tail(skeleton.model, skeleton.decoder) if self.tail else None

    def take_over(self, other: Block) -> None:
        """Hold what another block of the same model holds and this one needs: the same tensors, in the same memory."""
        self.kept = take_over(self.skeleton, weights_held(other.skeleton.model))

    def load(self, source: ModelSource, total: int, progress: Callable[[LoadProgress], None]) -> None:
        """Read the weights that were not taken over. Raises CheckpointError."""
        checkpoint = Checkpoint(source.path)
        self.bytes_read = load_weights(self.skeleton, checkpoint, self.device, self.kept, total, progress)

    def randomize(self) -> None:
        """Make up the weights of an untrained model."""
        initialize_weights(self.skeleton, self.device)

    def tensors(self) -> dict[str, int]:
        """Return name → bytes of every parameter and buffer that takes memory."""
        model = self.skeleton.model
        return {
            name: tensor.nbytes
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
            if not is_hollow(tensor)
        }

    def layers_held(self) -> tuple[int, ...]:
        """Return the indices of all layers of which a tensor takes memory."""
        return tuple(
            index
            for index, layer in enumerate(self.skeleton.layers)
            if any(not is_hollow(tensor) for tensor in [*layer.parameters(), *layer.buffers()])
        )

    def new_cache(self, context: int) -> BlockCache:
        """Return the cache of a new session of up to `context` tokens."""
        return BlockCache(self.skeleton.model.config, self._own, context)

    def forward(
        self, ids: torch.Tensor | None, state: LayerOutput | None, width: int, cache: BlockCache
    ) -> Any:
        """Run a frame that follows what the cache holds.

        Args:
            ids: [1, w] int64 where `takes_ids`, else None.
            state: what the stage before has produced; None at the head.
            width: w.
            cache: the session's, rewound to the frame's position; advanced by w when all has gone well.

        Returns:
            The last layer's output; at the tail the decoder's, for `choose`.

        """
        if self.by_rows and cache.length > 0 and width <= NARROW:
            return self.run_packed([(ids, state, width, cache)])[0]
        if cache.trail is not None:
            cache.trail.step(cache.length, ids, state, width)
        if not self.token_wise or cache.length == 0 or width == 1:
            return self.run(ids, state, width, cache)
        outputs = [
            self.run(None if ids is None else ids[:, i : i + 1], part_of(state, slice(i, i + 1)), 1, cache)
            for i in range(width)
        ]
        return _joined(outputs)

    def rewind(self, cache: BlockCache, position: int) -> None:
        """Bring a session's cache back to a position that it has passed. Raises FrameOutOfOrder."""
        replay = cache.rewind(position)
        if replay is not None:
            self.forward(replay.ids, replay.state, replay.width, cache)

    def check_chunks(self) -> None:
        """Find out whether a frame that continues a recurrent state gives what its tokens give one by one.

        It does not for every architecture (Jamba in transformers 5.24 begins anew); those are computed token by token.

        Raises:
            UnsupportedModel: sessions side by side disturb each other.

        """
        width, first = 6, 2
        if self.new_cache(width).trail is None:
            return
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(self.vocab_size, (1, width), generator=generator).to(self.device)
        state = None if self.takes is None else self.takes.random(width, generator, self.device)

        def run(widths: Sequence[int], beside: BlockCache | None = None) -> torch.Tensor:
            cache, outputs = self.new_cache(width), []
            for size in widths:
                part = slice(cache.length, cache.length + size)
                given = ids[:, part] if self.takes_ids else None
                outputs.append(self.run(given, part_of(state, part), size, cache))
                if beside is not None:
                    self.run(given, part_of(state, part), size, beside)
            return first_tensor(_joined(outputs)).float()

        beside = self.new_cache(width + 1)
        name = type(self.skeleton.model).__name__
        try:
            one_by_one, chunked = run([1] * width), run([first, width - first])
            self.run(ids[:, :1] if self.takes_ids else None, part_of(state, slice(0, 1)), 1, beside)
            undisturbed = torch.equal(run([1] * width, beside), one_by_one)
        except Exception as error:
            if refuses_memory(error):
                raise
            raise UnsupportedModel(
                f"{name} does not run in pieces: {type(error).__name__}: {error}"
            ) from error
        if not undisturbed:
            raise UnsupportedModel(
                f"{name} keeps its past in the model itself: sessions would disturb each other"
            )
        scale = float(one_by_one.abs().max())
        off = float((one_by_one - chunked).abs().max())
        self.token_wise = not off <= (1e-3 if self.skeleton.dtype.itemsize > 2 else 5e-2) * scale

    def run(self, ids: torch.Tensor | None, state: LayerOutput | None, width: int, cache: BlockCache) -> Any:
        """Run a frame in one pass; arguments and result are those of `forward`."""
        positions = torch.arange(cache.length, cache.length + width, device=self.device)[None]
        produced = self._pass(ids, state, positions, cache)
        cache.advance(width)
        return produced

    def run_packed(
        self, frames: Sequence[tuple[torch.Tensor | None, LayerOutput | None, int, BlockCache]]
    ) -> list[Any]:
        """Run frames (arguments of `forward`) of different sessions in one pass, attention row by row.

        Every frame must follow something: sessions' first frames are run alone.
        """
        ids, states, widths, caches = zip(*frames, strict=True)
        positions = torch.cat(
            [
                torch.arange(cache.length, cache.length + width)
                for width, cache in zip(widths, caches, strict=True)
            ]
        )[None].to(self.device)
        together = PackedCache(caches, list(widths), self._kinds)
        with packed(together):
            output = self._pass(
                torch.cat(ids, dim=1) if self.takes_ids else None, _joined(states), positions, together
            )
        for width, cache in zip(widths, caches, strict=True):
            cache.advance(width)
        return [_rows_of(output, span) for span in spans(widths)]

    def adopt_rows(self) -> bool:
        """Let attention go row by row inside a packed pass; False if the model's attention is not sdpa of keys and values."""
        model = self.skeleton.model
        if model.config._attn_implementation != "sdpa" or not can_pack(self.new_cache(1)):
            return False
        if self.takes is not None and any(entry and entry.lead != (1,) for entry in self.takes.entries):
            return False
        model.set_attn_implementation(ATTENTION)
        return True

    def forget_rows(self) -> None:
        """Go back to transformers' own attention."""
        self.skeleton.model.set_attn_implementation("sdpa")

    def _pass(
        self, ids: torch.Tensor | None, state: LayerOutput | None, positions: torch.Tensor, cache: Any
    ) -> Any:
        size, dtype = self._embedding
        given = (
            {"input_ids": ids}
            if self.takes_ids
            else {"inputs_embeds": torch.zeros(1, positions.shape[1], size, dtype=dtype, device=self.device)}
        )
        self._passing.state = state
        try:
            output = self.skeleton.decoder(
                position_ids=positions, use_cache=True, **{self.skeleton.cache_keyword: cache}, **given
            )
            return output if self._tail else self._passing.state
        finally:
            self._passing.state = None

    def choose(self, output: Any) -> tuple[int, ...]:
        """Return the greedy tokens of a tail's output."""
        if self._tail is None:
            raise AssertionError("only a tail chooses tokens")
        return self._tail.choose(output)

    def logits(self, output: Any, start: int = 0) -> torch.Tensor:
        """Return the float32 logits [w − start, vocabulary] of a tail's output from a row on."""
        if self._tail is None:
            raise AssertionError("only a tail has logits")
        return self._tail.logits(output, start, output.last_hidden_state.shape[1])

    def _keep(self, _module: nn.Module, _inputs: Any, output: LayerOutput) -> None:
        self._passing.state = output


def first_tensor(output: Any) -> torch.Tensor:
    """Return the first tensor of what `forward` returned."""
    if isinstance(output, torch.Tensor):
        return output
    first: torch.Tensor = output[0] if isinstance(output, tuple) else output.last_hidden_state
    return first


def _rows_of(output: Any, rows: slice) -> Any:
    """Return some rows of what a pass has returned."""
    if isinstance(output, torch.Tensor | tuple):
        return part_of(output, rows)
    return type(output)(last_hidden_state=output.last_hidden_state[:, rows])


def _joined(outputs: Sequence[Any]) -> Any:
    """Return the outputs of consecutive frames as that of one."""
    first = outputs[0]
    if first is None or len(outputs) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(outputs), dim=1)
    if isinstance(first, tuple):
        return tuple(
            torch.cat(entries, dim=1) if isinstance(entries[0], torch.Tensor) else entries[-1]
            for entries in zip(*outputs, strict=True)
        )
    return type(first)(last_hidden_state=torch.cat([output.last_hidden_state for output in outputs], dim=1))
