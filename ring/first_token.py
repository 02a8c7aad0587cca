"""The time to the first token as a bound: the best ring among those that keep it.

Whether there is such a ring, the search for the quickest one tells, as surely as it finds optima. Among those that keep
the bound, rings are tried that are cheapest in a weighted sum of the time of a token and that of the prompt; none is better in
both, but a better one than the best of them may be missed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ring.candidate import PENALTY, Integers, Pool, Terms
from ring.search import best_ring, cheapest_order, split, valued
from ring.split import Blocks
from ring.view import FoundRing, Loading, Region, View
from ring.worth import FirstToken, Worth

_UNIT = 1024
_WEIGHTS = (_UNIT // 64, _UNIT // 16, _UNIT // 8, _UNIT // 4, _UNIT // 2, _UNIT, 2 * _UNIT, 8 * _UNIT)
"""How much a prompt's circuit counts beside a token's, in units of 1 / _UNIT of equal shares."""


def ring_within(
    pool: Pool, worth: Worth, best: FoundRing, loading: Loading | None, limit_ns: int
) -> tuple[FoundRing | None, int]:
    """Return the best ring whose prompt has its first token within a limit, or None; and the quickest ring's time in ns.

    Args:
        pool: the hosts.
        worth: what values rings.
        best: the best ring without the limit.
        loading: what loading counts.
        limit_ns: the limit in nanoseconds.

    """
    first = worth.first_token()
    prompt = View(pool, first.width, None)
    if first_token_ns(prompt, first, best) <= limit_ns:
        return best, first_token_ns(prompt, first, best)
    quickest = best_ring(pool, first)
    if quickest is None or quickest.value > limit_ns:
        return None, 0 if quickest is None else quickest.value
    views = [View(pool, width, loading) for width in worth.widths]
    found = [quickest, *_mixed(pool, views, prompt, best, limit_ns // first.frames)]
    kept = [ring for ring in found if first_token_ns(prompt, first, ring) <= limit_ns]
    return min(
        valued(view, worth, ring.order, ring.cuts)[0] for view in views for ring in kept
    ), quickest.value


def first_token_ns(prompt: View, first: FirstToken, ring: FoundRing) -> int:
    """Return the nanoseconds to the first token in a ring; `prompt` views the pool at the prompt's frame width."""
    return first.value(first.width, *prompt.times(ring.order, ring.cuts))


def _mixed(
    pool: Pool, views: list[View], prompt: View, best: FoundRing, bottleneck_ns: int
) -> list[FoundRing]:
    """Return the rings that are cheapest in weighted sums."""
    found, known = [], [best.order]
    whole, _ = prompt.times(best.order, best.cuts)
    for view in views[:1] + views[1:][-1:]:  # the narrowest and the widest frames
        token, _ = view.times(best.order, best.cuts)
        for weight in _WEIGHTS:
            mixed = _MixedView(pool, view, prompt, max(1, weight * token // max(whole, 1)))
            order = cheapest_order(mixed, bottleneck_ns, known)
            if order is not None:
                known.append(order)
                cuts = split(mixed, order, bottleneck_ns)
                found.append(FoundRing(0, 0, len(order), order, cuts))
    return found


class _MixedView(View):
    """A pool in which a ring costs a token's circuit and a share of the prompt's; busy is who is busy with the prompt."""

    def __init__(self, pool: Pool, token: View, prompt: View, share: int) -> None:
        """`share` is what a nanosecond of the prompt's circuit counts, in units of 1 / _UNIT."""
        super().__init__(pool, token.width, None)
        self._prompt, self._share = prompt, share
        more, less = prompt.terms, token.terms
        self.terms = Terms(
            *(self._sum(less.layer, more.layer), self._sum(less.tail, more.tail)),
            *(self._sum(less.hop, more.hop), self._sum(less.back, more.back), more.wire, more.wire_back),
        )

    def _sum(self, token: Integers, prompt: Integers) -> Integers:
        total: Integers = np.minimum(token + prompt * self._share // _UNIT, PENALTY)
        return total

    def _region(self, members: tuple[int, ...]) -> Region:
        region = super()._region(members)
        busy = self._prompt.region(members).blocks.busy
        return replace(region, blocks=Blocks(region.blocks.cost, busy))
