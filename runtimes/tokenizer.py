"""Text to token ids and back, read from a checkpoint directory without torch or transformers.

transformers takes seconds to import and brings torch; a gateway that only tokenizes needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import tokenizers
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from runtimes.base import RuntimeFailure

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerError(RuntimeFailure):
    """The tokenizer files are missing or broken, or an id is not in the vocabulary. Fix the file that is named."""

    code: ClassVar[str] = "tokenizer_bad"


class ChatTemplateMissing(TokenizerError):
    """The model has no chat template, so it takes plain prompts only. Send `prompt` instead of `messages`."""

    code = "chat_template_missing"


class ChatRefused(TokenizerError):
    """The model's chat template does not accept these messages. The text is the template's own; change the messages."""

    code = "chat_refused"


class TextStream:
    """Text of a growing list of token ids, given out as soon as it is whole UTF-8."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that `ids` complete; what is left of a split character waits for the next call.

        Raises:
            TokenizerError: an id is not in the vocabulary.

        """
        return "".join(self._step(token) for token in ids)

    def _step(self, token: int) -> str:
        if self._tokenizer.id_to_token(token) is None:
            raise TokenizerError(
                f"token id {token} is not in the vocabulary of {self._tokenizer.get_vocab_size()}"
            )
        return self._stream.step(self._tokenizer, token) or ""


class Tokenizer:
    """The tokenizer of a checkpoint directory.

    Args:
        path: directory with tokenizer.json, and optionally tokenizer_config.json, special_tokens_map.json,
            chat_template.jinja, generation_config.json and config.json.

    Attributes:
        eos_ids: token ids that end a generation: of generation_config.json, else config.json, else the
            tokenizer's own; empty when the model names none.

    Raises:
        TokenizerError: tokenizer.json is missing or one of the files cannot be read.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer = _load(path / "tokenizer.json")
        settings = _read_json(path / "tokenizer_config.json")
        self._specials = _special_tokens(settings, _read_json(path / "special_tokens_map.json"))
        self._template = _chat_template(path, settings)
        self._longest = max((len(token) for token in self._tokenizer.get_vocab()), default=1) or 1
        self.eos_ids = self._find_eos()

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special and added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether encode_chat works."""
        return self._template is not None

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at the least, without encoding it: none stands for more characters than the
        longest entry of the vocabulary has.
        """
        return len(text) // self._longest

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a plain text, with the special tokens that the tokenizer puts around one."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation, ending where the model's answer begins.

        Args:
            messages: maps with "role" and "content", oldest first.

        Raises:
            ChatTemplateMissing: the checkpoint has no chat template.
            ChatRefused: the template does not accept the messages.

        """
        if self._template is None:
            raise ChatTemplateMissing(f"{self._path} has no chat template: send a plain prompt")
        try:
            text = self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=True, **self._specials
            )
        except (TemplateError, TypeError) as error:  # a template may add a string and None
            raise ChatRefused(f"the chat template does not accept the messages: {error}") from error
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode by encode_batch: unlike encode, it lets other threads run meanwhile."""
        return list(self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens. Unlike a stream's, it may end in a broken character."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> TextStream:
        """Return a new incremental decoder."""
        return TextStream(self._tokenizer)

    def _find_eos(self) -> frozenset[int]:
        config = _read_json(self._path / "config.json")
        for settings in (
            _read_json(self._path / "generation_config.json"),
            config,
            config.get("text_config") or {},
        ):
            named = settings.get("eos_token_id")
            ids = named if isinstance(named, list) else [] if named is None else [named]
            if not all(isinstance(token, int) and token >= 0 for token in ids):
                raise TokenizerError(
                    f"{self._path}: eos_token_id is {named!r}; it must be an id or a list of ids"
                )
            if ids:
                return frozenset(ids)
        own = self._tokenizer.token_to_id(self._specials.get("eos_token", ""))
        return frozenset() if own is None else frozenset({own})


def _load(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TokenizerError(f"{path} does not exist: the checkpoint needs a fast tokenizer (tokenizer.json)")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must hold a JSON object")
    return value


def _special_tokens(*files: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        for name in _SPECIAL_TOKENS:
            token = file.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found.setdefault(name, content)
    return found


def _chat_template(path: Path, settings: Mapping[str, Any]) -> Template | None:
    """Compile the chat template: chat_template.jinja, else tokenizer_config's (its "default" if it names several)."""
    file = path / "chat_template.jinja"
    source = file.read_text("utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):
        source = {
            entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)
        }.get("default")
    if not isinstance(source, str):
        return None
    try:
        return _environment().from_string(source)
    except TemplateError as error:
        raise TokenizerError(f"{path}: the chat template cannot be compiled: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    """Return what chat templates are written for: transformers.utils.chat_template_utils sets up the same."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)
