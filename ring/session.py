"""Session: the coordinator's side of one generation, without I/O: events in, actions out.

States: opening → prefilling → decoding → finishing → done, and from each of the first four → failed. Prefill chunks are
kept in flight up to a window; then every traversal carries the one token that the tail chose last (greedy decoding).
docs/data-plane.md has the table of states and events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, Final, Literal

from ring.frame import MAX_WIDTH, CloseFrame, DataFrame, FinishFrame, Frame, OpenFrame, one_line
from ring.receipts import Receipt, TokenFrame

FinishReason = Literal["stop", "length"]


class PromptInvalid(ValueError):
    """The prompt or a limit of the generation is not possible. Change what the text names and ask again."""

    code: ClassVar[str] = "bad_request"


class PromptTooLong(PromptInvalid):
    """Prompt and one token do not fit into the context. Shorten the prompt or raise `model.context` on every host."""

    code: ClassVar[str] = "context_exceeded"


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
class SessionSpec:
    """What to generate, and within which bounds.

    Attributes:
        id: the session's id, also the job id of its receipts; unique for ever.
        plan: id of the active plan.
        nonce: what the receipts must carry.
        prompt: token ids, each in [0, vocab).
        max_tokens: most tokens to generate, at least 1; prompt and generated tokens together never exceed context.
        eos: token ids that end the generation; the end token is committed too.
        context: tokens per session that every stage has room for.
        vocab: size of the vocabulary.
        prefill_chunk: most prompt tokens in one frame.
        window: most frames in flight.
        progress_seconds: after so long without a new verified frame or the receipts the session fails as "stalled".

    Raises:
        PromptInvalid, PromptTooLong: named in the text.

    """

    id: str
    plan: str
    nonce: str
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]
    context: int
    vocab: int
    prefill_chunk: int = 128
    window: int = 8
    progress_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.prefill_chunk <= MAX_WIDTH or self.window < 1:
            raise ValueError(f"prefill_chunk {self.prefill_chunk} or window {self.window} is impossible")
        if not self.prompt:
            raise PromptInvalid("the prompt has no tokens: say something to continue from")
        for index, token in enumerate(self.prompt):
            if not 0 <= token < self.vocab:
                raise PromptInvalid(
                    f"prompt token {index} is {token}, not in [0, {self.vocab}) of this model"
                )
        if self.max_tokens < 1:
            raise PromptInvalid(f"max_tokens is {self.max_tokens}, but must be at least 1")
        if len(self.prompt) + 1 > self.context:
            raise PromptTooLong(
                f"the prompt has {len(self.prompt)} tokens, but at most {self.context - 1} leave room for an answer "
                f"in a context of {self.context}: shorten it or raise `model.context`"
            )

    @property
    def limit(self) -> int:
        """Most tokens that can be generated: max_tokens, or what the context leaves."""
        return min(self.max_tokens, self.context - len(self.prompt))


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session did. Times in microseconds from its start; ttft_us is 0 while no token is committed."""

    prompt_tokens: int
    tokens: int
    frames: int
    ttft_us: int
    total_us: int


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
        reason: "stop" after an end token, "length" at max_tokens or the end of the context.
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


class Session:
    """One generation. Every method returns the actions to carry out, in order; `now` is a monotonic clock in seconds.

    After Finished or Failed every event is ignored.
    """

    def __init__(self, spec: SessionSpec, now: float) -> None:
        """Make a session in state OPENING; nothing is sent before start()."""
        self.spec = spec
        self.state = State.OPENING
        self.epoch = 0
        self._began = self._progress = now
        self._first_token: float | None = None
        self._tokens = list(spec.prompt)
        self._sent = 0
        self._in_flight: deque[DataFrame] = deque()
        self._frames: list[TokenFrame] = []
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
        opening = OpenFrame(spec.id, spec.plan, spec.nonce, len(spec.prompt), spec.limit)
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
        self._progress = now
        self._frames.append(TokenFrame(frame.position, frame.tokens or (), chosen))
        if frame.position + frame.width < len(self._tokens):
            return self._send_waiting()
        return self._commit(chosen[-1], now)

    def _commit(self, token: int, now: float) -> list[Action]:
        self._tokens.append(token)
        if self._first_token is None:
            self._first_token = now
        commit = Commit((token,))
        if token in self.spec.eos:
            return [commit, *self._finish("stop")]
        if len(self._tokens) == len(self.spec.prompt) + self.spec.limit:
            return [commit, *self._finish("length")]
        if self.state is State.PREFILLING:
            self._enter(State.DECODING)
        return [commit, *self._send_waiting()]

    def _send_waiting(self) -> list[Action]:
        """Send tokens that have not been sent, as wide as allowed, while the window has room."""
        actions: list[Action] = []
        while self._sent < len(self._tokens) and len(self._in_flight) < self.spec.window:
            tokens = tuple(self._tokens[self._sent : self._sent + self.spec.prefill_chunk])
            frame = DataFrame(self.spec.id, self.epoch, self._sent, len(tokens), tokens, ())
            self._sent += len(tokens)
            self._in_flight.append(frame)
            actions.append(Send(frame))
        return actions

    def _finish(self, reason: FinishReason) -> list[Action]:
        self._reason = reason
        self._enter(State.FINISHING)
        return [Send(FinishFrame(self.spec.id, ()))]

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
        )
