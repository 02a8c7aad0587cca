"""Generation: `/swarmd/generate/1` and the control operation `generate`. Any daemon can be asked; the coordinator answers."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import trio

from ring.generation import (
    PROTOCOL,
    Assigned,
    Done,
    ErrorEvent,
    Event,
    GenerateRequest,
    GenerationError,
    RequestError,
    Started,
    TokenEvent,
    verify_done,
)
from ring.generation_codec import (
    MAX_EVENT,
    MAX_REQUEST,
    decode_event,
    decode_request,
    encode,
    request_from_map,
)
from ring.plan import Plan
from ring.session import Failed
from ring.session_spec import PromptInvalid
from runtimes.tokenizer import ChatRefused, ChatTemplateMissing, TokenizerError
from swarmd.control import Emit
from swarmd.coordinator import Coordinator
from swarmd.net import Channel, NetError, Node, first_message
from swarmd.plans import Plans
from swarmd.serving import Serving
from swarmd.speech import Speech

_REQUEST_WITHIN = 10.0  # s
_SILENCE = 120.0  # s without an event from the coordinator; it gives up a silent ring sooner
_OPEN_WITHIN = 10.0  # s
_FORWARDS = 32  # requests that one host passes on at the same time

Say = Callable[[Event], Awaitable[None]]


class Generation:
    """Runs requests whose coordinator is this host, and forwards the others."""

    def __init__(self, node: Node, plans: Plans, serving: Serving, progress_seconds: float) -> None:
        self._node = node
        self._plans = plans
        self._serving = serving
        self._silence = max(_SILENCE, 2 * progress_seconds)
        self._forwards = 0
        node.handle(
            PROTOCOL,
            self._accept,
            max_message=MAX_EVENT,
            max_inbound=MAX_REQUEST,
            max_channels_per_peer=2 * _FORWARDS,
        )

    def coordinated(self) -> int:
        """Return how many generations this host coordinates."""
        coordinator = self._serving.coordinator
        return 0 if coordinator is None else coordinator.open_sessions

    async def control(self, fields: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Serve the control operation: events as they come, then what they amount to, receipts verified.

        Raises:
            GenerationError: with the code and text of the error event.
            RequestError, ring.receipts.ReceiptError: as named.

        """
        request = request_from_map({name: value for name, value in fields.items() if name != "op"})
        tokens: list[int] = []
        done: Done | None = None

        async def say(event: Event) -> None:
            nonlocal done
            if isinstance(event, ErrorEvent):
                raise GenerationError(event.code, event.message, event.stage)
            if isinstance(event, TokenEvent):
                tokens.extend(event.tokens)
            if isinstance(event, Done):
                done = event
            await emit(event.to_map())

        await self._run(request, say)
        if done is None:
            raise GenerationError("internal", "the generation ended without its last event")
        return _summary(tokens, done, verify_done(request.tokens, tokens, done, nonce=request.nonce))

    async def _accept(self, channel: Channel) -> None:
        """Serve a client: its request, then events until the end; its going away cancels the generation."""
        data = await first_message(channel, _REQUEST_WITHIN)

        async def say(event: Event) -> None:
            try:
                await channel.send(encode(event))
            except NetError as error:
                raise _ClientGone from error

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, channel, nursery.cancel_scope)
            with contextlib.suppress(_ClientGone):
                await self._serve(data, say)
            nursery.cancel_scope.cancel()

    async def _serve(self, data: bytes, say: Say) -> None:
        try:
            # In a thread: a prompt of a million token ids takes a second to check.
            request = await trio.to_thread.run_sync(decode_request, data)
        except RequestError as error:
            await say(ErrorEvent(error.code, str(error)))
        else:
            await self._run(request, say)

    async def _run(self, request: GenerateRequest, say: Say) -> None:
        if self._plans.active is None:
            await self._plans.refresh()
        plan = self._plans.active
        if plan is None:
            await say(ErrorEvent("no_plan", f"no ring serves a model yet: {self._plans.reason}"))
        elif request.model not in ("", plan.body.shape.model_id):
            await say(
                ErrorEvent(
                    "model_unknown",
                    f"model is {request.model!r}; this swarm serves {plan.body.shape.model_id!r}",
                )
            )
        elif plan.head == self._node.peer_id:
            await self._coordinate(request, plan, say)
        elif request.forwarded:
            await say(ErrorEvent("not_coordinator", f"the coordinator of plan {plan.id} is {plan.head}"))
        else:
            await self._forward(request, plan, say)

    async def _coordinate(self, request: GenerateRequest, plan: Plan, say: Say) -> None:
        coordinator = self._serving.coordinator
        if coordinator is None or coordinator.plan.id != plan.id:
            await say(ErrorEvent("ring_changed", "the ring of the active plan is being replaced"))
        elif coordinator.full:
            await say(ErrorEvent("busy", f"all {plan.body.sessions} sessions of the ring are in use"))
        else:
            try:
                await _generate(coordinator, request, say)
            except (PromptInvalid, TokenizerError) as error:
                await say(ErrorEvent(_code_of(error), str(error)))

    async def _forward(self, request: GenerateRequest, plan: Plan, say: Say) -> None:
        if self._forwards >= _FORWARDS:
            await say(ErrorEvent("busy", f"this host forwards {_FORWARDS} requests already"))
            return
        self._forwards += 1
        try:
            await self._relay(request, plan, say)
        finally:
            self._forwards -= 1

    async def _relay(self, request: GenerateRequest, plan: Plan, say: Say) -> None:
        try:
            channel = await self._node.open(plan.head, PROTOCOL, max_message=MAX_EVENT, timeout=_OPEN_WITHIN)
        except NetError as error:
            await say(ErrorEvent("no_path", f"the coordinator cannot be reached: {error}", plan.head))
            return
        heard_last = False
        try:
            async with channel:
                await channel.send(encode(replace(request, forwarded=True)))
                while not heard_last:
                    with trio.fail_after(self._silence):
                        data = await channel.receive()
                    event = decode_event(data)
                    heard_last = isinstance(event, Done | ErrorEvent)
                    await say(event)
        except (NetError, trio.EndOfChannel, trio.TooSlowError) as error:
            if heard_last:
                return  # the generation is over, however its channel closed
            why = str(error) or "it fell silent"
            await say(ErrorEvent("stage_lost", f"the coordinator was lost: {why}", plan.head))
        except RequestError as error:
            await say(ErrorEvent("internal", f"the coordinator sent a malformed event: {error}", plan.head))


