"""StopText: lets text through until it says something that it is to stop at."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Text in pieces, given out as soon as no stop can begin in it. Where it stops depends on the text, not on the pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Stop before the first of `stops`, none of them empty, that the text says; of those that end at once, the longest."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Return what may be said now; after the stop nothing."""
        if self.stopped:
            return ""
        # One character after the other: the stop that ends first counts, however much comes at once.
        said = ""
        for character in piece if self._stops else ():
            self._held += character
            for stop in self._stops:
                if self._held.endswith(stop):
                    self.stopped = True
                    said += self._held[: -len(stop)]
                    self._held = ""
                    return said
            keep = self._may_begin()
            said += self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
        return said if self._stops else piece

    def rest(self) -> str:
        """Return what was held back, once nothing can follow any more."""
        rest, self._held = self._held, ""
        return rest

    def _may_begin(self) -> int:
        """Return the length of the longest end of what is held that begins a stop."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
