"""What a model weighs: the one estimator of memory that planner, loader and admission share (invariant I4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockMemory:
    """Bytes that a block needs on its host.

    Attributes:
        weights: parameters and buffers as loaded, embedding (head) and norm + lm_head (tail) included.
        kv: KV cache and recurrent state of all promised sessions at full context.
        workspace: the largest transient of a forward pass or of loading, whichever is larger.

    """

    weights: int
    kv: int
    workspace: int

    @property
    def total(self) -> int:
        """Bytes in all: what is compared with a host's memory limit."""
        return self.weights + self.kv + self.workspace


_TOKEN_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model in the dtype in which it is served. All sizes are bytes.

    Attributes:
        model_id: the registry row's id.
        layer_bytes: weights of each layer; its length is the layer count.
        kv_token_bytes: KV cache per token and session of each layer.
        state_bytes: constant per-session state of each layer (0 but for recurrent layers).
        head_bytes: what the head holds beyond its layers (token embedding).
        tail_bytes: what the tail holds beyond its layers (final norm, lm_head; the embedding if tied).
        shared_end_bytes: the part counted in both head_bytes and tail_bytes that a host being head *and*
            tail holds once (the tied embedding); 0 when not tied.
        hidden_bytes: one token's activation on the wire between two stages.
        workspace_bytes: transient bytes of a forward pass at the prefill width.
        common_bytes: what every block holds beside its layers, wherever it lies (rotary tables and the like).
        replay_tokens: tokens per session whose ids and activation every block keeps, to compute them again after
            a rewind; 0 where all layers keep keys and values only.
        sealed_borders: ascending borders b (between the layers b − 1 and b) at which the model may not be cut,
            because a layer behind needs what only a layer before has.

    """

    model_id: str
    layer_bytes: tuple[int, ...]
    kv_token_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    head_bytes: int
    tail_bytes: int
    shared_end_bytes: int
    hidden_bytes: int
    workspace_bytes: int
    common_bytes: int = 0
    replay_tokens: int = 0
    sealed_borders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.layer_bytes)
        if count == 0:
            raise ValueError("layer_bytes is empty: a model has at least one layer")
        if len(self.kv_token_bytes) != count or len(self.state_bytes) != count:
            raise ValueError("layer_bytes, kv_token_bytes and state_bytes must have one entry per layer")
        if list(self.sealed_borders) != sorted({b for b in self.sealed_borders if 0 < b < count}):
            raise ValueError("sealed_borders must ascend and lie between two layers")

    @property
    def layer_count(self) -> int:
        """Number of transformer layers."""
        return len(self.layer_bytes)

    def may_cut(self, border: int) -> bool:
        """Return whether a block may begin or end at this border."""
        return border not in self.sealed_borders

    def block_around(self, layer: int) -> tuple[int, int]:
        """Return the smallest block [lo, hi) that holds a layer."""
        lo = max(border for border in range(layer + 1) if self.may_cut(border))
        hi = min(border for border in range(layer + 1, self.layer_count + 1) if self.may_cut(border))
        return lo, hi

    def block_memory(self, lo: int, hi: int, *, context: int, sessions: int) -> BlockMemory:
        """Return the memory of layers [lo, hi) serving `sessions` sessions of up to `context` tokens each.

        Raises:
            ValueError: the block does not lie in [0, layer_count), is empty or cuts the model where it may not be cut.

        """
        if not 0 <= lo < hi <= self.layer_count:
            raise ValueError(f"block [{lo}, {hi}) does not lie in [0, {self.layer_count})")
        for border in (lo, hi):
            if not self.may_cut(border):
                raise ValueError(
                    f"block [{lo}, {hi}) cuts between layers {border - 1} and {border}, which share keys and values"
                )
        head, tail = lo == 0, hi == self.layer_count
        weights = self.common_bytes + sum(self.layer_bytes[lo:hi])
        weights += self.head_bytes * head + self.tail_bytes * tail - self.shared_end_bytes * (head and tail)
        per_session = context * sum(self.kv_token_bytes[lo:hi]) + sum(self.state_bytes[lo:hi])
        per_session += min(context, self.replay_tokens) * (self.hidden_bytes + _TOKEN_ID_BYTES)
        return BlockMemory(weights, sessions * per_session, self.workspace_bytes)
