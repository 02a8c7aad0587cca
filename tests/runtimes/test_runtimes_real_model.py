"""SmolLM2-135M-Instruct after its import: it says what it should, and may be used."""

from __future__ import annotations

import gguf
import pytest
from real_model import gguf_of_smollm2, smollm2

from runtimes.hf.whole import generate_whole
from runtimes.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model


def test_the_weights_are_free_to_use() -> None:
    assert gguf.GGUFReader(gguf_of_smollm2()).fields["general.license"].contents() == "apache-2.0"


def test_it_answers_in_a_conversation_and_ends_its_turn() -> None:
    path = smollm2().path
    tokenizer = Tokenizer(path)
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = generate_whole(path, prompt, 32, threads=1)
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in tokenizer.eos_ids


def test_numbers_are_read_digit_by_digit() -> None:
    tokenizer = Tokenizer(smollm2().path)
    ids = tokenizer.encode_prompt("  1234")
    assert [tokenizer.decode([token]) for token in ids] == ["  ", "1", "2", "3", "4"]
