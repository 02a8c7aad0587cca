"""A ring of stages in one process, over an integer model whose answer depends on every token, position and layer."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from nacl.signing import SigningKey

from ring.drafter import TokenDrafter
from ring.frame import ErrorFrame, FinishFrame, Frame, VerifiedFrame, WireTensor, decode, encode
from ring.generation import Assigned, Done
from ring.identity import PeerId, peer_id_of
from ring.sampling import Sampling
from ring.session import Action as SessionAction
from ring.session import Commit, Failed, Finished, Send, Session
from ring.session_spec import SessionSpec
from ring.stage import Action, Close, Compute, Forward, Open, StageLimits, StageRole, StageTable, overtaken
from ring.token_choice import Logits, choose

VOCAB = 13
LAYERS = 6
_MODULUS = 2**31 - 1


def key_of(index: int) -> SigningKey:
    return SigningKey(hashlib.sha256(b"stage %d" % index).digest())


def peer_of(index: int) -> PeerId:
    return peer_id_of(bytes(key_of(index).verify_key))


def blocks_of(cuts: Sequence[int], layers: int = LAYERS) -> list[tuple[int, int]]:
    return list(pairwise([0, *sorted(set(cuts) - {0, layers}), layers]))


class Block:
    """Layers [lo, hi): each keeps all hidden states that it has seen, and mixes them into the present one."""

    def __init__(self, lo: int, hi: int) -> None:
        self._caches: dict[int, list[int]] = {layer: [] for layer in range(lo, hi)}

    def forward(self, position: int, hidden: Sequence[int]) -> list[int]:
        states = list(hidden)
        for layer, cache in self._caches.items():
            assert position <= len(cache), "a gap in the frames has reached the runtime"
            del cache[position:]
            for i, state in enumerate(states):
                cache.append(state)
                states[i] = (
                    sum((layer + 2) ** (at % 5) * seen for at, seen in enumerate(cache)) + 7 * layer
                ) % _MODULUS
        return states


def generate(prompt: Sequence[int], limit: int, eos: frozenset[int]) -> tuple[list[int], str]:
    """What the whole model says, token by token, without any ring."""
    block, tokens = Block(0, LAYERS), list(prompt)
    chosen = block.forward(0, tokens)[-1] % VOCAB
    for _ in range(limit):
        tokens.append(chosen)
        if chosen in eos:
            return tokens[len(prompt) :], "stop"
        chosen = block.forward(len(tokens) - 1, [chosen])[-1] % VOCAB
    return tokens[len(prompt) :], "length"


def logits_of(states: Sequence[int]) -> Logits:
    """What the model says of every token to follow, if it is to be sampled."""
    return np.array(
        [[state * (token + 3) % 97 / 20 for token in range(VOCAB)] for state in states], np.float32
    )


def generate_sampled(prompt: Sequence[int], limit: int, rule: Sampling) -> list[int]:
    """What sampling from the whole model says, token by token, without any ring."""
    block, tokens = Block(0, LAYERS), list(prompt)
    states = block.forward(0, tokens)
    for _ in range(limit):
        tokens += choose(
            rule, logits_of(states[-1:]), position=len(tokens), ids=tokens, prompt_tokens=len(prompt)
        )
        states = block.forward(len(tokens) - 1, tokens[-1:])
    return tokens[len(prompt) :]


def packed(states: Sequence[int]) -> WireTensor:
    return WireTensor("int64", (1, len(states), 1), b"".join(state.to_bytes(8, "little") for state in states))


def unpacked(tensor: WireTensor | None) -> list[int]:
    assert tensor is not None
    return [int.from_bytes(tensor.data[at : at + 8], "little") for at in range(0, len(tensor.data), 8)]


class Stage:
    """A StageTable with its runtime: carries out the actions at once, and hands back what goes downstream."""

    def __init__(
        self, index: int, lo: int, hi: int, limits: StageLimits, tokens_everywhere: bool = False
    ) -> None:
        self.peer = peer_of(index)
        role = StageRole(self.peer, "home", "plan-1", lo, hi, LAYERS, tokens_everywhere)
        self.table = StageTable(role, limits, key_of(index))
        self.blocks: dict[str, Block] = {}
        self.now = 0.0

    def receive(self, frame: Frame) -> list[Frame]:
        return self.carry_out(self.table.receive(frame, self.now))

    def carry_out(self, actions: Sequence[Action]) -> list[Frame]:
        sent: list[Frame] = []
        for action in actions:
            match action:
                case Open(session):
                    self.blocks[session] = Block(self.table.role.lo, self.table.role.hi)
                case Close(session):
                    del self.blocks[session]
                case Compute():
                    sent += self.carry_out(self._compute(action))
                case Forward(frame):
                    sent.append(frame)
        return sent

    def _compute(self, compute: Compute) -> list[Action]:
        frame, role = compute.frame, self.table.role
        states = list(frame.tokens or ()) if role.head else unpacked(frame.tensors[0])
        states = self.blocks[frame.session].forward(frame.position, states)
        if role.tail:
            chosen = [state % VOCAB for state in states]
            if compute.choice is not None:
                first = compute.choice.first
                chosen[first:] = compute.choice.of(logits_of(states[first:]))
            return self.table.computed(compute, None, chosen, self.now)
        return self.table.computed(compute, (packed(states),), None, self.now)


class SimulatedRing:
    """Stages joined by queues of encoded frames, a coordinator at both ends. edges[i] leads into stage i, the last one back."""

    def __init__(
        self,
        blocks: Sequence[tuple[int, int]],
        spec: SessionSpec,
        sessions: int = 1,
        drafter: TokenDrafter | None = None,
    ) -> None:
        limits = StageLimits(sessions=sessions, context=spec.context)
        self.stages = [Stage(index, lo, hi, limits) for index, (lo, hi) in enumerate(blocks)]
        self.edges: list[deque[bytes]] = [deque() for _ in range(len(blocks) + 1)]
        self.session = Session(spec, 0.0, drafter)
        self.committed: list[int] = []
        self.dropped = 0
        self.returned: list[Frame] = []
        self.end: Finished | Failed | None = None
        self.now = 0.0

    def push(self, edge: int, frame: Frame) -> None:
        self.edges[edge].append(b"".join(encode(frame)))

    def act(self, actions: Sequence[SessionAction]) -> None:
        for action in actions:
            assert self.end is None, "an action after the end"
            match action:
                case Send(frame):
                    self.push(0, frame)
                case Commit(tokens):
                    self.committed += tokens
                case Finished() | Failed():
                    self.end = action

    def step(self, edge: int) -> None:
        """Let the reader of one edge take its next frame."""
        self.now += 0.001
        frame = decode(self.edges[edge].popleft())
        if edge == len(self.stages):
            self.returned.append(frame)
            self.act(self.answer(frame))
            return
        if overtaken(frame, map(decode, self.edges[edge])):
            self.dropped += 1
            return
        for sent in self.stages[edge].receive(frame):
            self.push(edge + 1, sent)

    def answer(self, frame: Frame) -> list[SessionAction]:
        match frame:
            case VerifiedFrame():
                return self.session.verified(frame.epoch, frame.position, frame.tokens, self.now)
            case FinishFrame():
                return self.session.receipts(frame.receipts, self.now)
            case ErrorFrame():
                return self.session.failed(frame.code, frame.message, frame.stage, self.now)
            case _:
                raise AssertionError(f"the tail has sent {frame} to the coordinator")

    def drain(self) -> None:
        """Let every reader read until all edges are empty."""
        while waiting := [edge for edge, queue in enumerate(self.edges) if queue]:
            self.step(waiting[-1])

    def run(self) -> Finished:
        self.act(self.session.start(self.now))
        self.drain()
        assert isinstance(self.end, Finished), self.end
        return self.end

    def done(self, end: Finished) -> Done:
        spec = self.session.spec
        return Done(
            job=spec.id,
            swarm="home",
            nonce=spec.nonce,
            finish_reason=end.reason,
            prompt_tokens=end.stats.prompt_tokens,
            completion_tokens=end.stats.tokens,
            layer_count=LAYERS,
            assignment=tuple(Assigned(s.peer, s.table.role.lo, s.table.role.hi) for s in self.stages),
            frames=end.frames,
            receipts=end.receipts,
            ttft_us=end.stats.ttft_us,
            total_us=end.stats.total_us,
            traversals=end.stats.traversals,
            speculation=end.stats.speculation,
        )


def spec_of(prompt: Sequence[int] = (1, 2, 3), *, max_tokens: int = 5, **changes: object) -> SessionSpec:
    fields: dict[str, object] = {
        "id": "session-1",
        "plan": "plan-1",
        "nonce": "nonce-1",
        "prompt": tuple(prompt),
        "max_tokens": max_tokens,
        "eos": frozenset[int](),
        "context": 64,
        "vocab": VOCAB,
        "prefill_chunk": 2,
        "window": 2,
        "progress_seconds": 30.0,
    }
    return SessionSpec(**{**fields, **changes})  # type: ignore[arg-type]
