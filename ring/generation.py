"""Generation: the messages of `/swarmd/generate/1`, by which anybody asks a swarm for tokens and checks who made them.

The client sends one request; the daemon answers with `started`, any number of `token` events, and `done` or `error`.
docs/protocols.md has every field; ring/generation_codec.py reads them. The maps hold text, integers, lists and maps only, so JSON can carry them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple

from ring.frame import one_line
from ring.identity import PeerId, public_key_of
from ring.receipt_check import Block, ReceiptError, verify_receipts
from ring.receipts import Job, Receipt, TokenFrame
from ring.sampling import GREEDY, Sampling
from ring.session import FinishReason
from ring.session_stats import SpeculationStats

PROTOCOL: Final = "/swarmd/generate/1"

Draft = Literal["auto", "ngram", "none"]
DRAFTS: Final[tuple[Draft, ...]] = ("auto", "ngram", "none")

ERRORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bad_request": "The request is malformed or asks for the impossible. Change the field that the text names.",
        "model_unknown": "The swarm does not serve this model. Leave `model` empty or name the one it serves.",
        "context_exceeded": "The prompt does not fit into the context. Shorten it or raise `model.context`.",
        "chat_template_missing": "The model takes no conversations. Send `prompt` instead of `messages`.",
        "chat_refused": "The model's chat template does not take these messages. The text is the template's own.",
        "no_plan": "The hosts cannot serve the model together: the text says what is missing or awaited.",
        "loading": "A ring is planned and its hosts are still loading. Ask again when the text's progress is done.",
        "not_coordinator": "A forwarded request reached a host that is not the head of the ring. Ask again.",
        "no_path": "The coordinator cannot be reached from the daemon that was asked. Ask another host of the swarm.",
        "busy": "All sessions that were promised are in use. Ask again later or raise `model.sessions`.",
        "stage_lost": "A stage died or its connection broke. Ask again: the swarm plans around it.",
        "stalled": "There was no progress within `plan.progress_timeout`. Ask again; look at the stage's log.",
        "ring_changed": "The ring was replaced while the session ran. Ask again.",
        "cancelled": "The client went away or cancelled.",
        "ring_fault": "A stage answered what it was not asked. Look at the logs of the stages.",
        "session_unknown": "A stage does not hold the session: it has restarted or given it up. Ask again.",
        "frame_out_of_order": "A frame got lost or came twice. Look at the logs of the stage and of the one before it.",
        "frame_bad": "A stage sent bytes that are no valid frame. Check that all hosts run the same version.",
        "memory_exceeded": "A stage has no memory for the session. Lower `model.sessions` or `model.context`.",
        "runtime_failed": "A stage's runtime failed. Look at its log.",
        "version_mismatch": "The hosts speak different versions of the protocol. Update the older one.",
        "registry_refused": "The model registry is not signed by a pinned publisher. See `registry` in swarmd.toml.",
        "internal": "A fault of swarmd itself. Report it with the daemon's log.",
    }
)
"""Codes of generation errors and what they mean. The list is open: treat an unknown code like "internal"."""


class RequestError(ValueError):
    """A message of the generate protocol is malformed. Change the field that the text names."""

    code: ClassVar[str] = "bad_request"


class GenerationError(Exception):
    """A generation has failed; `code` is one of ERRORS, where it says what to do.

    Attributes:
        code: stable name of the failure.
        message: one line for people.
        stage: PeerId of the stage to blame, or "".

    """

    code: str

    def __init__(self, code: str, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.stage = stage


class ChatMessage(NamedTuple):
    """One message of a conversation: role as the model's chat template knows it, and its text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a client asks for: exactly one of prompt, messages and tokens.

    Attributes:
        model: the model's id, or "" for the one that the swarm serves.
        max_tokens: most tokens to generate, at least 1.
        prompt: text to continue, as it is.
        messages: a conversation, to be put through the model's chat template.
        tokens: token ids to continue.
        nonce: what the receipts must carry, so that the client knows them to be fresh; "" lets the coordinator choose.
        draft: whether and by what to speculate (see ring.drafter): "auto" leaves it to the coordinator.
        sampling: how tokens are to be chosen.
        stop: texts; the generation ends before the first of them that it says, and does not say it.
        forwarded: whether a daemon has passed the request on to the coordinator; it is passed on once at most.

    """

    model: str
    max_tokens: int
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tokens: tuple[int, ...] | None = None
    nonce: str = ""
    forwarded: bool = False
    draft: Draft = "auto"
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()

    def to_map(self) -> dict[str, object]:
        """Return the request as it crosses the wire; absent alternatives are left out."""
        fields: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "forwarded": self.forwarded,
        }
        if self.prompt is not None:
            fields["prompt"] = self.prompt
        if self.messages is not None:
            fields["messages"] = [message._asdict() for message in self.messages]
        if self.tokens is not None:
            fields["tokens"] = list(self.tokens)
        if self.nonce:
            fields["nonce"] = self.nonce
        if self.draft != "auto":
            fields["draft"] = self.draft
        if self.sampling != GREEDY:
            fields["sampling"] = self.sampling.to_map()
        if self.stop:
            fields["stop"] = list(self.stop)
        return fields


@dataclass(frozen=True, slots=True)
class Started:
    """The session is open: job id, model, tokens of the prompt, PeerId of the coordinator, id of the plan.

    seed: of the sampling, whoever chose it; None where nothing is sampled.
    """

    job: str
    model: str
    prompt_tokens: int
    coordinator: PeerId
    plan: str
    seed: int | None = None

    def to_map(self) -> dict[str, object]:
        """Return the event as it crosses the wire."""
        fields: dict[str, object] = {
            "event": "started",
            "job": self.job,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "coordinator": self.coordinator,
            "plan": self.plan,
        }
        return fields if self.seed is None else fields | {"seed": self.seed}


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens that are final, and the text that they complete ("" while a character is incomplete)."""

    tokens: tuple[int, ...]
    text: str

    def to_map(self) -> dict[str, object]:
        """Return the event as it crosses the wire."""
        return {"event": "token", "tokens": list(self.tokens), "text": self.text}


