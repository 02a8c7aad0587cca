"""Stage: a stage's bookkeeping of the sessions that it serves, without I/O: frames in, actions out.

The daemon feeds every frame of the upstream edge to StageTable.receive and carries out what it returns; a Compute goes to
the runtime, and its result to StageTable.computed. docs/data-plane.md has the table of frames and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nacl.signing import SigningKey

from ring.frame import (
    CloseFrame,
    DataFrame,
    ErrorFrame,
    FinishFrame,
    Frame,
    OpenFrame,
    VerifiedFrame,
    WireTensor,
    one_line,
)
from ring.receipts import Buffer, Job, ReceiptChain, ids_bytes
from ring.token_choice import TokenChoice

Activation = tuple[WireTensor | None, ...]


@dataclass(frozen=True, slots=True)
class StageRole:
    """Which stage this is.

    Attributes:
        peer: this host's PeerId, named in its errors.
        swarm, plan: the swarm's name and the plan's id.
        lo, hi: the block; layer_count: layers of the model. The head has lo 0, the tail hi == layer_count; one stage
            may be both.
        forward_tokens: whether the next stage needs the token ids (ModelRuntime.needs_tokens_everywhere).

    """

    peer: str
    swarm: str
    plan: str
    lo: int
    hi: int
    layer_count: int
    forward_tokens: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi <= self.layer_count:
            raise ValueError(f"block [{self.lo}, {self.hi}) does not lie in [0, {self.layer_count})")

    @property
    def head(self) -> bool:
        """Whether it gets token ids from the coordinator."""
        return self.lo == 0

    @property
    def tail(self) -> bool:
        """Whether it chooses tokens and answers to the coordinator."""
        return self.hi == self.layer_count


@dataclass(frozen=True, slots=True)
class StageLimits:
    """sessions: open at once; context: tokens per session; idle_seconds: a session without a frame for so long is freed."""

    sessions: int
    context: int
    idle_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Open:
    """Have the runtime open the session. If it refuses, tell StageTable.failed."""

    session: str


@dataclass(frozen=True, slots=True)
class Compute:
    """Have the runtime compute the frame, after all earlier ones, if StageTable.stands still says so by then.

    choice: how to choose tokens at the tail, if the runtime's own greedy choice is not what is asked for.
    """

    frame: DataFrame
    choice: TokenChoice | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the frame downstream: to the next stage, or from the tail to the coordinator."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Close:
    """Have the runtime free the session's KV cache."""

    session: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Nothing to do; `reason` is for the debug log."""

    session: str
    reason: str


Action = Open | Compute | Forward | Close | Drop


@dataclass(slots=True)
class _Held:
    """An open session. accepted: end of the frames taken; waiting: frames taken and not computed yet."""

    opened: OpenFrame
    active: float
    epoch: int = 0
    accepted: int = 0
    waiting: list[DataFrame] = field(default_factory=list)
    ids: list[int] = field(
        default_factory=list
    )  # of the frames taken, where the tail's choice depends on them
    chain: ReceiptChain = field(default_factory=ReceiptChain)

    @property
    def computed(self) -> int:
        """End of the frames computed, where all that is behind them is fenced off."""
        return self.waiting[0].position if self.waiting else self.accepted


class StageTable:
    """The sessions of one stage of one plan.

    Within an epoch, frames must follow each other without gap or repeat; a frame of a later epoch may start at or before
    the end of what was computed, and fences off everything of earlier epochs. A session that fails is freed here and
    reported downstream by an ErrorFrame. `now` is a monotonic clock in seconds.
    """

    def __init__(self, role: StageRole, limits: StageLimits, key: SigningKey) -> None:
        """Make an empty table; `key` is the host's identity and signs its receipts."""
        self.role = role
        self._limits = limits
        self._key = key
        self._held: dict[str, _Held] = {}

    def sessions(self) -> tuple[str, ...]:
        """Return the open sessions' ids."""
        return tuple(self._held)

    def receive(self, frame: Frame, now: float) -> list[Action]:
        """Take a frame from upstream (at the head: from the coordinator)."""
        match frame:
            case OpenFrame():
                return self._open(frame, now)
            case DataFrame():
                return self._data(frame, now)
            case FinishFrame():
                return self._finish(frame)
            case CloseFrame():
                return self._close(frame)
            case ErrorFrame():
                return [*self._free(frame.session), Forward(frame)]
            case VerifiedFrame():
                return self._refuse(
                    frame.session, "frame_bad", "a verified frame goes to the coordinator, not to a stage"
                )

    def stands(self, compute: Compute) -> bool:
        """Return whether the frame still has to be computed: its session is open and no later epoch fences it."""
        held = self._held.get(compute.frame.session)
        return held is not None and any(frame is compute.frame for frame in held.waiting)

    def computed(
        self, compute: Compute, activation: Activation | None, chosen: Sequence[int] | None, now: float
    ) -> list[Action]:
        """Take the runtime's result: the activation for the next stage, or at the tail the chosen ids.

        A result whose frame no longer stands is dropped.
        """
        frame = compute.frame
        if not self.stands(compute):
            return [
                Drop(
                    frame.session,
                    f"the result at {frame.position} of epoch {frame.epoch} is not wanted any more",
                )
            ]
        held = self._held[frame.session]
        held.waiting = [other for other in held.waiting if other is not frame]
        held.active = now
        if self.role.tail:
            return self._verified(held, frame, chosen)
        return self._passed_on(held, frame, activation)

    def failed(self, session: str, code: str, message: str) -> list[Action]:
        """Free a session because the runtime refused it, and report it downstream."""
        if session not in self._held:
            return [Drop(session, f"its failure {code} comes after its end")]
        return self._refuse(session, code, message)

    def tick(self, now: float) -> list[Action]:
        """Free the sessions that have been idle for too long. One that is being computed is slow, not idle."""
        idle = [
            session
            for session, held in self._held.items()
            if not held.waiting and now - held.active >= self._limits.idle_seconds
        ]
        actions: list[Action] = []
        for session in idle:
            actions += self._refuse(session, "stalled", f"no frame for {self._limits.idle_seconds:g} s")
        return actions

    def _open(self, frame: OpenFrame, now: float) -> list[Action]:
        session, room = frame.session, self._limits
        if session in self._held:
            return self._refuse(session, "frame_bad", "the session is open already")
        if frame.plan != self.role.plan:
            return self._refuse(
                session, "ring_changed", f"this stage serves plan {self.role.plan}, not {frame.plan}"
            )
        if len(self._held) >= room.sessions:
            return self._refuse(
                session, "busy", f"{room.sessions} sessions are open, as many as were promised"
            )
        if (due := frame.prompt_tokens + frame.max_tokens) > room.context:
            return self._refuse(session, "context_exceeded", f"{due} tokens do not fit into {room.context}")
        self._held[session] = _Held(frame, now)
        return [*self._pass_on(frame), Open(session)]

    def _data(self, frame: DataFrame, now: float) -> list[Action]:
        held = self._held.get(frame.session)
        if held is None:
            return self._refuse(frame.session, "session_unknown", "the session is not open on this stage")
        if frame.epoch < held.epoch:
            return [Drop(frame.session, f"epoch {frame.epoch} is over: {held.epoch} has begun")]
        if (fault := self._fault(held, frame)) is not None:
            return self._refuse(frame.session, *fault)
        if frame.epoch > held.epoch:
            held.epoch = frame.epoch
            held.waiting.clear()
        held.accepted = frame.position + frame.width
        held.waiting.append(frame)
        held.active = now
        return [Compute(frame, self._choice(held, frame))]

    def _choice(self, held: _Held, frame: DataFrame) -> TokenChoice | None:
        """Return how to choose tokens after the frame's; of a prompt, only the last one's choice counts for anything."""
        opened = held.opened
        if not self.role.tail or opened.sampling.greedy:
            return None
        if opened.sampling.penalizes:
            held.ids[frame.position :] = frame.tokens or ()
        first = max(0, opened.prompt_tokens - 1 - frame.position)
        if first >= frame.width:
            return None
        return TokenChoice(
            opened.sampling, first, frame.position + first + 1, tuple(held.ids), opened.prompt_tokens
        )

    def _fault(self, held: _Held, frame: DataFrame) -> tuple[str, str] | None:
        end = frame.position + frame.width
        if end > self._limits.context:
            return (
                "context_exceeded",
                f"a frame reaches to {end}, but the context has {self._limits.context} tokens",
            )
        if frame.epoch == held.epoch and frame.position != held.accepted:
            return "frame_out_of_order", f"a frame starts at {frame.position}, but {held.accepted} comes next"
        if frame.epoch > held.epoch and frame.position > held.computed:
            return (
                "frame_out_of_order",
                f"a new epoch starts at {frame.position}, but only {held.computed} is computed",
            )
        if self.role.head and (frame.tokens is None or frame.tensors):
            return "frame_bad", "the head takes token ids and no tensors"
        if not self.role.head and all(tensor is None for tensor in frame.tensors):
            return "frame_bad", "a stage behind the head takes tensors, and the frame has none"
        if self.role.tail and held.opened.sampling.penalizes and frame.tokens is None:
            return "frame_bad", "the tail takes token ids where the sampling has penalties"
        return None

    def _verified(self, held: _Held, frame: DataFrame, chosen: Sequence[int] | None) -> list[Action]:
        if chosen is None or len(chosen) != frame.width:
            return self._refuse(
                frame.session, "runtime_failed", f"the runtime chose no {frame.width} tokens at the tail"
            )
        self._observe(held, frame, [ids_bytes(chosen)])
        return [Forward(VerifiedFrame(frame.session, frame.epoch, frame.position, tuple(chosen)))]

    def _passed_on(self, held: _Held, frame: DataFrame, activation: Activation | None) -> list[Action]:
        if activation is None or all(tensor is None for tensor in activation):
            return self._refuse(
                frame.session, "runtime_failed", "the runtime gave no activation for the next stage"
            )
        self._observe(held, frame, _tensor_parts(activation))
        wanted = self.role.forward_tokens or held.opened.sampling.penalizes
        tokens = frame.tokens if wanted else None
        onward = DataFrame(frame.session, frame.epoch, frame.position, frame.width, tokens, activation)
        return [Forward(onward)]

    def _observe(self, held: _Held, frame: DataFrame, outputs: Sequence[Buffer]) -> None:
        inputs = [ids_bytes(frame.tokens or ())] if self.role.head else _tensor_parts(frame.tensors)
        held.chain.observe(frame.position, inputs, outputs)

    def _finish(self, frame: FinishFrame) -> list[Action]:
        held = self._held.get(frame.session)
        if held is None:
            return self._refuse(
                frame.session, "session_unknown", "the session to finish is not open on this stage"
            )
        if frame.epoch <= held.epoch or frame.position > held.computed:
            return self._refuse(
                frame.session,
                "frame_out_of_order",
                f"the session finishes at {frame.position} of epoch {frame.epoch}, "
                f"but {held.computed} tokens are computed in epoch {held.epoch}",
            )
        held.chain.rewind(frame.position)
        role = self.role
        job = Job(role.swarm, frame.session, held.opened.nonce, role.layer_count)
        receipt = held.chain.receipt(job, role.lo, role.hi, self._key)
        onward = FinishFrame(frame.session, frame.epoch, frame.position, (*frame.receipts, receipt))
        return [*self._free(frame.session), Forward(onward)]

    def _close(self, frame: CloseFrame) -> list[Action]:
        freed = self._free(frame.session) or [Drop(frame.session, "it is closed already")]
        return [*freed, *self._pass_on(frame)]

    def _pass_on(self, frame: Frame) -> list[Action]:
        """Forward what every stage must hear, and the coordinator, which said it, need not."""
        return [] if self.role.tail else [Forward(frame)]

    def _refuse(self, session: str, code: str, message: str) -> list[Action]:
        return [*self._free(session), Forward(self._error(session, code, message))]

    def _error(self, session: str, code: str, message: str) -> ErrorFrame:
        return ErrorFrame(session, self.role.peer, code, one_line(message))

    def _free(self, session: str) -> list[Action]:
        """Forget a session, or all for ""."""
        freed = [held for held in self._held if session in ("", held)]
        for held in freed:
            del self._held[held]
        return [Close(held) for held in freed]


def overtaken(frame: Frame, later: Iterable[Frame]) -> bool:
    """Return whether a frame from upstream may be dropped unread because of frames that have come after it.

    It may if it is data, and a later frame fences it off: one of a later epoch of its session, or the session's close. Why
    the stages' receipts agree nevertheless is shown in docs/data-plane.md.
    """
    if not isinstance(frame, DataFrame):
        return False
    return any(
        other.session == frame.session
        and (
            isinstance(other, CloseFrame)
            or (isinstance(other, DataFrame | FinishFrame) and other.epoch > frame.epoch)
        )
        for other in later
    )


def _tensor_parts(tensors: Activation) -> list[Buffer]:
    return [tensor.data for tensor in tensors if tensor is not None]
