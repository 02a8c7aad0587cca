"""Capacity: how much of a model one host could hold, by the estimator that the planner uses."""

from __future__ import annotations

from dataclasses import dataclass

from registry.shape import BlockMemory, ModelShape


@dataclass(frozen=True, slots=True)
class Holding:
    """The largest block of one kind that fits: layers [lo, hi), none if lo = hi; and what it takes."""

    lo: int
    hi: int
    memory: BlockMemory

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.hi - self.lo


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits on a host: as a ring's head, between the ends, as its tail; and whether all of it does."""

    head: Holding
    middle: Holding
    tail: Holding
    whole: BlockMemory
    whole_fits: bool


def capacity(shape: ModelShape, limit: int, *, context: int, sessions: int) -> Capacity:
    """Return what fits into `limit` bytes with `sessions` sessions of `context` tokens each.

    A head or tail has at most all layers but one, since with all it would be the whole; a model of
    one layer has neither head, middle nor tail.
    """

    def memory(lo: int, hi: int) -> BlockMemory:
        return shape.block_memory(lo, hi, context=context, sessions=sessions)

    def largest(starts: list[int], ends: list[int]) -> Holding:
        found = Holding(0, 0, BlockMemory(0, 0, 0))
        for lo in starts:
            for hi in ends:
                if hi - lo > found.layers and (takes := memory(lo, hi)).total <= limit:
                    found = Holding(lo, hi, takes)
        return found

    count = shape.layer_count
    borders = [border for border in range(count + 1) if shape.may_cut(border)]
    inner = borders[1:-1]
    whole = memory(0, count)
    return Capacity(
        largest([0], inner), largest(inner, inner), largest(inner, [count]), whole, whole.total <= limit
    )
