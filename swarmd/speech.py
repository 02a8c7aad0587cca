"""Speech: the text of a generation, from its tokens, up to where it is to stop."""

from __future__ import annotations

from collections.abc import Sequence

from ring.stop_text import StopText
from runtimes.tokenizer import TextStream


class Speech:
    """Takes every committed token once, in order; gives out the text that they complete."""

    def __init__(self, text: TextStream, stops: Sequence[str]) -> None:
        self._text = text
        self._stop = StopText(stops)
        self._said = ""

    def ends(self, token: int) -> bool:
        """Take a token, and return whether the text stops with it. Raises runtimes.tokenizer.TokenizerError."""
        self._said += self._stop.push(self._text.push((token,)))
        return self._stop.stopped

    def take(self) -> str:
        """Return the text since the last call."""
        said, self._said = self._said, ""
        return said

    def rest(self) -> str:
        """Return what was held back, once the generation has ended."""
        return self.take() + self._stop.rest()
