"""Batch: which of a stage's waiting frames are computed in one forward pass.

A pass over one token costs nearly what a pass over a few does: the weights are read once for all rows. So frames of different
sessions that wait at the same time go together, which is what makes sessions side by side cheaper than one after the other.
"""

from __future__ import annotations

from collections import deque

from ring.frame import DataFrame, Frame

BATCH_ROWS = 64
"""Tokens in one pass of several frames. Wide frames gain nothing from company, and would keep narrow ones waiting."""


def take_batch(waiting: deque[Frame], rows: int = BATCH_ROWS) -> list[Frame]:
    """Take the first frame from the queue, and the data frames of other sessions that may be computed with it.

    Only data frames share a batch, at most one of each session, together of at most `rows` tokens; a first frame that is
    wider comes alone. A session's frames stay in order. Sessions take turns: what does not fit comes before what the first
    frame's session has waiting, so that a long prompt holds others up for one of its frames, and not for all. Frames
    that are no data overtake nothing, and data overtake none that could concern their session.

    Raises:
        IndexError: nothing waits.

    """
    first = waiting.popleft()
    batch = [first]
    if not isinstance(first, DataFrame):
        return batch
    room = rows - first.width
    met = {first.session}
    ahead: list[Frame] = []
    behind: list[Frame] = []
    in_turn = True  # what comes later may go ahead; not past frames that are no data, for these would never get through
    while waiting:
        frame = waiting.popleft()
        if not isinstance(frame, DataFrame):
            in_turn = False
            behind.append(frame)
        elif frame.session in met:
            behind.append(frame)
        elif frame.width <= room:
            batch.append(frame)
            room -= frame.width
        else:
            (ahead if in_turn else behind).append(frame)
        met.add(frame.session)
        if not frame.session:
            break  # it concerns every session
    waiting.extendleft(reversed(ahead + behind))
    return batch
