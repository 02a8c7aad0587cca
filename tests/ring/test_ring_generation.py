"""The generate protocol: every message survives the wire, bad ones are named, and `done` proves its tokens or is refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import generate_exchange
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_ring import LAYERS, VOCAB, SimulatedRing, blocks_of, peer_of, spec_of

from ring.generation import (
    ERRORS,
    Assigned,
    ChatMessage,
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
    MAX_REQUEST,
    decode_event,
    decode_request,
    encode,
    event_from_map,
    request_from_map,
)
from ring.receipt_check import ReceiptError
from ring.receipts import TokenFrame
from ring.session_stats import SpeculationStats, Tried

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"

ids = st.text("abcXYZ019._:-", min_size=1, max_size=64)
counts = st.integers(0, 2**53 - 1)
ones = st.integers(1, 2**53 - 1)
token_ids = st.lists(counts, max_size=12).map(tuple)
prose = st.text(max_size=100)
names = st.text(st.characters(categories=["L", "N"]), max_size=20)
peers = st.integers(0, 3).map(peer_of)
receipts = st.lists(st.dictionaries(names, names | counts, max_size=6), max_size=3).map(tuple)


tried = st.lists(st.builds(Tried, counts, counts, counts), max_size=3).map(tuple)
speculation = st.builds(SpeculationStats, names, *[counts] * 7, tried, tried)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    what = draw(
        st.one_of(
            st.fixed_dictionaries({"prompt": prose}),
            st.fixed_dictionaries({"tokens": token_ids}),
            st.fixed_dictionaries(
                {
                    "messages": st.lists(st.builds(ChatMessage, names, prose), min_size=1, max_size=4).map(
                        tuple
                    )
                }
            ),
        )
    )
    return GenerateRequest(
        model=draw(names),
        max_tokens=draw(st.integers(1, 1 << 20)),
        nonce=draw(st.just("") | ids),
        draft=draw(st.sampled_from(["auto", "ngram", "none"])),
        forwarded=draw(st.booleans()),
        **what,
    )


@st.composite
def token_frames(draw: st.DrawFn) -> TokenFrame:
    width = draw(st.integers(0, 5))
    exactly = st.lists(counts, min_size=width, max_size=width).map(tuple)
    return TokenFrame(draw(counts), draw(exactly), draw(exactly))


@st.composite
def assigned(draw: st.DrawFn) -> Assigned:
    lo = draw(st.integers(0, 100))
    return Assigned(draw(peers), lo, draw(st.integers(lo + 1, 200)))


events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Started, job=ids, model=names, prompt_tokens=ones, coordinator=peers, plan=ids),
    st.builds(TokenEvent, token_ids, prose),
    st.builds(ErrorEvent, ids, names, st.just("") | peers),
    st.builds(
        Done,
        job=ids,
        swarm=names,
        nonce=ids,
        finish_reason=st.sampled_from(["stop", "length"]),
        prompt_tokens=ones,
        completion_tokens=ones,
        layer_count=ones,
        assignment=st.lists(assigned(), max_size=3).map(tuple),
        frames=st.lists(token_frames(), max_size=4).map(tuple),
        receipts=receipts,
        ttft_us=counts,
        total_us=counts,
        traversals=counts,
        speculation=speculation,
    ),
)


@given(requests())
def test_every_request_survives_the_wire_and_json(request: GenerateRequest) -> None:
    assert decode_request(encode(request)) == request
    assert request_from_map(json.loads(json.dumps(request.to_map()))) == request


@given(events)
def test_every_event_survives_the_wire_and_json(event: Event) -> None:
    assert decode_event(encode(event)) == event
    assert event_from_map(json.loads(json.dumps(event.to_map()))) == event


@given(requests(), events)
def test_a_field_of_a_newer_peer_is_ignored(request: GenerateRequest, event: Event) -> None:
    assert request_from_map({**request.to_map(), "temperature": 0}) == request
    assert event_from_map({**event.to_map(), "logprobs": []}) == event


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        decode_request(data)
    with contextlib.suppress(RequestError):
        decode_event(data)


@given(requests() | events, st.data())
def test_a_changed_message_gives_a_message_or_a_request_error(
    message: GenerateRequest | Event, data: st.DataObject
) -> None:
    changed = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RequestError):
        decode_request(bytes(changed))
    with contextlib.suppress(RequestError):
        decode_event(bytes(changed))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": None}, "none of them given"),
        ({"tokens": [1]}, "prompt and tokens given"),
        ({"prompt": 5}, "prompt is a int, but must be text"),
        ({"prompt": "a\ud800"}, "prompt holds a lone surrogate"),
        ({"prompt": None, "messages": []}, "messages is empty"),
        ({"prompt": None, "messages": ["hello"]}, r"messages\[0\]"),
        ({"prompt": None, "messages": [{"role": "user"}]}, "content is missing"),
        ({"prompt": None, "messages": [{"role": 1, "content": ""}]}, r"messages\[0\].role"),
        (
            {"prompt": None, "messages": [{"role": "user", "content": "x"}] * 1025},
            "messages has 1025 entries",
        ),
        ({"prompt": None, "tokens": [1, -1]}, r"tokens\[1\] is -1"),
        ({"prompt": None, "tokens": [True]}, r"tokens\[0\] is True"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
        ({"max_tokens": (1 << 20) + 1}, "max_tokens is 1048577"),
        ({"model": ["tale"]}, "model is"),
        ({"forwarded": 1}, "forwarded is '1', but must be true or false"),
        ({"nonce": "no spaces"}, "nonce is 'no spaces'"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(change: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        request_from_map({"model": "tale", "max_tokens": 5, "prompt": "Once", **change})
    assert refused.value.code == "bad_request"
    assert "\n" not in str(refused.value)


def test_max_tokens_must_be_said_and_the_rest_need_not() -> None:
    with pytest.raises(RequestError, match="max_tokens is missing"):
        request_from_map({"prompt": "Once"})
    assert request_from_map({"prompt": "", "max_tokens": 1}) == GenerateRequest("", 1, prompt="")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"event": "progress"}, "event is 'progress'"),
        ({"finish_reason": "eos"}, "finish_reason is 'eos'"),
        ({"usage": {"prompt_tokens": 3}}, "completion_tokens is missing"),
        ({"assignment": [[peer_of(0), 0]]}, r"assignment\[0\] has 2 entries"),
        ({"assignment": [[peer_of(0), 2, 2]]}, r"assignment\[0\].hi is 2"),
        ({"assignment": [["me", 0, 2]]}, r"assignment\[0\].peer"),
        ({"frames": {"positions": [0], "widths": [2], "tokens": [1], "chosen": [1]}}, "widths sum to 2"),
        (
            {"frames": {"positions": [0], "widths": [], "tokens": [], "chosen": []}},
            "1 positions, but 0 widths",
        ),
        ({"frames": {"positions": [0], "widths": [1], "tokens": [1]}}, "chosen is missing"),
        ({"receipts": [{"n": 1.5}]}, r"receipts\[0\].n is 1.5"),
    ],
)
def test_a_bad_event_is_refused_by_the_name_of_its_field(change: dict[str, object], says: str) -> None:
    done = generate_exchange.answer()[-1]
    with pytest.raises(RequestError, match=says):
        event_from_map({**done.to_map(), **change})


def test_a_request_over_its_size_is_neither_sent_nor_parsed() -> None:
    request = GenerateRequest("tale", 1, prompt="x" * MAX_REQUEST)
    with pytest.raises(RequestError, match="more than the 4194304"):
        encode(request)
    with pytest.raises(RequestError, match="more than the 4194304"):
        decode_request(msgpack.packb(request.to_map()))


def test_text_that_is_no_unicode_is_not_sent() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        encode(GenerateRequest("tale", 1, prompt="\ud800"))


def test_an_error_event_is_one_line_whatever_the_exception_said() -> None:
    assert decode_event(encode(ErrorEvent("internal", "first\nsecond"))) == ErrorEvent(
        "internal", "first second"
    )


def test_a_generation_error_carries_its_code_and_its_stage() -> None:
    error = GenerationError("stage_lost", "its connection broke", peer_of(1))
    assert (error.code, str(error), error.stage) == ("stage_lost", "its connection broke", peer_of(1))


HONEST = generate_exchange.answer()[-1]
assert isinstance(HONEST, Done)
PROMPT = (1, 2, 3)
TOKENS = tuple(
    token for event in generate_exchange.answer() if isinstance(event, TokenEvent) for token in event.tokens
)


@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
    st.lists(st.integers(1, LAYERS - 1), max_size=4),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
)
def test_an_honest_generation_verifies_from_what_the_client_knows(
    prompt: list[int], cuts: list[int], most: int, chunk: int, eos: set[int]
) -> None:
    ring = SimulatedRing(
        blocks_of(cuts), spec_of(prompt, max_tokens=most, prefill_chunk=chunk, eos=frozenset(eos))
    )
    done = decode_event(encode(ring.done(ring.run())))
    assert isinstance(done, Done)
    for known in (prompt, None):
        assert verify_done(known, ring.committed, done, nonce="nonce-1") == len(ring.stages)


def check_of(prompt: tuple[int, ...] | None, tokens: tuple[int, ...], done: Done, nonce: str = "") -> str:
    with pytest.raises(ReceiptError) as refused:
        verify_done(prompt, tokens, done, nonce=nonce)
    return refused.value.check


def test_tokens_other_than_those_received_are_refused() -> None:
    assert isinstance(HONEST, Done)
    assert check_of(PROMPT, (TOKENS[0], TOKENS[1] + 1), HONEST) == "tokens"
    assert check_of(PROMPT, (TOKENS[0] + 1, TOKENS[1]), HONEST) == "tokens"
    assert check_of(PROMPT, TOKENS[:1], HONEST) == "tokens"
    assert check_of(PROMPT, (), replace(HONEST, completion_tokens=0)) == "tokens"
    assert check_of((1, 2, 4), TOKENS, HONEST) == "tokens"
    assert check_of((1, 2), TOKENS, HONEST) == "tokens"
    assert check_of(None, TOKENS, replace(HONEST, prompt_tokens=2)) == "tokens"


def test_frames_that_suit_the_tokens_but_not_the_receipts_are_refused() -> None:
    assert isinstance(HONEST, Done)
    *most, last = HONEST.frames
    forged = replace(HONEST, frames=(*most, last._replace(chosen=(last.chosen[0] + 1,))))
    assert check_of(PROMPT, (TOKENS[0], TOKENS[1] + 1), forged) == "tail_root"
    first, *rest = HONEST.frames
    other = replace(HONEST, frames=(first._replace(tokens=(first.tokens[0] + 1, *first.tokens[1:])), *rest))
    assert check_of((2, 2, 3), TOKENS, other) == "head_root"
    assert check_of(PROMPT, TOKENS, replace(HONEST, frames=(last, *most))) == "tokens"


def test_a_receipt_that_did_not_come_is_named() -> None:
    assert isinstance(HONEST, Done)
    assert check_of(PROMPT, TOKENS, replace(HONEST, receipts=HONEST.receipts[:1])) == "missing"
    assert check_of(PROMPT, TOKENS, replace(HONEST, receipts=())) == "missing"


def test_an_answer_with_another_nonce_than_asked_for_is_refused() -> None:
    assert isinstance(HONEST, Done)
    assert verify_done(PROMPT, TOKENS, HONEST, nonce="c0ffee") == 2
    assert check_of(PROMPT, TOKENS, HONEST, nonce="fresh") == "nonce"
    assert check_of(PROMPT, TOKENS, replace(HONEST, nonce="fresh"), nonce="fresh") == "nonce"


def test_the_protocol_page_shows_the_bytes_that_the_code_sends() -> None:
    assert generate_exchange.section() in PAGE.read_text()


def test_the_protocol_page_lists_every_error_code_with_its_meaning() -> None:
    page = PAGE.read_text()
    for code, meaning in ERRORS.items():
        assert f"| `{code}` | {meaning} |" in page
