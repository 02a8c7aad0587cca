"""Pace: how a session should use a ring: which drafter, how wide a frame, how many frames in flight, and what comes of it.

A session sends a frame of w tokens: one that is known and w - 1 drafts, or, behind a frame that is still under way, w
drafts. At most D frames are under way. The first draft that the model does not choose itself makes all later frames
worthless; the session learns of it when the frame before the wrong token returns, and starts a new chain there. With

    δ  nanoseconds to draft one token,   s = max(τ, w · δ)  the distance of two frames in a full pipeline,
    g = max(T - (D - 1) · s, s)          the distance of frame k · D from the one before, whose place it waits for,
    S(n)                                 the chance that the first n drafts of a chain are accepted (ring/drafting.py),

the frame that ends a chain is number f = ⌊(N - 1) / w⌋ (N the first wrong draft), so frame j is reached with the chance
S(j · w), and a chain takes on average

    (w - 1) · δ  +  T  +  s · Σ_k S(k·w)  +  (g - s) · Σ_k S(k·D·w)  +  drain        and commits Σ_n S(n) tokens.

drain = max(0, n · s + τ - T - (w - 1) · δ) is what the new chain's first frame waits for n worthless ones before the slowest
part: 0 while D · s ≤ T. n = D - 1, or fewer where the drafter cannot fill the pipe: min(D - 1, ⌊T / s⌋) if w · δ > τ. So more frames than T / s buy nothing, and cost the wait
for what was sent too much. One frame of one token at a time, without a drafter, gives 1 / T: plain decoding. A ring that
discards worthless frames uncomputed is faster than this only where D · s > T, which the best pace avoids.

Among B sessions at once each has its own pace, until the slowest part is busy all the time: a chain occupies it for
(Σ_k S(k·w) + 1 + n) · τ, the worthless frames included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ring.drafting import ONE, Drafter, chance_sum, tokens_per_chain
from ring.throughput import NS_PER_SECOND

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Frame widths that are considered."""

MAX_FRAMES = 64
"""Most frames of a session under way."""

_PS_PER_NS = 1_000
_PS_PER_SECOND = _PS_PER_NS * NS_PER_SECOND


@dataclass(frozen=True, slots=True, order=True)
class Pace:
    """A way of using a ring; the smaller one is the better one, at equal times the simpler one.

    Attributes:
        token_ps: mean picoseconds between two committed tokens of all sessions together.
        width: tokens in a frame.
        frames: most frames of a session under way.
        drafter: whose drafts fill them; "" for plain decoding.

    """

    token_ps: int
    width: int
    frames: int
    drafter: str

    @property
    def millitok_s(self) -> int:
        """Thousandths of tokens per second."""
        return millitokens_per_second(self.token_ps)


def millitokens_per_second(token_ps: int) -> int:
    """Return thousandths of tokens per second for picoseconds per token."""
    return 1_000 * _PS_PER_SECOND // max(token_ps, 1)


def best_pace(
    circuit_ns: Callable[[int], int],
    bottleneck_ns: Callable[[int], int],
    drafters: Sequence[Drafter] = (),
    *,
    context: int = 0,
    sessions: int = 1,
) -> Pace:
    """Return the fastest way for `sessions` sessions to use a ring.

    Args:
        circuit_ns: T by frame width.
        bottleneck_ns: τ by frame width.
        drafters: those that may be used; plain decoding always may.
        context: tokens in the sessions' context, by which the chances of acceptance are looked up.
        sessions: how many sessions run at once.

    """
    plain = pace_at(1, circuit_ns(1), bottleneck_ns(1), None, context=context, sessions=sessions)
    drafted = (
        pace_at(width, circuit_ns(width), bottleneck_ns(width), drafter, context=context, sessions=sessions)
        for drafter in drafters
        for width in WIDTHS
    )
    return min([plain, *drafted])


def pace_at(
    width: int, circuit_ns: int, bottleneck_ns: int, drafter: Drafter | None, *, context: int, sessions: int
) -> Pace:
    """Return the fastest way that uses frames of `width` tokens; without a drafter, of one token."""
    chances: tuple[int, ...] = (0,)
    draft_ns, name = 0, ""
    if drafter is not None:
        chances, draft_ns, name = drafter.chances_at(context), drafter.token_ns, drafter.name
    apart = max(bottleneck_ns, width * draft_ns, 1)
    depths = _depths(circuit_ns // apart, sessions) if drafter is not None else iter((1,))
    return min(
        Pace(
            token_ps(
                width,
                frames,
                circuit_ns,
                bottleneck_ns,
                draft_ns=draft_ns,
                chances=chances,
                sessions=sessions,
            ),
            width,
            frames,
            name,
        )
        for frames in depths
    )


def token_ps(
    width: int,
    frames: int,
    circuit_ns: int,
    bottleneck_ns: int,
    *,
    draft_ns: int,
    chances: tuple[int, ...],
    sessions: int,
) -> int:
    """Return the mean picoseconds between two committed tokens of all sessions (formula: see the module).

    Args:
        width: tokens in a frame.
        frames: most frames of a session under way.
        circuit_ns: T at this width.
        bottleneck_ns: τ at this width.
        draft_ns: nanoseconds to draft one token.
        chances: chances of acceptance by depth, in millionths (ring/drafting.py).
        sessions: how many sessions run at once.

    """
    apart = max(bottleneck_ns, width * draft_ns)
    waiting = max(circuit_ns - (frames - 1) * apart, apart)
    worthless = frames - 1 if width * draft_ns <= bottleneck_ns else min(frames - 1, circuit_ns // apart)
    first = (width - 1) * draft_ns
    drain = max(0, worthless * apart + bottleneck_ns - circuit_ns - first)
    passed = chance_sum(chances, width)
    chain_ns = (circuit_ns + first + drain) * ONE  # in units of ns / ONE, like the two below
    chain_ns += apart * passed + (waiting - apart) * chance_sum(chances, width * frames)
    busy_ns = bottleneck_ns * (passed + (1 + worthless) * ONE)
    return (
        max(-(-chain_ns // sessions), busy_ns if sessions > 1 else 0)
        * _PS_PER_NS
        // tokens_per_chain(chances)
    )


def _depths(in_flight: int, sessions: int) -> Iterator[int]:
    """Yield the numbers of frames under way among which the best one is, if so many fit into a circuit.

    One session gains from each frame up to T / s and loses from each beyond, so that only the two around T / s count;
    among several sessions the worthless frames of one slow the others, and all count.
    """
    least = 1 if sessions > 1 else max(1, min(in_flight, MAX_FRAMES))
    return iter(range(least, min(in_flight + 1, MAX_FRAMES) + 1))
