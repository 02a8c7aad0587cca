"""Coordinator: drives the sessions of one plan from its head: the shell around ring.session."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import trio

from ring.drafter import NoDrafter
from ring.frame import ErrorFrame, FinishFrame, Frame, VerifiedFrame
from ring.generation import Draft, GenerateRequest
from ring.ids import MAX_COUNT
from ring.ngram import NgramDrafter
from ring.plan import Plan
from ring.session import Action, Commit, Failed, Finished, Send, Session
from ring.session_spec import PromptTooLong, SessionSpec
from ring.throughput import PREFILL_WIDTH
from runtimes.tokenizer import Tokenizer

_ANSWERS = 256  # frames from the tail that may wait for one session
_TICK = 0.5  # s

Submit = Callable[[Frame], None]
OnTokens = Callable[[tuple[int, ...]], Awaitable[None]]


class Coordinator:
    """Runs sessions side by side; frames come back through deliver()."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer, submit: Submit, progress_seconds: float) -> None:
        self.plan = plan
        self.tokenizer = tokenizer
        self._submit = submit
        self._progress_seconds = progress_seconds
        self._encoders = trio.CapacityLimiter(1)  # prompts wait for each other, not the ring for prompts
        self._answers: dict[str, trio.MemorySendChannel[Frame]] = {}

    @property
    def open_sessions(self) -> int:
        """How many generations run."""
        return len(self._answers)

    @property
    def full(self) -> bool:
        """Whether the plan has no room for another session."""
        return len(self._answers) >= self.plan.body.sessions

    async def prompt_ids(self, request: GenerateRequest) -> tuple[int, ...]:
        """Return the token ids of a request's prompt; text is encoded in a thread, and only if it can fit.

        Raises:
            ring.session_spec.PromptTooLong, runtimes.tokenizer.TokenizerError: as named.

        """
        if request.tokens is not None:
            self._refuse_more_than_fits(len(request.tokens))
            return request.tokens
        contents = (
            [request.prompt or ""] if request.messages is None else [m.content for m in request.messages]
        )
        self._refuse_more_than_fits(sum(map(self.tokenizer.least_tokens, contents)))
        return tuple(await trio.to_thread.run_sync(self._encode, request, limiter=self._encoders))

    def _refuse_more_than_fits(self, tokens: int) -> None:
        context = self.plan.body.context
        if tokens >= context:
            raise PromptTooLong(
                f"the prompt has {tokens} tokens or more, but with one to generate at most {context} fit: shorten it"
            )

    def _encode(self, request: GenerateRequest) -> list[int]:
        if request.messages is not None:
            return self.tokenizer.encode_chat([message._asdict() for message in request.messages])
        return self.tokenizer.encode_prompt(request.prompt or "")

    def spec(self, prompt: Sequence[int], request: GenerateRequest) -> SessionSpec:
        """Check a request against the plan, and choose what it leaves open. Raises ring.session_spec.PromptInvalid."""
        sampling = request.sampling
        if sampling.temperature > 0 and sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbelow(MAX_COUNT + 1))
        return SessionSpec(
            id=secrets.token_hex(16),
            plan=self.plan.id,
            nonce=request.nonce or secrets.token_hex(16),
            prompt=tuple(prompt),
            max_tokens=request.max_tokens,
            eos=self.tokenizer.eos_ids,
            context=self.plan.body.context,
            vocab=self.tokenizer.vocab_size,
            prefill_chunk=PREFILL_WIDTH,
            progress_seconds=self._progress_seconds,
            sampling=sampling,
        )

    async def run(
        self, spec: SessionSpec, on_tokens: OnTokens, draft: Draft, ends: Callable[[int], bool] | None = None
    ) -> Finished | Failed:
        """Run a session to its end, speculating as asked; being cancelled closes it on all stages. ends: see Session."""
        answers, incoming = trio.open_memory_channel[Frame](_ANSWERS)
        self._answers[spec.id] = answers
        drafter = NoDrafter() if draft == "none" else NgramDrafter()
        session = Session(spec, trio.current_time(), drafter, ends)
        try:
            return await self._drive(session, incoming, on_tokens)
        finally:
            del self._answers[spec.id]
            if not session.over:
                self._abandon(session)

    async def _drive(
        self, session: Session, incoming: trio.MemoryReceiveChannel[Frame], on_tokens: OnTokens
    ) -> Finished | Failed:
        end = await self._carry_out(session.start(trio.current_time()), on_tokens)
        while end is None:
            frame = await _next(incoming)
            now = trio.current_time()
            match frame:
                case None:
                    actions = session.tick(now)
                case VerifiedFrame(epoch=epoch, position=position, tokens=tokens):
                    actions = session.verified(epoch, position, tokens, now)
                case FinishFrame(receipts=receipts):
                    actions = session.receipts(receipts, now)
                case ErrorFrame(code=code, message=message, stage=stage):
                    actions = session.failed(code, message, stage, now)
                case _:
                    actions = []  # a close frame that has been all the way around
            end = await self._carry_out(actions, on_tokens)
        return end

    async def _carry_out(self, actions: Sequence[Action], on_tokens: OnTokens) -> Finished | Failed | None:
        end: Finished | Failed | None = None
        for action in actions:
            match action:
                case Send(frame=frame):
                    self._submit(frame)
                case Commit(tokens=tokens):
                    await on_tokens(tokens)
                case Finished() | Failed():
                    end = action
        return end

    def _abandon(self, session: Session) -> None:
        for action in session.cancel("the client went away", trio.current_time()):
            if isinstance(action, Send):
                self._submit(action.frame)

    def deliver(self, frame: Frame) -> None:
        """Take a frame that came back from the tail, or an error of any stage."""
        if isinstance(frame, ErrorFrame) and not frame.session:
            for session in self._answers.values():
                _put(session, frame)
        elif answers := self._answers.get(frame.session):
            _put(answers, frame)


async def _next(incoming: trio.MemoryReceiveChannel[Frame]) -> Frame | None:
    """Return the next frame, or None when it is time to look at the clock."""
    try:
        with trio.fail_after(_TICK):
            return await incoming.receive()
    except trio.TooSlowError:
        return None


def _put(answers: trio.MemorySendChannel[Frame], frame: Frame) -> None:
    try:
        answers.send_nowait(frame)
    except trio.WouldBlock:
        return  # more answers than frames in flight: the session's own checks name the fault when it reads on
