"""TokenDrafter: who guesses the tokens that a session sends ahead of the model's choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenDrafter(Protocol):
    """Guesses tokens of one session. Whatever it guesses, the output is the model's; only the speed depends on it."""

    @property
    def name(self) -> str:
        """What the session's statistics call it."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are final: first the prompt, then what is committed, in order."""
        ...

    def draft(self, pending: Sequence[int], count: int) -> Sequence[int]:
        """Return at most `count` guesses of what follows the final tokens and then `pending`.

        pending: the guesses of this drafter that have not been judged yet, in order; () where a new chain begins.
        """
        ...


class NoDrafter:
    """Guesses nothing: plain decoding, one token a traversal."""

    name = "none"

    def extend(self, tokens: Sequence[int]) -> None:
        """Nothing to learn from."""

    def draft(self, pending: Sequence[int], count: int) -> Sequence[int]:
        """Return no guess."""
        return ()
