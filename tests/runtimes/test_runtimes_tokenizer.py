from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes_ring import TALE_PATH

from runtimes.tokenizer import ChatRefused, ChatTemplateMissing, Tokenizer, TokenizerError

TALE_TOKENIZER = Tokenizer(TALE_PATH)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Who are you?\n"}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copy(TALE_PATH / name, tmp_path / name)
    return tmp_path


def write(path: Path, **changes: object) -> None:
    fields = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(fields | changes))


def test_it_agrees_with_transformers() -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(TALE_PATH)
    assert (
        TALE_TOKENIZER.encode_prompt("Once upon a time, 世界")
        == theirs("Once upon a time, 世界")["input_ids"]
    )
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert TALE_TOKENIZER.encode_chat(CHAT) == expected
    assert TALE_TOKENIZER.vocab_size == len(theirs)
    assert TALE_TOKENIZER.decode(expected) == theirs.decode(expected, skip_special_tokens=True)


def test_a_plain_prompt_begins_with_what_the_tokenizer_puts_there() -> None:
    assert TALE_TOKENIZER.encode_prompt("Hello")[0] == 0
    assert TALE_TOKENIZER.encode_chat(CHAT).count(0) == 1


@settings(deadline=None)
@given(text=st.text(), cuts=st.lists(st.integers(1, 5)))
def test_a_stream_gives_the_whole_text_and_never_half_a_character(text: str, cuts: list[int]) -> None:
    ids = TALE_TOKENIZER.encode_prompt(text + "!")
    stream, pieces, widths = TALE_TOKENIZER.stream(), [], iter(cuts)
    while ids:
        width = next(widths, 1)
        pieces.append(stream.push(ids[:width]))
        ids = ids[width:]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) == TALE_TOKENIZER.decode(TALE_TOKENIZER.encode_prompt(text + "!"))


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match="2048"):
        TALE_TOKENIZER.stream().push([2048])


def test_the_end_tokens_come_from_the_most_specific_file(directory: Path) -> None:
    assert Tokenizer(directory).eos_ids == {1}
    write(directory / "generation_config.json", eos_token_id=[1, 5])
    assert Tokenizer(directory).eos_ids == {1, 5}
    (directory / "generation_config.json").unlink()
    (directory / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    assert Tokenizer(directory).eos_ids == {7}
    (directory / "config.json").unlink()
    assert Tokenizer(directory).eos_ids == {1}
    (directory / "special_tokens_map.json").unlink()
    (directory / "tokenizer_config.json").unlink()
    assert Tokenizer(directory).eos_ids == frozenset()


def test_a_chat_needs_a_template(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(ChatTemplateMissing, match="plain prompt"):
        Tokenizer(directory).encode_chat(CHAT)


def test_a_template_file_comes_before_the_configuration(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content | tojson }}")
    ids = Tokenizer(directory).encode_chat([{"role": "user", "content": "é"}])
    assert Tokenizer(directory).decode(ids) == '"é"'


def test_of_several_templates_the_default_is_taken(directory: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    write(directory / "tokenizer_config.json", chat_template=several)
    tokenizer = Tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == "yes"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only the user may speak') }}",
        "{{ messages[0]['name'] + 1 }}",
        "{{ ''.__class__.__mro__ }}{{ messages.append(1) }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_reported(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with pytest.raises(ChatRefused):
        Tokenizer(directory).encode_chat(CHAT)


def test_a_template_that_is_no_template_is_reported(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(TokenizerError, match="chat template"):
        Tokenizer(directory)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{}"), ("tokenizer_config.json", "{"), ("config.json", '{"eos_token_id": "</s>"}')],
)
def test_a_broken_file_is_named(directory: Path, name: str, content: str) -> None:
    (directory / name).write_text(content)
    with pytest.raises(TokenizerError, match=name if "eos" not in content else "eos_token_id"):
        Tokenizer(directory)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        Tokenizer(tmp_path)
