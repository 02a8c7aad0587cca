"""StageRunner: serves one block in one ring: the shell around ring.stage.

Frames come in from the upstream edge (at the head: from the coordinator), are computed by the engine, those of different
sessions together, and go out on the downstream edge (from the tail: to the coordinator). When an edge is lost, the ring is: both neighbours
and the coordinator are told which host is to blame, and the member is told that its ring is broken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog
import trio

from ring.batch import take_batch
from ring.frame import ErrorFrame, Frame, WireTensor
from ring.identity import PeerId
from ring.plan import Plan
from ring.stage import (
    Action,
    Close,
    Compute,
    Drop,
    Forward,
    Open,
    StageLimits,
    StageRole,
    StageTable,
    overtaken,
)
from ring.token_choice import ChoiceImpossible
from runtimes.base import Activation, FrameInput, FrameOutput, RuntimeFailure, Tensor
from swarmd.edges import EDGE_ENDS, EdgeRefused, EdgeRole, open_edge, receive_frame, ring_error, send_frame
from swarmd.engine import Engine
from swarmd.learning import Learning
from swarmd.net import Channel, NetError, Node
from swarmd.state_dir import HostKey

_INBOX_PER_SESSION = (
    32  # frames; more than two epochs of a session keep in flight, with its first and its last
)
_TICK = 1.0  # s
_LAST_WORDS_WITHIN = 1.0  # s


class StageRunner:
    """Serves until close(); construct, run() in a nursery, then open_downstream()."""

    def __init__(
        self,
        plan: Plan,
        node: Node,
        engine: Engine,
        key: HostKey,
        learning: Learning,
        *,
        on_sessions: Callable[[int], None],
        on_broken: Callable[[str], None],
        idle_seconds: float,
    ) -> None:
        """Serve this host's block of a plan.

        on_sessions hears how many sessions are open; on_broken hears once, with the reason, that the ring is lost.
        At the head, set `deliver` to what takes the frames for the coordinator.
        """
        own = next(stage for stage in plan.stages if stage.peer == node.peer_id)
        layers = plan.body.shape.layer_count
        role = StageRole(
            node.peer_id, plan.body.swarm, plan.id, own.lo, own.hi, layers, engine.needs_tokens_everywhere
        )
        limits = StageLimits(plan.body.sessions, plan.body.context, idle_seconds)
        self.plan = plan
        self._role = role
        self._table = StageTable(role, limits, key.signing_key)
        self._node = node
        self._engine = engine
        self._learning = learning
        self.deliver: Callable[[Frame], None] = _nobody_waits
        self._on_sessions = on_sessions
        self._on_broken = on_broken
        self._room = _INBOX_PER_SESSION * (plan.body.sessions + 1)
        self._inbox, self._frames = trio.open_memory_channel[Frame](self._room)
        self._upstream: Channel | None = None
        self._downstream: Channel | None = None
        self._scope = trio.CancelScope()
        self.broken = False
        self._opened = trio.Event()
        self._stopped = trio.Event()
        self._log = structlog.get_logger("swarmd.stage").bind(plan=plan.id)

    @property
    def _solo(self) -> bool:
        return self._role.head and self._role.tail

    @property
    def expected_upstream(self) -> PeerId | None:
        """The host that may open the forward edge to this one; None at the head."""
        peers = [stage.peer for stage in self.plan.stages]
        return None if self._role.head else peers[peers.index(self._node.peer_id) - 1]

    @property
    def expected_return(self) -> PeerId | None:
        """The host that may open the return edge to this one; None but at the head of a ring of several."""
        return self.plan.tail if self._role.head and not self._solo else None

    async def open_downstream(self) -> None:
        """Open the edge to the next stage, or from the tail to the head.

        Raises:
            NetError: it cannot be opened, or the ring has been lost meanwhile.

        """
        self._check_whole()
        if not self._solo:
            peer = self.plan.head if self._role.tail else self.plan.next_of(self._node.peer_id)
            role: EdgeRole = "return" if self._role.tail else "forward"
            edge = await open_edge(self._node, peer, self.plan.id, role)
            if self.broken:
                await edge.abort()
            else:
                self._downstream = edge
        self._check_whole()
        self._opened.set()

    def _check_whole(self) -> None:
        if self.broken:
            raise EdgeRefused(f"the ring of plan {self.plan.id} is lost already")

    def submit(self, frame: Frame) -> None:
        """Give the head a frame from the coordinator; after the ring's end its session hears that instead."""
        try:
            self._inbox.send_nowait(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._refuse(frame, "ring_changed", "the ring is no longer served")
        except trio.WouldBlock:
            self._refuse(
                frame, "busy", "the head has more frames waiting than its sessions may have in flight"
            )

    def _refuse(self, frame: Frame, code: str, message: str) -> None:
        self.deliver(ErrorFrame(frame.session, self._node.peer_id, code, message))

    async def take_edge(self, role: EdgeRole, channel: Channel) -> None:
        """Read an edge that another host opened, until it ends."""
        if role == "forward":
            self._upstream = channel
        try:
            while True:
                frame = await receive_frame(channel)
                if isinstance(frame, ErrorFrame) and not frame.session:
                    await self._break(frame)
                    return
                if role == "forward":
                    await self._inbox.send(frame)
                else:
                    self.deliver(frame)
        except EDGE_ENDS as error:
            await self._lose(channel.peer, f"the edge from it was lost: {error or 'it ended'}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # closed on this side

    async def run(self) -> None:
        """Compute frames until closed."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._compute_frames)
                    nursery.start_soon(self._tick)
                    nursery.start_soon(self._watch_downstream)
        finally:
            await self._stop()

    async def close(self, code: str, reason: str) -> None:
        """Stop serving: sessions end with `code`, edges are closed, the block stays loaded."""
        try:
            if not self.broken:
                self.broken = True
                await self._tell_all(ring_error(self._node.peer_id, code, reason))
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._stopped.wait()

    async def _compute_frames(self) -> None:
        waiting: deque[Frame] = deque()
        while True:
            if not waiting:
                waiting.append(await self._frames.receive())
            try:
                while len(waiting) < self._room:
                    waiting.append(self._frames.receive_nowait())
            except trio.WouldBlock:
                pass  # all that has come is here
            actions: list[Action] = []
            for frame in take_batch(waiting):
                if overtaken(frame, waiting):
                    self._log.debug("frame_dropped", session=frame.session, reason="a later epoch has begun")
                else:
                    actions += self._table.receive(frame, trio.current_time())
            await self._carry_out(actions)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(_TICK)
            await self._carry_out(self._table.tick(trio.current_time()))

    async def _carry_out(self, actions: Sequence[Action]) -> None:
        """Carry out what is quick, in order, then compute all frames together: they are of different sessions."""
        computes: list[Compute] = []
        for action in actions:
            match action:
                case Open(session=session):
                    await self._open(session)
                case Compute():
                    computes.append(action)
                case Forward(frame=frame):
                    await self._send_on(frame)
                case Close(session=session):
                    await self._close_session(session)
                case Drop(session=session, reason=reason):
                    self._log.debug("frame_dropped", session=session, reason=reason)
        await self._compute(computes)
        self._on_sessions(len(self._table.sessions()))

    async def _open(self, session: str) -> None:
        try:
            await self._engine.open_session(session)
        except RuntimeFailure as error:
            await self._carry_out(self._table.failed(session, error.code, str(error)))

    async def _close_session(self, session: str) -> None:
        try:
            await self._engine.close_session(session)
        except RuntimeFailure as error:
            self._log.warning("session_not_closed", session=session, code=error.code, reason=str(error))

    async def _compute(self, computes: Sequence[Compute]) -> None:
        """Compute frames in one call; if that fails, each in its own, so that only the sessions at fault fail."""
        standing = [compute for compute in computes if self._table.stands(compute)]
        if not standing:
            return
        began = time.perf_counter_ns()
        try:
            outputs, spent = await self._engine.forward([_input_of(compute) for compute in standing])
        except RuntimeFailure as error:
            if len(standing) > 1:
                self._log.info("batch_failed", frames=len(standing), code=error.code, reason=str(error))
                for compute in standing:
                    await self._compute([compute])
            else:
                session = standing[0].frame.session
                await self._carry_out(self._table.failed(session, error.code, str(error)))
            return
        actions: list[Action] = []
        for compute, output in zip(standing, outputs, strict=True):
            made = _for_the_wire(output.activation)
            try:
                chosen = await _chosen(compute, output)
            except ChoiceImpossible as error:
                actions += self._table.failed(compute.frame.session, "runtime_failed", str(error))
            else:
                actions += self._table.computed(compute, made, chosen, trio.current_time())
        if len(standing) == 1:  # what a frame costs in company is no measure of what it costs
            self._learn(standing[0].frame.width, spent, time.perf_counter_ns() - began - spent)
        await self._carry_out(actions)

    def _learn(self, width: int, compute_ns: int, overhead_ns: int) -> None:
        role = self._role
        self._learning.computed(layers=role.hi - role.lo, width=width, tail=role.tail, ns=compute_ns)
        self._learning.handed_on(overhead_ns)

    async def _send_on(self, frame: Frame) -> None:
        if self._downstream is None:
            if self._solo:
                self.deliver(frame)  # what the only stage sends downstream is for its own coordinator
            else:
                await self._lose(self._node.peer_id, "a frame came before the ring was active")
            return
        try:
            await send_frame(self._downstream, frame)
        except NetError as error:
            await self._lose(self._downstream.peer, f"the edge to it was lost: {error}")

    async def _watch_downstream(self) -> None:
        """Hear what the next stage has to say: that the ring behind it is lost."""
        await self._opened.wait()
        if self._downstream is None:
            return
        try:
            while True:
                frame = await receive_frame(self._downstream)
                if isinstance(frame, ErrorFrame):
                    await self._break(frame)
                    return
        except EDGE_ENDS as error:
            await self._lose(self._downstream.peer, f"the edge to it was lost: {error or 'it ended'}")

    async def _lose(self, peer: PeerId, reason: str) -> None:
        await self._break(ring_error(peer, "stage_lost", f"host {peer}: {reason}"))

    async def _break(self, error: ErrorFrame) -> None:
        """End the ring once, whatever the reason; the first one stands."""
        if self.broken:
            return
        self.broken = True
        self._on_broken(error.message)
        await self._tell_all(error)
        self._scope.cancel()

    async def _tell_all(self, error: ErrorFrame) -> None:
        """Tell the coordinator and both neighbours, as far as they can still be told."""
        self.deliver(error)
        async with trio.open_nursery() as nursery:
            for channel in (self._downstream, self._upstream):
                if channel is not None:
                    nursery.start_soon(_last_words, channel, error)

    async def _stop(self) -> None:
        self._inbox.close()
        self._frames.close()
        try:
            with trio.CancelScope(shield=True):
                for channel in (self._downstream, self._upstream):
                    if channel is not None:
                        await channel.abort()
                for session in self._table.sessions():
                    await self._close_session(session)
        finally:
            self._on_sessions(0)
            self._stopped.set()


async def _chosen(compute: Compute, output: FrameOutput) -> tuple[int, ...] | None:
    """Return the tokens chosen after a frame's: the runtime's own choice where nothing else was asked for."""
    choice = compute.choice
    if choice is None or output.tokens is None:
        return output.tokens
    if output.logits is None or len(output.logits) != compute.frame.width - choice.first:
        raise ChoiceImpossible("the runtime gave no logits to choose by, which sampling needs")
    # In a thread: a row of a large vocabulary takes milliseconds.
    return output.tokens[: choice.first] + await trio.to_thread.run_sync(choice.of, output.logits)


def _input_of(compute: Compute) -> FrameInput:
    frame, choice = compute.frame, compute.choice
    activation = tuple(None if t is None else Tensor(*t) for t in frame.tensors) or None
    wanted = None if choice is None else choice.first
    return FrameInput(frame.session, frame.position, frame.tokens, activation, wanted)


def _for_the_wire(activation: Activation | None) -> tuple[WireTensor | None, ...] | None:
    if activation is None:
        return None
    return tuple(None if tensor is None else WireTensor(*tensor) for tensor in activation)


async def _last_words(channel: Channel, error: ErrorFrame) -> None:
    with trio.move_on_after(_LAST_WORDS_WITHIN):
        try:
            await send_frame(channel, error)
            await channel.end()
        except NetError:
            return  # it is this channel that was lost


def _nobody_waits(frame: Frame) -> None:
    """What comes to a stage that is no head is for no coordinator here."""
