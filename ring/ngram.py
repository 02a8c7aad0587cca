"""NgramDrafter: guesses that the text goes on as it went on after its latest words the last time.

Prompt lookup (Saxena 2023; Yang et al. 2023, "Inference with Reference"), with the longest match of any length found by a
suffix automaton: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; built online, in time
and memory linear in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

_REMEMBERED = 8  # states on the suffix path whose latest occurrence is kept up to date


class SuffixAutomaton:
    """All substrings of a growing sequence. State 0 is the empty string."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # index behind the latest occurrence known of the state's strings
        self._earlier = [0]  # the same of the occurrence before that; 0: none is known
        self._last = 0

    def append(self, token: int) -> None:
        """Add a token at the end."""
        self.tokens.append(token)
        current = self._state({}, self._length[self._last] + 1, len(self.tokens))
        before = self._last
        while before != -1 and token not in self._next[before]:
            self._next[before][token] = current
            before = self._link[before]
        self._link[current] = 0 if before == -1 else self._suffix(before, token)
        self._last = current
        self._remember()

    def matches(self, limit: int) -> list[tuple[int, int]]:
        """Return the longest suffixes of the sequence that occur earlier in it, longest first, at most `limit` ≤ 8.

        Each is (length, index of the token that followed its latest known earlier occurrence).
        """
        found: list[tuple[int, int]] = []
        state = self._link[self._last]
        while state > 0 and len(found) < min(limit, _REMEMBERED):
            found.append((self._length[state], self._earlier[state]))
            state = self._link[state]
        return found

    def _suffix(self, before: int, token: int) -> int:
        """Return the state of the longest suffix that occurs elsewhere too; split it off a longer one if need be."""
        other = self._next[before][token]
        if self._length[other] == self._length[before] + 1:
            return other
        clone = self._state(dict(self._next[other]), self._length[before] + 1, self._end[other])
        self._link[clone] = self._link[other]
        self._link[other] = clone
        while before != -1 and self._next[before].get(token) == other:
            self._next[before][token] = clone
            before = self._link[before]
        return clone

    def _remember(self) -> None:
        state = self._link[self._last]
        for _ in range(_REMEMBERED):
            if state <= 0:
                return
            self._earlier[state], self._end[state] = self._end[state], len(self.tokens)
            state = self._link[state]

    def _state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._end.append(end)
        self._earlier.append(0)
        return len(self._next) - 1


class NgramDrafter:
    """Copies what followed the latest earlier occurrence of the longest suffix; see ring.drafter.TokenDrafter.

    Args:
        least: shortest suffix that counts as a match, in tokens.

    """

    name = "ngram"

    def __init__(self, least: int = 2) -> None:
        self._text = SuffixAutomaton()
        self._least = least
        self._cursor: int | None = (
            None  # index of the token to copy next, in the text and the pending guesses
        )

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in tokens that are final."""
        for token in tokens:
            self._text.append(token)

    def draft(self, pending: Sequence[int], count: int) -> Sequence[int]:
        """Return the next `count` tokens behind the match, or none if there is no match.

        A copy that reaches the end of the text goes on with what it has copied: a loop goes on for ever.
        """
        if not pending:
            self._cursor = next((end for length, end in self._text.matches(1) if length >= self._least), None)
        if self._cursor is None:
            return ()
        text, ahead = self._text.tokens, list(pending)
        begin = len(ahead)
        for _ in range(count):
            at, self._cursor = self._cursor, self._cursor + 1
            ahead.append(text[at] if at < len(text) else ahead[at - len(text)])
        return ahead[begin:]
