"""The bundled model in blocks against the same model whole, in bfloat16, token by token."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtimes_ring import GENEROUS, TALE, TALE_PATH, Ring, ignore
from transformers import AutoModelForCausalLM, DynamicCache

from runtimes.base import FrameInput, LoadProgress
from runtimes.hf import HfRuntime
from runtimes.tokenizer import Tokenizer

PLAIN = [
    "Once upon a time",
    "One morning a little bear",
    "The captain looked at the sea and",
    "It was a dark night, and",
    "A computer is",
    "Emma was",
    "Alice",
    "The old tower",
    "In the garden there was",
    "Tom said",
]
CHAT = [
    "Tell me a story about a fox named Pip.",
    "Write a short story about an owl and a lantern.",
    "Who are you?",
    "What is the capital of France?",
    "Name three fruits.",
    "What is a language model?",
    "Count from 3 to 9.",
    "What is 4 plus 5?",
    "Hello!",
    "Tell me a story about a dragon.",
]
EOS = 1
SPLITS = [(0, 8), (0, 3, 8), (0, 2, 5, 8), (0, 1, 4, 6, 8)]


def prompt_ids() -> list[list[int]]:
    tokenizer = Tokenizer(TALE_PATH)
    chats = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHAT]
    return [tokenizer.encode_prompt(text) for text in PLAIN] + chats


@pytest.fixture(scope="module")
def whole() -> Any:
    return AutoModelForCausalLM.from_pretrained(TALE_PATH, dtype=torch.bfloat16).eval()


@torch.inference_mode()
def generate_whole(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding with transformers' own cache, as its generate does it, without what that adds around it."""
    cache, ids = DynamicCache(config=model.config), torch.tensor([prompt])
    tokens: list[int] = []
    while len(tokens) < count and tokens[-1:] != [EOS]:
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        tokens.append(int(logits[0, -1].float().argmax()))
        ids = torch.tensor([tokens[-1:]])
    return tokens


def test_the_yardstick_is_what_generate_writes(whole: Any) -> None:
    prompt = torch.tensor([prompt_ids()[0]])
    written = whole.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False
    )
    assert generate_whole(whole, prompt[0].tolist(), 16) == written[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("cuts", SPLITS, ids=str)
def test_a_split_model_writes_what_the_whole_one_writes(whole: Any, cuts: tuple[int, ...]) -> None:
    ring = Ring(HfRuntime, TALE, cuts)
    ring.open("s")
    prompts = prompt_ids()
    assert len(prompts) == 20
    for prompt in prompts[SPLITS.index(cuts) :: len(SPLITS)]:
        assert ring.generate("s", prompt, 64, eos=EOS) == generate_whole(whole, prompt, 64)


def test_each_block_holds_and_reads_its_own_layers_only() -> None:
    cuts = (0, 3, 6, 8)
    ring = Ring(HfRuntime, TALE, cuts)
    for (lo, hi), inventory in zip(pairwise(cuts), ring.inventories, strict=True):
        assert inventory.layers == tuple(range(lo, hi))
        assert inventory.weight_bytes == inventory.memory.weights
        assert 0 < inventory.bytes_read <= inventory.weight_bytes * 1.02
        assert {int(name.split(".")[2]) for name in inventory.tensors if ".layers." in name} == set(
            range(lo, hi)
        )
        assert ("model.embed_tokens.weight" in inventory.tensors) == (lo == 0)
        assert ("lm_head.weight" in inventory.tensors) == (hi == 8)


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the kernel does not count what a process reads"
)
def test_the_kernel_agrees_that_only_own_bytes_were_read() -> None:
    def read_so_far() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    runtime = HfRuntime()
    runtime.load(TALE, 3, 4, GENEROUS, ignore)  # modules that are imported on first use are read here
    before = read_so_far()
    inventory = runtime.load(TALE, 3, 4, GENEROUS, ignore)
    headers = 64 << 10
    assert inventory.bytes_read <= read_so_far() - before <= inventory.bytes_read * 1.02 + headers


