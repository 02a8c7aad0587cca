"""Session: the coordinator's side of one generation, without I/O: events in, actions out.

States: opening → prefilling → decoding → finishing → done, and from each of the first four → failed. Prefill chunks are
kept in flight up to a window. Then frames carry the token committed last and what a drafter guesses to follow it; as
many are under way as its guesses have earned. The answer that reveals a wrong guess starts a new epoch at once.
docs/data-plane.md has the table of states and events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ring.depth import DepthSchedule
from ring.draft_switch import DraftSwitch
from ring.drafter import NoDrafter, TokenDrafter
from ring.frame import CloseFrame, DataFrame, FinishFrame, Frame, OpenFrame, one_line
from ring.receipts import Receipt, TokenFrame
from ring.session_spec import SessionSpec
from ring.session_stats import SessionStats, SpeculationTally

FinishReason = Literal["stop", "length"]


class State(Enum):
    """Where a session stands."""

    OPENING = "opening"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHING = "finishing"
    DONE = "done"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.OPENING: frozenset({State.PREFILLING, State.FAILED}),
        State.PREFILLING: frozenset({State.DECODING, State.FINISHING, State.FAILED}),
        State.DECODING: frozenset({State.FINISHING, State.FAILED}),
        State.FINISHING: frozenset({State.DONE, State.FAILED}),
        State.DONE: frozenset(),
        State.FAILED: frozenset(),
    }
)
"""Every state's possible next states."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give the frame to the head of the ring, in order."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Commit:
    """The next tokens of the result: final, in order, each exactly once."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is complete.

    Attributes:
        reason: "stop" after an end token or where the text was to stop, "length" at max_tokens or the end of the context.
        receipts: what the finish frame brought back, not verified.
        frames: what went into the head and what the tail chose, in order: what the receipts are bound to.
        stats: see SessionStats.

    """

    reason: FinishReason
    receipts: tuple[Receipt, ...]
    frames: tuple[TokenFrame, ...]
    stats: SessionStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation has ended without its end. code: see ring.generation.ERRORS; stage: PeerId to blame, or ""."""

    code: str
    message: str
    stage: str
    stats: SessionStats


Action = Send | Commit | Finished | Failed


class _Draft(NamedTuple):
    """A guess that has not been judged. distance: how far beyond the last committed token it lay when it was made."""

    token: int
    distance: int


class Session:
    """One generation. Every method returns the actions to carry out, in order; `now` is a monotonic clock in seconds.

    After Finished or Failed every event is ignored.
    """

    def __init__(
        self,
        spec: SessionSpec,
        now: float,
        drafter: TokenDrafter | None = None,
        ends: Callable[[int], bool] | None = None,
    ) -> None:
        """Make a session in state OPENING; nothing is sent before start().

        drafter: without one it decodes plainly. ends: is told every committed token once, in order; if it says True, the
        generation stops with that token.
        """
        self.spec = spec
        self.state = State.OPENING
        self.epoch = 0
        self._began = self._progress = now
        self._first_token: float | None = None
        self._tokens = list(spec.prompt)
        self._sent = 0
        self._in_flight: deque[DataFrame] = deque()
        self._frames: list[TokenFrame] = []
        self._drafter: TokenDrafter = drafter or NoDrafter()
        self._drafts: deque[_Draft] = deque()
        self._schedule = DepthSchedule(spec.draft_tokens + 1, spec.window)
        self._tally = SpeculationTally(self._drafter.name)
        self._switch = DraftSwitch()
        self._ends = ends
        self._stopped = False
        self._unsent: tuple[int, ...] = ()  # what the drafter would have guessed, had it been on
        self._answered = now
        self._traversals = 0
        self._reason: FinishReason = "length"

    @property
    def committed(self) -> tuple[int, ...]:
        """The generated tokens so far."""
        return tuple(self._tokens[len(self.spec.prompt) :])

    @property
    def over(self) -> bool:
        """Whether the session is done or failed."""
        return not TRANSITIONS[self.state]

    @property
    def deadline(self) -> float:
        """When tick() will fail the session unless there is progress before."""
        return self._progress + self.spec.progress_seconds

    def start(self, now: float) -> list[Action]:
        """Open the session on all stages and send the first prefill frames."""
        self._progress = now
        self._enter(State.PREFILLING)
        spec = self.spec
        self._drafter.extend(spec.prompt)
        opening = OpenFrame(spec.id, spec.plan, spec.nonce, len(spec.prompt), spec.limit, spec.sampling)
        return [Send(opening), *self._send_waiting()]

    def verified(self, epoch: int, position: int, tokens: Sequence[int], now: float) -> list[Action]:
        """Take what the tail chose for one frame.

        Frames of an epoch that is over and frames that have been taken already are ignored; one that answers what has not
        been asked fails the session as "ring_fault".
        """
        if self.state not in (State.PREFILLING, State.DECODING) or epoch < self.epoch:
            return []
        asked = self._in_flight[0]
        if epoch == self.epoch and position < asked.position:
            return []
        if (epoch, position, len(tokens)) != (self.epoch, asked.position, asked.width):
            return self._fail(
                "ring_fault",
                f"the tail answered {len(tokens)} tokens at {position} of epoch {epoch}, "
                f"but was asked for {asked.width} at {asked.position} of epoch {self.epoch}",
                now,
            )
        for token in tokens:
            if not 0 <= token < self.spec.vocab:
                return self._fail(
                    "ring_fault", f"the tail chose token {token}, not in [0, {self.spec.vocab})", now
                )
        return self._take(self._in_flight.popleft(), tuple(tokens), now)

    def receipts(self, receipts: Sequence[Receipt], now: float) -> list[Action]:
        """Take the receipts that the finish frame brought back; they end the session."""
        if self.state is not State.FINISHING:
            return []
        self._enter(State.DONE)
        return [Finished(self._reason, tuple(receipts), tuple(self._frames), self._stats(now))]

    def failed(self, code: str, message: str, stage: str, now: float) -> list[Action]:
        """End the session because a stage (PeerId, or "" if none is to blame) or the ring failed."""
        return [] if self.over else self._fail(code, message, now, stage)

    def cancel(self, reason: str, now: float) -> list[Action]:
        """End the session because nobody wants its result any more."""
        return [] if self.over else self._fail("cancelled", reason, now)

    def tick(self, now: float) -> list[Action]:
        """Fail the session if its deadline has passed."""
        if self.over or now < self.deadline:
            return []
        return self._fail(
            "stalled", f"no progress for {self.spec.progress_seconds:g} s while {self.state.value}", now
        )

    def _take(self, frame: DataFrame, chosen: tuple[int, ...], now: float) -> list[Action]:
        """Commit what a frame's answer makes final; then fill the ring again, or end."""
        self._progress = now
        seconds, self._answered = now - self._answered, now
        self._frames.append(TokenFrame(frame.position, frame.tokens or (), chosen))
        known = len(self._tokens)
        wrong = self._judge(chosen[known - frame.position - 1 :])
        fresh = tuple(self._tokens[known:])
        if not fresh:
            return self._send_waiting()
        if self._first_token is None:
            self._first_token = now
        self._traversals += 1
        self._drafter.extend(fresh)
        if (reason := self._ended()) is not None:
            return [Commit(fresh), *self._finish(reason)]
        if self._unsent:
            self._schedule.judged(1, self._unsent[0] == fresh[0])
            self._unsent = ()
        if self.state is State.PREFILLING:
            self._enter(State.DECODING)
        else:
            self._switch.answered(frame.width > 1 or wrong, len(fresh), seconds, self._schedule.confidence)
        if wrong:
            self._fence_off()
        return [Commit(fresh), *self._send_waiting()]

    def _judge(self, chosen: Sequence[int]) -> bool:
        """Commit the model's choices up to the first that was drafted otherwise; return whether there is one."""
        judged = accepted = 0
        wrong = False
        for token in chosen:
            self._tokens.append(token)
            self._stopped = self._ends is not None and self._ends(token)
            if self._drafts:
                draft = self._drafts.popleft()
                wrong = draft.token != token
                judged, accepted = judged + 1, accepted + (not wrong)
                self._tally.judged(draft.distance, len(self._tokens) - 1, not wrong)
            if wrong or self._ended() is not None:
                break
        self._schedule.judged(judged, accepted)
        return wrong

    def _ended(self) -> FinishReason | None:
        if len(self._tokens) == len(self.spec.prompt):
            return None
        if self._stopped or self._tokens[-1] in self.spec.eos:
            return "stop"
        return "length" if len(self._tokens) == len(self.spec.prompt) + self.spec.limit else None

    def _fence_off(self) -> None:
        """Begin a new epoch at the token committed last: what is under way is worth nothing any more."""
        self.epoch += 1
        self._tally.wasted(len(self._in_flight))
        self._in_flight.clear()
        self._drafts.clear()
        self._sent = len(self._tokens) - 1

    def _send_waiting(self) -> list[Action]:
        """Send prompt chunks as far as the window has room, or known and drafted tokens as far as the schedule has."""
        actions: list[Action] = []
        while tokens := self._next_tokens():
            frame = DataFrame(self.spec.id, self.epoch, self._sent, len(tokens), tokens, ())
            self._sent += len(tokens)
            self._in_flight.append(frame)
            actions.append(Send(frame))
        return actions

    def _next_tokens(self) -> tuple[int, ...]:
        under_way = len(self._in_flight)
        if self.state is State.PREFILLING:
            waiting = self._tokens[self._sent : self._sent + self.spec.prefill_chunk]
            return tuple(waiting) if under_way < self.spec.window else ()
        if under_way >= self._schedule.depth:
            return ()
        known = tuple(self._tokens[self._sent :])
        tokens = (*known, *self._draft(self.spec.draft_tokens + 1 - len(known)))
        if tokens:
            self._tally.sent(len(tokens) - len(known), under_way + 1)
        return tokens

    def _draft(self, most: int) -> tuple[int, ...]:
        """Guess tokens beyond all that is known and guessed; none that could only follow the last one allowed."""
        pending = tuple(draft.token for draft in self._drafts)
        known = len(self._tokens)
        left = len(self.spec.prompt) + self.spec.limit - 1 - known - len(pending)
        if min(most, left) < 1:
            return ()
        if not self._switch.on:
            self._unsent = () if pending else tuple(self._drafter.draft((), 1))
            return ()
        guessed = tuple(self._drafter.draft(pending, min(most, left)))
        self._drafts.extend(_Draft(token, len(pending) + i) for i, token in enumerate(guessed, 1))
        return guessed

    def _finish(self, reason: FinishReason) -> list[Action]:
        self._reason = reason
        self._enter(State.FINISHING)
        self._fence_off()
        return [Send(FinishFrame(self.spec.id, self.epoch, self._sent, ()))]

    def _fail(self, code: str, message: str, now: float, stage: str = "") -> list[Action]:
        opened = self.state is not State.OPENING
        if self.state is State.FINISHING:
            message = f"all tokens are there, but their receipts are not: {message}"
        self._enter(State.FAILED)
        failure = Failed(code, message, stage, self._stats(now))
        return (
            [Send(CloseFrame(self.spec.id, one_line(f"{code}: {message}"))), failure] if opened else [failure]
        )

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"session {self.spec.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _stats(self, now: float) -> SessionStats:
        first = self._began if self._first_token is None else self._first_token
        return SessionStats(
            prompt_tokens=len(self.spec.prompt),
            tokens=len(self._tokens) - len(self.spec.prompt),
            frames=len(self._frames),
            ttft_us=round((first - self._began) * 1e6),
            total_us=round((now - self._began) * 1e6),
            traversals=self._traversals,
            speculation=self._tally.stats(self._schedule.confidence),
        )