class Assigned(NamedTuple):
    """A stage of the ring: PeerId, layers [lo, hi)."""

    peer: PeerId
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Done:
    """The generation is complete, with everything that it takes to verify who computed it.

    Attributes:
        job, swarm, nonce: what the receipts must say.
        finish_reason: "stop" (an end token, or a text to stop at) or "length".
        prompt_tokens, completion_tokens: how many.
        layer_count: layers of the model.
        assignment: the ring, head first.
        frames: token ids into the head and out of the tail, in order; they bind the receipts to the tokens.
        receipts: as collected, `shard-receipt/1`.
        ttft_us, total_us: microseconds from the start of the session to its first token and to its end.
        traversals: answers of the tail that committed tokens.
        speculation: how drafting went.

    """

    job: str
    swarm: str
    nonce: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    layer_count: int
    assignment: tuple[Assigned, ...]
    frames: tuple[TokenFrame, ...]
    receipts: tuple[Receipt, ...]
    ttft_us: int
    total_us: int
    traversals: int
    speculation: SpeculationStats

    def to_map(self) -> dict[str, object]:
        """Return the event as it crosses the wire."""
        return {
            "event": "done",
            "job": self.job,
            "swarm": self.swarm,
            "nonce": self.nonce,
            "finish_reason": self.finish_reason,
            "usage": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens},
            "layer_count": self.layer_count,
            "assignment": [list(stage) for stage in self.assignment],
            "frames": _frames_map(self.frames),
            "receipts": list(self.receipts),
            "timing": {"ttft_us": self.ttft_us, "total_us": self.total_us},
            "speculation": {"traversals": self.traversals, **self.speculation.to_map()},
        }


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The generation has failed: a code of ERRORS, one line for people, and the stage to blame (PeerId or "")."""

    code: str
    message: str
    stage: str = ""

    def to_map(self) -> dict[str, object]:
        """Return the event as it crosses the wire."""
        return {"event": "error", "code": self.code, "message": one_line(self.message), "stage": self.stage}


Event = Started | TokenEvent | Done | ErrorEvent


def verify_done(prompt: Sequence[int] | None, tokens: Sequence[int], done: Done, *, nonce: str = "") -> int:
    """Check that `done` accounts for every token received, by receipts of every stage of its assignment.

    Args:
        prompt: the token ids that were sent, or None if text was (its ids are then taken from `done`).
        tokens: all token ids received, in order.
        done: the last event.
        nonce: the nonce that was asked for, or "" if none was.

    Returns:
        How many receipts were verified: one for every stage.

    Raises:
        ReceiptError: with `check` naming what failed.

    """
    if nonce and done.nonce != nonce:
        raise ReceiptError(
            "nonce", f"the session was opened with {done.nonce!r}, not with {nonce!r} as asked"
        )
    _check_tokens(prompt, tuple(tokens), done)
    assignment = [Block(public_key_of(stage.peer), stage.lo, stage.hi) for stage in done.assignment]
    job = Job(done.swarm, done.job, done.nonce, done.layer_count)
    return len(verify_receipts(done.receipts, job, assignment=assignment, frames=done.frames))


def _check_tokens(prompt: Sequence[int] | None, tokens: tuple[int, ...], done: Done) -> None:
    """Check that the frames that stand went through prompt and tokens from first to last but one, and chose each token.

    A frame may begin inside the one before it: what that one had guessed from there on is then not counted.
    """
    inputs: list[int] = []
    chosen: list[int] = []
    begun = -1
    for frame in done.frames:
        if not begun < frame.position <= len(inputs):
            raise ReceiptError("tokens", f"a frame starts at {frame.position}, but {len(inputs)} comes next")
        begun = frame.position
        inputs[begun:] = frame.tokens
        chosen[begun:] = frame.chosen
    asked = tuple(inputs[: done.prompt_tokens]) if prompt is None else tuple(prompt)
    if len(asked) != done.prompt_tokens or len(tokens) != done.completion_tokens or not tokens:
        raise ReceiptError(
            "tokens",
            f"done counts {done.prompt_tokens} and {done.completion_tokens} tokens, "
            f"but prompt and answer have {len(asked)} and {len(tokens)}",
        )
    fed = (asked + tokens)[:-1]
    if begun >= len(fed) or tuple(inputs[: len(fed)]) != fed:
        raise ReceiptError("tokens", "the frames did not carry the prompt and the tokens received")
    if tuple(chosen[len(asked) - 1 : len(fed)]) != tokens:
        raise ReceiptError("tokens", "the tail did not choose the tokens received")


def _frames_map(frames: Sequence[TokenFrame]) -> dict[str, object]:
    """Return frames as four flat lists: one list per frame would multiply a long prompt's memory."""
    return {
        "positions": [frame.position for frame in frames],
        "widths": [len(frame.tokens) for frame in frames],
        "tokens": [token for frame in frames for token in frame.tokens],
        "chosen": [token for frame in frames for token in frame.chosen],
    }