def test_progress_is_told_tensor_by_tensor() -> None:
    seen: list[LoadProgress] = []
    inventory = HfRuntime().load(TALE, 6, 8, GENEROUS, seen.append)
    assert len(seen) > 18
    assert [step.done for step in seen] == sorted(step.done for step in seen)
    assert seen[-1].done == seen[-1].total == inventory.weight_bytes


def test_a_session_does_not_see_another_one() -> None:
    ring = Ring(HfRuntime, TALE, (0, 4, 8))
    ring.open("a", "b")
    prompts = {"a": prompt_ids()[0], "b": prompt_ids()[12]}
    alone = {session: ring.generate(session, prompt, 8) for session, prompt in prompts.items()}
    together = {session: [ring.send(session, 0, prompt)[-1]] for session, prompt in prompts.items()}
    for _ in range(7):
        for session, tokens in together.items():
            position = len(prompts[session]) + len(tokens) - 1
            tokens.append(ring.send(session, position, tokens[-1:])[-1])
    assert together == alone


def test_frames_of_several_sessions_go_in_one_call() -> None:
    runtime = HfRuntime()
    runtime.load(TALE, 0, 8, GENEROUS, ignore)
    runtime.open_session("a")
    runtime.open_session("b")
    frames = [
        FrameInput("a", 0, (0, 5, 6), None),
        FrameInput("b", 0, (0, 9), None),
        FrameInput("a", 3, (7,), None),
    ]
    together = [output.tokens for output in runtime.forward(frames)]
    assert runtime.sessions() == {"a": 4, "b": 2}
    assert together == [runtime.forward([frame])[0].tokens for frame in frames]


def test_logits_are_those_that_the_tokens_are_chosen_by(whole: Any) -> None:
    runtime = HfRuntime()
    runtime.load(TALE, 0, 8, GENEROUS, ignore)
    runtime.open_session("s")
    tokens = prompt_ids()[3]
    [output] = runtime.forward([FrameInput("s", 0, tuple(tokens), None, logits_from=2)])
    assert output.logits is not None
    assert output.tokens is not None
    assert output.logits.dtype == np.dtype(np.float32)
    assert output.logits.shape == (len(tokens) - 2, 2048)
    assert tuple(output.logits.argmax(axis=1)) == output.tokens[2:]
    with torch.inference_mode():
        said = whole(torch.tensor([list(tokens)])).logits[0, 2:].float().numpy()
    assert np.abs(said - output.logits).max() <= 0.05 * np.abs(said).max()


def test_a_long_prefill_chooses_what_the_whole_model_chooses_at_its_end(whole: Any) -> None:
    prompt = (prompt_ids()[10] * 20)[:200]
    ring = Ring(HfRuntime, TALE, (0, 5, 8))
    ring.open("s")
    choices = ring.send("s", 0, prompt)
    assert len(choices) == 200
    assert choices[-1:] == tuple(generate_whole(whole, prompt, 1))


def test_a_probe_leaves_a_loaded_block_alone() -> None:
    runtime = HfRuntime()
    held = runtime.load(TALE, 0, 8, GENEROUS, ignore)
    runtime.open_session("s")
    frame = FrameInput("s", 0, (0, 5, 6), None)
    before = runtime.forward([frame])
    probe = runtime.probe(TALE, [1, 8])
    assert [width for width, _ in probe.layer_ns] == [1, 8]
    assert min([probe.tail_ns, *(ns for _, ns in probe.layer_ns)]) > 0
    assert runtime.inventory() == held
    assert runtime.sessions() == {"s": 3}
    assert runtime.forward([frame]) == before


def test_unloading_gives_everything_back() -> None:
    runtime = HfRuntime()
    runtime.load(TALE, 0, 2, GENEROUS, ignore)
    runtime.open_session("s")
    runtime.unload()
    assert (runtime.inventory().model_id, runtime.inventory().weight_bytes, runtime.sessions()) == ("", 0, {})


def test_the_device_and_its_memory_are_told() -> None:
    runtime = HfRuntime(threads=1)
    assert runtime.device()
    assert runtime.memory_free() > 0
