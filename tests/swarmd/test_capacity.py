from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from registry.shape import ModelShape
from swarmd.capacity import capacity


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    count = draw(st.integers(1, 7))
    sizes = st.lists(st.integers(0, 9), min_size=count, max_size=count).map(tuple)
    ends = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    sealed = draw(st.sets(st.integers(1, count - 1), max_size=3)) if count > 1 else set()
    return ModelShape(
        "m",
        draw(sizes),
        draw(sizes),
        draw(sizes),
        *ends,
        shared_end_bytes=min(ends),
        hidden_bytes=1,
        workspace_bytes=draw(st.integers(0, 5)),
        sealed_borders=tuple(sorted(sealed)),
    )


@given(shapes(), st.integers(0, 80))
def test_what_is_said_to_fit_fits_and_nothing_larger_does(shape: ModelShape, limit: int) -> None:
    found = capacity(shape, limit, context=2, sessions=2)
    count = shape.layer_count
    kinds = {
        "head": [(0, hi) for hi in range(1, count)],
        "middle": [(lo, hi) for lo in range(1, count) for hi in range(lo + 1, count)],
        "tail": [(lo, count) for lo in range(1, count)],
    }
    for kind, blocks in kinds.items():
        holding = getattr(found, kind)
        legal = [block for block in blocks if shape.may_cut(block[0]) and shape.may_cut(block[1])]
        takes = {block: shape.block_memory(*block, context=2, sessions=2) for block in legal}
        fitting = [block for block, memory in takes.items() if memory.total <= limit]
        assert holding.layers == max((hi - lo for lo, hi in fitting), default=0)
        if fitting:
            assert holding.memory == takes[holding.lo, holding.hi]
    assert found.whole_fits == (found.whole.total <= limit)
