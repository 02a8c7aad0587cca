"""From the last hidden state to the tokens that the model chooses."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from runtimes.base import UnsupportedModel

ROWS = 64  # most rows whose logits exist at once: 64 × 150 k vocabulary × float32 is 38 MB


class _Given(nn.Module):
    """Takes the base model's place and returns what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.output: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output


class Tail:
    """The model's own head (projection, soft caps, scales) without its base.

    Args:
        model: the causal LM. Its parameters are shared, not copied.

    Raises:
        UnsupportedModel: the model has no base under its head.

    """

    def __init__(self, model: Any) -> None:
        prefix = model.base_model_prefix
        if prefix not in model._modules:
            raise UnsupportedModel(f"{type(model).__name__} has no part named {prefix!r} below its head")
        self.base = model._modules[prefix]
        self._given = _Given()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, prefix: self._given}

    def choose(self, output: Any) -> tuple[int, ...]:
        """Return the greedy token after each row; of equal logits the lowest id.

        The last row goes through the projection alone, as in transformers' generate: the width of a product of
        matrices may change its bits.

        Args:
            output: what the base returned, with last_hidden_state [1, w, hidden].

        """
        width = output.last_hidden_state.shape[1]
        starts = [*range(0, width - 1, ROWS), width - 1]
        chosen = [
            self.logits(output, start, end).argmax(dim=-1)
            for start, end in zip(starts, [*starts[1:], width], strict=True)
        ]
        return tuple(torch.cat(chosen).tolist())

    def logits(self, output: Any, start: int, end: int) -> torch.Tensor:
        """Return float32 logits [end − start, vocabulary] of some rows."""
        hidden = output.last_hidden_state[:, start:end]
        self._given.output = type(output)(last_hidden_state=hidden)
        try:
            logits: torch.Tensor = self._head(inputs_embeds=hidden, use_cache=False).logits
        finally:
            self._given.output = None
        return logits[0].float()
