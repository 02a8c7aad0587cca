"""Drafting: what a drafter costs and how often its drafts are accepted, and what a chain of drafts yields.

Draft n of a chain is the n-th token guessed beyond the last committed one. The chain ends at the first draft that the
model does not choose itself; what the model chose there instead is committed too. With S(n) the chance that the first n
drafts are all accepted, a chain commits Σ_{n ≥ 0} S(n) tokens on average (Leviathan, Kalman, Matias 2023, "Fast
inference from transformers via speculative decoding", without their assumption that S(n) = αⁿ).

Chances are integers in units of 1 / ONE, rounded down, so that every host computes the same (invariant I3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

ONE = 10**12
"""A chance of one."""

MAX_CHAIN = 1024
"""Chains count as ended after so many tokens, even those of a drafter that is never wrong."""

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Drafter:
    """A way to guess tokens.

    Attributes:
        name: what a session calls it.
        token_ns: the coordinator's nanoseconds to draft one token.
        acceptance: (context in tokens from which the row holds, chances in millionths that the 1st, 2nd, … draft of a
            chain is accepted if all before it were), ascending in context, the first from 0. The last chance of a row
            holds for all deeper drafts.

    Raises:
        ValueError: the rows are not as described.

    """

    name: str
    token_ns: int
    acceptance: tuple[tuple[int, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.acceptance]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
            raise ValueError(f"drafter {self.name}: acceptance must have rows ascending in context from 0")
        if not all(
            chances and all(0 <= chance <= _MILLION for chance in chances) for _, chances in self.acceptance
        ):
            raise ValueError(
                f"drafter {self.name}: a row of acceptance is empty or has a chance outside [0, 1000000]"
            )
        if self.token_ns < 0:
            raise ValueError(f"drafter {self.name}: token_ns is {self.token_ns}, below 0")

    def chances_at(self, context: int) -> tuple[int, ...]:
        """Return the chances by depth, in millionths, that hold at a context of so many tokens."""
        return max(row for row in self.acceptance if row[0] <= context)[1]


def tokens_per_chain(chances: tuple[int, ...]) -> int:
    """Return the mean number of tokens that a chain commits, in units of 1 / ONE; from ONE to MAX_CHAIN · ONE."""
    return sum(survival(chances))


@lru_cache(maxsize=4096)
def chance_sum(chances: tuple[int, ...], step: int) -> int:
    """Return Σ_{k ≥ 1} S(k · step) in units of 1 / ONE: how many times on average a chain passes a multiple of `step`.

    Raises:
        ValueError: step is below 1.

    """
    if step < 1:
        raise ValueError(f"step is {step}, below 1")
    return sum(survival(chances)[step::step])


@lru_cache(maxsize=256)
def survival(chances: tuple[int, ...]) -> tuple[int, ...]:
    """Return S(0), S(1), … in units of 1 / ONE, as far as they are above zero, at most MAX_CHAIN of them."""
    found = [ONE]
    while len(found) < MAX_CHAIN:
        chance = chances[min(len(found), len(chances)) - 1]
        following = found[-1] * chance // _MILLION
        if not following:
            break
        found.append(following)
    return tuple(found)
