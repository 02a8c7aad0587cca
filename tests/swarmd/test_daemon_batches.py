"""Sessions side by side on a real daemon: common forward passes, the same tokens, and failures that stay with their session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from reference_swarm import ReferenceSwarm, reference_swarm
from test_daemon import ask, has_plan, limit_for, start, until

from ring.frame import DataFrame, ErrorFrame, Frame, OpenFrame, VerifiedFrame
from runtimes.base import FrameInput, FrameOutput
from runtimes.reference import generate
from runtimes.reference.runtime import ReferenceRuntime
from swarmd.stage_runner import StageRunner

PROMPTS = {"a": (5, 6, 7), "b": (8, 9), "c": (10, 11, 12, 13)}
NO_TOKEN = 1 << 20  # larger than the vocabulary


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="swarmd-") as directory:
        yield Path(directory)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The sessions of each forward call, in all daemons of this process."""
    seen: list[tuple[str, ...]] = []
    forward = ReferenceRuntime.forward

    def counted(self: ReferenceRuntime, frames: Sequence[FrameInput]) -> list[FrameOutput]:
        seen.append(tuple(frame.session for frame in frames))
        return forward(self, frames)

    monkeypatch.setattr(ReferenceRuntime, "forward", counted)
    return seen


class Coordinator:
    """Drives a head by hand: what it sends in one go waits there together."""

    def __init__(self, runner: StageRunner) -> None:
        self._runner = runner
        self._answers, self._incoming = trio.open_memory_channel[Frame](100)
        runner.deliver = self._answers.send_nowait

    async def send(self, *frames: Frame, answers: int) -> dict[str, Frame]:
        """Send frames and return their answers by session."""
        for frame in frames:
            self._runner.submit(frame)
        with trio.fail_after(20):
            received = [await self._incoming.receive() for _ in range(answers)]
        return {frame.session: frame for frame in received}


def data(session: str, position: int, tokens: Sequence[int]) -> DataFrame:
    return DataFrame(session, 0, position, len(tokens), tuple(tokens), ())


async def alone(swarm: ReferenceSwarm, home: Path) -> Coordinator:
    """Start a daemon that is the whole ring, and open a session for each prompt."""
    host = await swarm.add(model__sessions=len(PROMPTS), runtime__memory_limit=2 * limit_for(home, 1))
    await until(host, "plan", has_plan)
    runner = host.daemon._serving._runner
    assert runner is not None
    for session in PROMPTS:
        runner.submit(OpenFrame(session, runner.plan.id, "nonce", 8, 16))
    return Coordinator(runner)


async def test_what_waits_together_is_computed_in_one_call_with_the_tokens_of_each_alone(
    home: Path, calls: list[tuple[str, ...]]
) -> None:
    async with reference_swarm(home) as swarm:
        coordinator = await alone(swarm, home)
        said: dict[str, list[int]] = {session: [] for session in PROMPTS}
        due = [data(session, 0, prompt) for session, prompt in PROMPTS.items()]
        for _ in range(4):
            answers = await coordinator.send(*due, answers=len(due))
            for session, answer in answers.items():
                assert isinstance(answer, VerifiedFrame)
                said[session].append(answer.tokens[-1])
            due = [
                data(session, len(prompt) + len(said[session]) - 1, said[session][-1:])
                for session, prompt in PROMPTS.items()
            ]
    assert calls == [tuple(PROMPTS)] * 4
    assert said == {s: list(generate(home / "model", prompt, 4)) for s, prompt in PROMPTS.items()}


async def test_frames_of_one_session_keep_their_order_when_others_pass_them(
    home: Path, calls: list[tuple[str, ...]]
) -> None:
    async with reference_swarm(home) as swarm:
        coordinator = await alone(swarm, home)
        frames = [data("a", at, [token]) for at, token in enumerate(PROMPTS["a"])]
        answers = await coordinator.send(*frames, data("b", 0, PROMPTS["b"]), answers=4)
    assert calls == [("a", "b"), ("a",), ("a",)]
    for session, answer in answers.items():
        assert isinstance(answer, VerifiedFrame)
        assert [answer.tokens[-1]] == list(generate(home / "model", PROMPTS[session], 1))


async def test_a_frame_that_the_runtime_refuses_fails_its_own_session_alone(
    home: Path, calls: list[tuple[str, ...]]
) -> None:
    async with reference_swarm(home) as swarm:
        coordinator = await alone(swarm, home)
        answers = await coordinator.send(
            data("a", 0, PROMPTS["a"]),
            data("b", 0, [NO_TOKEN]),
            data("c", 0, PROMPTS["c"]),
            answers=3,
        )
    failure = answers.pop("b")
    assert isinstance(failure, ErrorFrame)
    assert failure.code == "frame_malformed"
    assert calls == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    for session, answer in answers.items():
        assert isinstance(answer, VerifiedFrame)
        assert [answer.tokens[-1]] == list(generate(home / "model", PROMPTS[session], 1))


async def test_a_runtime_that_loses_results_of_a_batch_loses_no_session(
    home: Path, calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ReferenceRuntime.forward
    monkeypatch.setattr(ReferenceRuntime, "forward", lambda self, frames: forward(self, frames)[:1])
    async with reference_swarm(home) as swarm:
        coordinator = await alone(swarm, home)
        answers = await coordinator.send(*(data(s, 0, p) for s, p in PROMPTS.items()), answers=len(PROMPTS))
    assert calls == [tuple(PROMPTS), *((session,) for session in PROMPTS)]
    assert all(isinstance(answer, VerifiedFrame) for answer in answers.values())


async def test_sessions_side_by_side_on_a_ring_of_two_say_what_each_says_alone(home: Path) -> None:
    said: dict[str, list[int]] = {}
    async with reference_swarm(home) as swarm:
        await start(swarm, home, 2)

        async def run(session: str) -> None:
            prompt = PROMPTS[session]
            said[session], final = await ask(swarm.running[0], tokens=list(prompt), max_tokens=12)
            assert final["receipts_verified"] == 2

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "a")
            nursery.start_soon(run, "b")
    for session, tokens in said.items():
        assert tokens == list(generate(home / "model", PROMPTS[session], 12))[: len(tokens)]
        assert len(tokens) == 12 or tokens[-1] == 1
