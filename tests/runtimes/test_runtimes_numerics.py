"""Exact numerics: the bits of a token's result depend neither on its frame nor on the sessions beside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_catalogue import LAYERS, config_of, make_checkpoint
from runtimes_ring import GENEROUS, TALE, Ring

from runtimes.base import FrameInput, FrameOutput
from runtimes.hf import HfRuntime
from runtimes.hf.tail import Tail

TEXT = torch.randint(3, 380, (120,), generator=torch.Generator().manual_seed(4)).tolist()
PROMPT = 40


class Heard:
    """The logits that a ring's tail has computed, by position."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[torch.Tensor] = []
        original = Tail.logits

        def logits(tail: Tail, *args: Any) -> torch.Tensor:
            rows = original(tail, *args)
            if not rows.is_meta:
                self.rows.append(rows)
            return rows

        monkeypatch.setattr(Tail, "logits", logits)

    def take(self) -> torch.Tensor:
        rows, self.rows = torch.cat(self.rows), []
        return rows


def exact_ring(**settings: Any) -> Ring:
    ring = Ring(partial(HfRuntime, **settings), TALE, (0, 3, 8), GENEROUS)
    for stage in ring.stages:
        if not stage.numerics().startswith("exact"):
            pytest.skip(f"this machine says itself that it is not: {stage.numerics()}")
    ring.open("s", "t", "u")
    return ring


def plain(ring: Ring, heard: Heard, session: str = "s") -> torch.Tensor:
    """Prefill in one frame, then token by token; returns the logits of all tokens behind the prompt."""
    ring.send(session, 0, TEXT[:PROMPT])
    heard.take()
    for position in range(PROMPT, len(TEXT)):
        ring.send(session, position, TEXT[position : position + 1])
    return heard.take()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_frames_of_any_width_with_wrong_guesses_give_the_same_bits(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        heard = Heard(monkeypatch)
        ring = exact_ring()
        expected = plain(ring, heard)
        ring.send("s", 0, TEXT[:PROMPT])
        heard.take()
        position, rows = PROMPT, []
        while position < len(TEXT):
            width = data.draw(st.integers(1, 8))
            right = data.draw(st.integers(1, width))
            frame = TEXT[position : position + right]
            ring.send("s", position, frame + [9] * (width - right))
            rows.append(heard.take()[: len(frame)])
            position += len(frame)
        assert torch.equal(torch.cat(rows), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sessions_side_by_side_give_the_same_bits_as_alone(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(monkeypatch)
    ring = exact_ring(dtype=dtype, numerics="exact")
    expected = plain(ring, heard)
    lengths = {"s": PROMPT, "t": 7, "u": 23}
    for session, length in lengths.items():
        ring.send(session, 0, TEXT[:length])
    heard.take()
    rows = []
    for step in range(10):
        frames = [
            FrameInput(session, length + step * width, tuple(TEXT[length + step * width :][:width]), None)
            for (session, length), width in zip(lengths.items(), (1, 3, 5), strict=True)
        ]
        outputs = [FrameOutput(None, None)] * len(frames)
        for stage in ring.stages:
            given_on = [
                FrameInput(f.session, f.position, f.tokens if stage is ring.stages[0] else None, o.activation)
                for f, o in zip(frames, outputs, strict=True)
            ]
            outputs = stage.forward(given_on)
        rows.append(heard.rows[0])
        heard.take()
    assert torch.equal(torch.cat(rows), expected[:10])


def test_a_block_says_how_it_computes_and_keeps_to_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = HfRuntime(numerics="fast")
    assert runtime.numerics() == ""
    ring = Ring(partial(HfRuntime, numerics="fast"), TALE, (0, 8))
    assert ring.stages[0].numerics() == "not exact (chosen by runtime.numerics)"
    monkeypatch.setattr("runtimes.hf.numerics._rows_are_independent", lambda block: False)
    ring = Ring(HfRuntime, TALE, (0, 8))
    assert ring.stages[0].numerics().startswith("not exact (rows")
    ring = Ring(partial(HfRuntime, numerics="exact"), TALE, (0, 8))
    assert ring.stages[0].numerics().startswith("exact (token by token, because rows")
    heard = Heard(monkeypatch)
    ring.open("s")
    expected = plain(ring, heard)
    ring.send("s", 0, TEXT[:PROMPT])
    heard.take()
    ring.send("s", PROMPT, TEXT[PROMPT : PROMPT + 7])
    assert torch.equal(heard.take(), expected[:7])


@pytest.mark.parametrize("name", ["gemma3_text", "mistral", "llama4_text", "mixtral", "gpt2", "opt", "qwen3"])
def test_windows_chunks_and_experts_are_seen_row_by_row_as_in_a_frame(name: str, tmp_path: Path) -> None:
    source = make_checkpoint(config_of(name), tmp_path)
    by_rows = Ring(partial(HfRuntime, dtype="float32"), source, (0, 2, LAYERS))
    assert all(stage._loaded.block.packs for stage in by_rows.stages)  # type: ignore[attr-defined]
    plain = Ring(partial(HfRuntime, dtype="float32", numerics="fast"), source, (0, 2, LAYERS))
    for ring in (by_rows, plain):
        ring.open("s")
    for stage in by_rows.stages:
        stage._loaded.block.by_rows = True  # type: ignore[attr-defined]
    for start, end in ((0, 20), (20, 25), (25, 26), (26, 40)):
        assert by_rows.send("s", start, TEXT[start:end]) == plain.send("s", start, TEXT[start:end])


@pytest.mark.parametrize("name", ["bloom", "gpt_oss", "deepseek_v32", "qwen3_next", "gemma3n_text"])
def test_what_does_not_go_row_by_row_goes_session_by_session(name: str, tmp_path: Path) -> None:
    ring = Ring(HfRuntime, make_checkpoint(config_of(name), tmp_path), (0, LAYERS))
    block = ring.stages[0]._loaded.block  # type: ignore[attr-defined]
    assert not block.packs
    ring.open("s", "t")
    for session in "st":
        ring.send(session, 0, TEXT[:20])
    alone = ring.send("s", 20, TEXT[20:23])
    frames = [FrameInput(session, 20, tuple(TEXT[20:23]), None) for session in "st"]
    assert [output.tokens for output in ring.stages[0].forward(frames)] == [alone, alone]
