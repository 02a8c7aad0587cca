"""One model, one to four hosts: the ring says exactly what the whole model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from served_swarm import SESSIONS, ServedModel, swarm_of

from runtimes.hf.whole import generate_whole
from runtimes.tokenizer import Tokenizer
from swarmd import control
from swarmd.local_swarm import LocalHost

pytestmark = pytest.mark.swarm

CHATS = [
    "Tell me a story about small computers that work together.",
    "Tell me a story about a fox named Pip.",
    "Write a short story about an owl and a lantern.",
    "Who are you?",
    "What is the capital of France?",
    "Name three fruits.",
    "What is a language model?",
    "Count from 3 to 9.",
    "What is 4 plus 5?",
    "Hello!",
    "How can I bake a cake?",
    "Tell me a story about a dragon.",
]
PLAIN = [
    "Once upon a time",
    "One morning a little bear",
    "The captain looked at the sea and",
    "It was a dark night, and",
    "A computer is",
    "The old house stood",
    "She opened the door and saw",
    "Far away, behind the hills,",
]


@pytest.fixture(scope="module")
def expected(served: ServedModel) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, what transformers generates after them on the whole model) of the model's share of the prompts."""
    path = served.source.path
    tokenizer = Tokenizer(path)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHATS]
    prompts += [tokenizer.encode_prompt(text) for text in PLAIN]
    prompts = prompts[:: len(prompts) // served.prompts]
    return [(ids, generate_whole(path, ids, served.max_tokens, threads=1)) for ids in prompts]


async def generate(host: LocalHost, max_tokens: int, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    """Ask a daemon; return the tokens and the final message."""
    tokens: list[int] = []
    final: dict[str, Any] = {}
    async with control.stream(host.socket, "generate", max_tokens=max_tokens, **fields) as reply:
        async for message in reply:
            if message.get("event") == "token":
                tokens += message["tokens"]
            final = message
    return tokens, final


@pytest.mark.parametrize("hosts", [1, 2, 3, 4])
async def test_a_ring_says_what_the_whole_model_says(
    hosts: int,
    swarm_home: Path,
    served: ServedModel,
    expected: list[tuple[list[int], list[int]]],
) -> None:
    async with swarm_of(swarm_home, served, hosts) as swarm:

        async def check(numbers: range) -> None:
            for number in numbers:
                prompt, answer = expected[number]
                tokens, final = await generate(swarm.hosts[number % hosts], served.max_tokens, tokens=prompt)
                assert tokens == answer, f"prompt {number}"
                assert final["receipts_verified"] == final["receipts"] == hosts

        async with trio.open_nursery() as nursery:  # two sessions at a time, side by side in every stage
            for start in range(SESSIONS):
                nursery.start_soon(check, range(start, len(expected), SESSIONS))

        blocks = [(await host.status())["block"] for host in swarm.hosts]
        assert sorted(layer for block in blocks for layer in block["layers"]) == list(
            range(served.shape.layer_count)
        )
        for block in blocks:
            assert block["foreign_layers"] == []
            assert block["layers"] == list(range(block["lo"], block["hi"]))
            assert block["tensors"] > 0


async def test_text_streams_and_prompts_may_be_text_chat_or_tokens(
    swarm_home: Path, served: ServedModel
) -> None:
    tokenizer, most = Tokenizer(served.source.path), served.max_tokens
    async with swarm_of(swarm_home, served, 2) as swarm:
        chat = [{"role": "user", "content": CHATS[0]}]
        by_chat, _ = await generate(swarm.hosts[0], most, messages=chat)
        by_tokens, _ = await generate(swarm.hosts[1], most, tokens=tokenizer.encode_chat(chat))
        assert by_chat == by_tokens
        by_text, _ = await generate(swarm.hosts[0], most, prompt=PLAIN[0])
        assert by_text == (await generate(swarm.hosts[1], most, tokens=tokenizer.encode_prompt(PLAIN[0])))[0]

        with pytest.raises(control.RemoteError) as too_long:
            await generate(swarm.hosts[0], most, tokens=[5] * 600)
        assert too_long.value.code == "context_exceeded"
        with pytest.raises(control.RemoteError) as unknown:
            await generate(swarm.hosts[1], most, model="nosuch", prompt="x")
        assert unknown.value.code == "model_unknown"
        with pytest.raises(control.RemoteError) as bad:
            await generate(swarm.hosts[1], most, tokens=[99_999])
        assert bad.value.code == "bad_request"