class _ClientGone(Exception):
    """The client cannot be told any more."""


def _code_of(error: PromptInvalid | TokenizerError) -> str:
    """Return the protocol's code: what the template does not take is the client's, a broken tokenizer is the host's."""
    of_client = isinstance(error, PromptInvalid | ChatTemplateMissing | ChatRefused)
    return error.code if of_client else "runtime_failed"


async def _generate(coordinator: Coordinator, request: GenerateRequest, say: Say) -> None:
    """Run a request on this host's coordinator. Raises PromptInvalid, TokenizerError."""
    prompt = await coordinator.prompt_ids(request)
    spec = coordinator.spec(prompt, request)
    plan, speech = coordinator.plan, Speech(coordinator.tokenizer.stream(), request.stop)
    seed = spec.sampling.seed if spec.sampling.temperature > 0 else None
    await say(Started(spec.id, plan.body.shape.model_id, len(prompt), plan.head, plan.id, seed))

    async def on_tokens(tokens: tuple[int, ...]) -> None:
        await say(TokenEvent(tokens, speech.take()))

    end = await coordinator.run(spec, on_tokens, request.draft, speech.ends)
    if isinstance(end, Failed):
        await say(ErrorEvent(end.code, end.message, end.stage))
        return
    if rest := speech.rest():
        await say(TokenEvent((), rest))
    await say(
        Done(
            job=spec.id,
            swarm=plan.body.swarm,
            nonce=spec.nonce,
            finish_reason=end.reason,
            prompt_tokens=end.stats.prompt_tokens,
            completion_tokens=end.stats.tokens,
            layer_count=plan.body.shape.layer_count,
            assignment=tuple(Assigned(*stage) for stage in plan.assignment()),
            frames=end.frames,
            receipts=end.receipts,
            ttft_us=end.stats.ttft_us,
            total_us=end.stats.total_us,
            traversals=end.stats.traversals,
            speculation=end.stats.speculation,
        )
    )


async def _until_gone(channel: Channel, scope: trio.CancelScope) -> None:
    """Cancel when the client breaks off. A client may end its own half at once: it has said all it has to say."""
    try:
        while True:
            await channel.receive()
    except trio.EndOfChannel:
        return
    except NetError:
        scope.cancel()


def _summary(tokens: list[int], done: Done, verified: int) -> dict[str, Any]:
    decoding = (done.total_us - done.ttft_us) / 1e6
    return {
        "job": done.job,
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.prompt_tokens,
        "tokens": len(tokens),
        "receipts": len(done.receipts),
        "receipts_verified": verified,
        "ttft_s": done.ttft_us / 1e6,
        "tokens_per_traversal": round(len(tokens) / max(1, done.traversals), 3),
        "speculation": done.speculation.to_map(),
        "tok_s": round((len(tokens) - 1) / decoding, 3) if decoding > 0 and len(tokens) > 1 else None,
    }
