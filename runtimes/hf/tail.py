"""From the last hidden state to the tokens that the model chooses."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from runtimes.base import UnsupportedModel

ROWS = 64  # most rows whose logits exist at once: 64 × 150 k vocabulary × float32 is 38 MB


class _Given(nn.Module):
    """Takes the decoder's place and returns what it is told to; other attributes are the decoder's."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.output: Any = None
        self.__dict__["_decoder"] = decoder  # past nn.Module's registration

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_decoder"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output


class Tail:
    """The model's own head (projection, soft caps, scales) without its decoder.

    Args:
        model: the causal LM, and the decoder in it. Its parameters are shared, not copied.

    Raises:
        UnsupportedModel: the model is nothing but a decoder.

    """

    def __init__(self, model: Any, decoder: Any) -> None:
        path = next(name for name, module in model.named_modules() if module is decoder)
        if not path:
            raise UnsupportedModel(f"{type(model).__name__} has no head above its decoder")
        self._given = _Given(decoder)
        self._head = _with(model, path.split("."), self._given)

    def choose(self, output: Any) -> tuple[int, ...]:
        """Return the greedy token after each row; of equal logits the lowest id.

        Args:
            output: what the decoder returned, with last_hidden_state [1, w, hidden].

        """
        width = output.last_hidden_state.shape[1]
        chosen = [
            self.logits(output, start, min(start + ROWS, width)).argmax(dim=-1)
            for start in range(0, width, ROWS)
        ]
        return tuple(torch.cat(chosen).tolist())

    def logits(self, output: Any, start: int, end: int) -> torch.Tensor:
        """Return float32 logits [end − start, vocabulary] of some rows."""
        hidden = output.last_hidden_state[:, start:end]
        if end - start == 1:  # one row alone may take another kernel than two: other bits
            hidden = hidden.expand(1, 2, -1).contiguous()
        self._given.output = type(output)(last_hidden_state=hidden)
        try:
            logits: torch.Tensor = self._head(inputs_embeds=hidden, use_cache=False).logits
        finally:
            self._given.output = None
        return logits[0, : end - start].float()


def _with(module: Any, path: list[str], replacement: nn.Module) -> Any:
    """Return a copy of `module` with another submodule at `path`; everything beside the path is shared."""
    if not path:
        return replacement
    twin = copy.copy(module)
    twin._modules = {**module._modules, path[0]: _with(module._modules[path[0]], path[1:], replacement)}
    return twin
