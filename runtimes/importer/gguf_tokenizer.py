"""The tokenizer that a GGUF file describes, as tokenizer.json and its companions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from runtimes.base import CheckpointError, UnsupportedModel
from runtimes.importer.gguf_file import GgufFile

# How a text is cut before merging, by GGUF's name for it. transformers knows those of GGUF_PRE_TOKENIZER_SPLITS. A
# name that is in none of these sets is refused: taking GPT-2's for it would be wrong, and nobody would see it.
_GPT2 = {"gpt-2", "phi-2", "jina-es", "jina-de", "mpt", "olmo", "jais", "trillion"}
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell"}  # GPT-2's, and each digit alone
_NFC = {"qwen2", "deepseek-r1-qwen"}  # their original tokenizers normalize; GGUF does not say it
_WHOLE_WORDS = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
}  # no merges for a word that is a token
_BOS_BY_DEFAULT = {"llama3", "llama-v3", "llama-bpe"}  # llama.cpp, where add_bos_token is absent

_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_CONTROL, _USER_DEFINED = 3, 4  # GGUF's token types: special; matched whole, but part of the text
_END_KINDS = ("eos", "eot", "eom")  # end of text, of turn, of message


def write_tokenizer(file: GgufFile, target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, the chat template and generation_config.json.

    Raises:
        UnsupportedModel: a kind of tokenizer of which we do not know that it comes out right.
        CheckpointError: the metadata is broken.

    """
    kind, cut = file.require("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise UnsupportedModel(
            f"{file.path}: its tokenizer is of kind {kind!r}; only byte-level BPE ('gpt2') can be imported"
        )
    if cut not in GGUF_PRE_TOKENIZER_SPLITS and cut not in _GPT2 | _SINGLE_DIGITS:
        raise UnsupportedModel(
            f"{file.path}: its tokenizer cuts texts in a way ({cut!r}) that is not known here: this model cannot be imported"
        )
    specials = {name: token for kind, name in _SPECIAL.items() if (token := _token(file, kind)) is not None}
    tokenizer = _backend(file, cut)
    if file.get("tokenizer.ggml.add_bos_token", cut in _BOS_BY_DEFAULT):
        _begin_with(tokenizer, specials.get("bos_token"), file)
    template = file.get("tokenizer.chat_template")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        model_max_length=file.get(f"{file.require('general.architecture')}.context_length"),
        clean_up_tokenization_spaces=False,
        **specials,
    ).save_pretrained(target)
    (target / "generation_config.json").write_text(
        json.dumps(_generation_config(file), indent=2) + "\n", "utf-8"
    )


def _backend(file: GgufFile, cut: str) -> tokenizers.Tokenizer:
    tokens, merges = file.require("tokenizer.ggml.tokens"), file.require("tokenizer.ggml.merges")
    kinds = file.get("tokenizer.ggml.token_type", [])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(
            f"{file.path}: {len(tokens) - len(vocabulary)} entries of its vocabulary stand there twice: convert the model again"
        )
    try:
        pairs = [(first, second) for first, second in (merge.split(" ") for merge in merges)]
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut in _WHOLE_WORDS))
    except Exception as error:  # the tokenizers package raises no narrower one
        raise CheckpointError(f"{file.path}: its tokenizer cannot be built: {error}") from error
    if cut in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    named = list(zip(tokens, kinds, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in named if k == _CONTROL]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in named if k == _USER_DEFINED])
    return tokenizer


def _pre_tokenizer(cut: str) -> pre_tokenizers.PreTokenizer:
    if cut in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    split = GGUF_PRE_TOKENIZER_SPLITS.get(cut)
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _begin_with(tokenizer: tokenizers.Tokenizer, token: str | None, file: GgufFile) -> None:
    if token is None:
        raise CheckpointError(
            f"{file.path}: add_bos_token is set, but no bos_token_id: convert the model again"
        )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{token} $A",
                pair=f"{token} $A {token} $B",
                special_tokens=[(token, tokenizer.token_to_id(token))],
            ),
        ]
    )


def _token(file: GgufFile, kind: str) -> str | None:
    number = file.get(f"tokenizer.ggml.{kind}_token_id")
    if number is None:
        return None
    tokens = file.require("tokenizer.ggml.tokens")
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.{kind}_token_id is {number!r}, outside the vocabulary"
        )
    return str(tokens[number])


def _generation_config(file: GgufFile) -> dict[str, Any]:
    """Return what ends a generation; greedy is left to whoever asks."""
    ids = [file.get(f"tokenizer.ggml.{kind}_token_id") for kind in _END_KINDS]
    ends = list(dict.fromkeys(number for number in ids if number is not None))
    settings = {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in settings.items() if value is not None}
