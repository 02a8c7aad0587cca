"""`swarmd generate`: ask the swarm for text through the daemon on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from ring.generation import Draft
from ring.sampling import GREEDY, Sampling
from swarmd import control
from swarmd.cli.options import AsJson, ConfigFile, MaxTokens, Settings, load_configuration
from swarmd.printable import printable

DEFAULT_MAX_TOKENS = 256
_PATIENCE = 30.0  # s beyond plan.progress_timeout, after which the daemon itself gives a generation up


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Read from stdin if absent.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--plain",
            help="Put the prompt through the model's chat template, or continue it as it is.",
            show_default="--chat where the model has a template",
        ),
    ] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    model: Annotated[
        str | None, typer.Option("--model", metavar="ID", help="Refuse if the swarm serves another model.")
    ] = None,
    draft: Annotated[Draft, typer.Option("--draft", help="Who guesses tokens ahead.")] = "auto",
    temperature: Annotated[
        float, typer.Option("--temperature", help="How freely to choose; 0 always takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Choose among so many; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Choose among those with this probability together.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Least probability, relative to the likeliest.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1: rather not what is there already.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="Above 0: rather not what was said already.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="Above 0: rather not what was said often.")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The same seed gives the same text.", show_default="a new one"),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say how the speculation went.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Generate text with the swarm. The text goes to stdout as it comes, all else to stderr."""
    text = _prompt(prompt)
    loaded = load_configuration(config, settings)
    sampling = Sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed
    )
    fields: dict[str, Any] = {"max_tokens": max_tokens, "draft": draft}
    if model:
        fields["model"] = model
    if sampling != GREEDY:
        fields["sampling"] = sampling.to_map()
    if stop:
        fields["stop"] = stop
    ask = Question(
        loaded.state_dir / control.SOCKET_NAME,
        fields,
        loaded.config.plan.progress_timeout + _PATIENCE,
    )
    answer = trio.run(_generate, ask, text, chat, _say_nothing if as_json else _say)
    if as_json:
        print(json.dumps(answer.as_json(), ensure_ascii=False))
    else:
        print(flush=True)
        print(answer.summary(), file=sys.stderr)
        if stats:
            print("\n".join(answer.statistics()), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Question:
    """What does not depend on how the prompt is put: the daemon's socket, request fields, seconds of patience."""

    socket: Path
    fields: dict[str, Any]
    silence: float


@dataclass(slots=True)
class Answer:
    """A generation as its events tell it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=dict)
    final: dict[str, Any] = field(default_factory=dict)

    def take(self, message: dict[str, Any]) -> str:
        """Take in one message of the reply and return the text that it adds."""
        match message.get("event"):
            case "token":
                self.tokens += message["tokens"]
                self.text += message["text"]
                return str(message["text"])
            case "done":
                self.done = message
            case None:
                self.final = message
        return ""

    @property
    def tok_s(self) -> float:
        """Tokens per second, of the tokens after the first; of all where there is only one."""
        total, to_first = int(self.done["timing"]["total_us"]), int(self.done["timing"]["ttft_us"])
        count, microseconds = len(self.tokens) - 1, total - to_first
        if count < 1 or microseconds <= 0:
            count, microseconds = len(self.tokens), max(total, 1)
        return count * 1e6 / microseconds

    def summary(self) -> str:
        """Return the line that follows the text."""
        receipts = f"receipts {self.final['receipts_verified']}/{self.final['receipts']} verified"
        reason = self.done["finish_reason"]
        return f"{len(self.tokens)} tokens, {self.tok_s:.1f} tok/s, {receipts} ({reason})"

    def statistics(self) -> list[str]:
        """Return the lines that --stats adds."""
        spec = self.final["speculation"]
        lines = [
            f"first token after {self.final['ttft_s']:.3f} s, {self.final['tokens_per_traversal']:.2f} tokens a traversal",
            f"drafter {spec['drafter']}: {spec['accepted']} of {spec['judged']} drafts right, "
            f"confidence {spec['confidence_milli'] / 1000:.2f}",
            f"{spec['sent']} frames, {spec['wasted']} of them wasted, {spec['mean_depth_milli'] / 1000:.2f} under way on average",
        ]
        for name, what in (("by_depth", "draft"), ("by_context", "context from")):
            rows = [f"{what} {at}: {accepted}/{judged}" for at, judged, accepted in spec[name]]
            lines += [", ".join(rows)] if rows else []
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "ok": True,
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.done["finish_reason"],
            "usage": self.done["usage"],
            "tok_s": round(self.tok_s, 3),
            "ttft_s": self.final["ttft_s"],
            "tokens_per_traversal": self.final["tokens_per_traversal"],
            "speculation": self.final["speculation"],
            "receipts_verified": self.final["receipts_verified"],
            "receipts": self.final["receipts"],
            "job": self.done["job"],
        }


async def _generate(ask: Question, text: str, chat: bool | None, say: Callable[[str], None]) -> Answer:
    if chat is False:
        return await _answer(ask, {"prompt": text}, say)
    try:
        return await _answer(ask, {"messages": [{"role": "user", "content": text}]}, say)
    except control.RemoteError as error:
        if chat or error.code != "chat_template_missing":
            raise
    print("the model has no chat template: continuing the prompt as it is", file=sys.stderr)
    return await _answer(ask, {"prompt": text}, say)


async def _answer(ask: Question, prompt: dict[str, Any], say: Callable[[str], None]) -> Answer:
    answer = Answer()
    request = partial(control.stream, ask.socket, "generate", silence=ask.silence)
    async with request(**ask.fields, **prompt) as reply:
        async for message in reply:
            say(answer.take(message))
    return answer


def _prompt(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise typer.BadParameter("give one, or pipe it into stdin", param_hint="PROMPT")
    text = sys.stdin.buffer.read() if argument is None else os.fsencode(argument)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"it is not UTF-8 (byte {error.start})", param_hint="PROMPT") from error


def _say(text: str) -> None:
    if text:
        print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def _say_nothing(text: str) -> None:
    """With --json the text comes as a whole."""
