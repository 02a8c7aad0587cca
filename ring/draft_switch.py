"""DraftSwitch: turns a drafter off while it does not pay, by what plain and drafted frames were measured to take.

A drafted frame is wider than a plain one, and a slow host may lose by it more than the accepted drafts gain. Neither costs
are guessed here nor acceptance: seconds and committed tokens of both kinds of frames are counted, and the better kind is used.
"""

from __future__ import annotations

_TRIAL = 8  # answers from which a kind of frame is judged
_FIRST_REST = (
    16  # plain answers before the drafter is tried again; doubled each time that it does not pay again
)
_LONGEST_REST = 512
_DOUBTFUL = 0.5  # below this confidence it is worth a trial's time to learn what plain frames take
_PROMISING = 0.75  # a drafter that was doubtful and has come so far in the meantime is used at once
_MARGIN = 0.95  # what plain frames must take less: a difference within the noise changes nothing
_FADING = 0.9  # what an answer counts when the next one of its kind comes


class _Pace:
    """Seconds and tokens of one kind of frames, older answers fading."""

    def __init__(self) -> None:
        self.answers = 0
        self._seconds = self._tokens = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.answers += 1
        self._seconds = _FADING * self._seconds + seconds
        self._tokens = _FADING * self._tokens + tokens

    @property
    def token_seconds(self) -> float | None:
        """Seconds for one token; None while too few answers are known."""
        return self._seconds / self._tokens if self.answers >= _TRIAL and self._tokens else None


class DraftSwitch:
    """Starts on. Goes off for a rest when plain frames were measured to be faster; after it the drafter is tried anew.

    A session goes on comparing the drafter's guesses with what is committed, and ends the rest when they become right.
    """

    def __init__(self) -> None:
        self.on = True
        self._drafted = _Pace()
        self._plain = _Pace()
        self._rest = _FIRST_REST
        self._rested = 0
        self._doubted = False

    def answered(self, drafted: bool, tokens: int, seconds: float, confidence: float) -> None:
        """Take in an answer in decoding.

        Args:
            drafted: whether its frame held drafts.
            tokens: how many tokens it committed.
            seconds: since the answer before it.
            confidence: the share of right drafts of late (see ring.depth).

        """
        (self._drafted if drafted else self._plain).add(tokens, seconds)
        if self.on:
            self._judge(confidence)
        elif not drafted:
            self._rested += 1
            rest = _TRIAL if self._plain.answers <= _TRIAL else self._rest
            if self._rested >= rest or (self._doubted and confidence >= _PROMISING):
                self.on = True
                self._drafted = _Pace()

    def _judge(self, confidence: float) -> None:
        with_drafts, without = self._drafted.token_seconds, self._plain.token_seconds
        if with_drafts is None:
            return
        if without is None:
            if confidence < _DOUBTFUL:
                self._switch_off(confidence)
        elif with_drafts * _MARGIN > without:
            self._switch_off(confidence)
            self._rest = min(2 * self._rest, _LONGEST_REST)
        else:
            self._rest = _FIRST_REST

    def _switch_off(self, confidence: float) -> None:
        self.on = False
        self._doubted = confidence < _DOUBTFUL
        self._rested = 0
