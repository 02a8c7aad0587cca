"""DepthSchedule: how many frames a session keeps under way, by how often its drafts were right of late.

Only the number of frames follows the confidence; what is in a frame, and so the output, does not depend on it.
"""

from __future__ import annotations

import math

_WEIGHT = 0.5  # of the newest frame: three frames bring the confidence within an eighth of a new truth
_FIRST = 0.9  # before anything is known: frames sent in vain cost a session that is alone little
_REACHED = 0.1  # a frame is sent if the chance that it is reached is at least this


class DepthSchedule:
    """The confidence is an exponential moving average over frames of the share of judged drafts that were right.

    Args:
        width: most tokens in a frame.
        window: most frames under way.

    """

    def __init__(self, width: int, window: int) -> None:
        self.confidence = _FIRST
        self._width = width
        self._window = window

    def judged(self, drafts: int, accepted: int) -> None:
        """Take in one frame's judgement: of `drafts` judged ones `accepted` were right. No drafts say nothing."""
        if drafts:
            self.confidence += _WEIGHT * (accepted / drafts - self.confidence)

    @property
    def depth(self) -> int:
        """Return the most frames to have under way, from 1 to the window.

        Frame d of a chain is reached if (d - 1) · width drafts are right: with chance confidence^((d - 1) · width).
        """
        if self.confidence <= 0.0:
            return 1
        if self.confidence >= 1.0:
            return self._window
        ahead = math.log(_REACHED) / (self._width * math.log(self.confidence))
        return min(self._window, 1 + int(ahead))
