"""SessionSpec: what one generation is to make, and within which bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ring.frame import MAX_WIDTH
from ring.sampling import GREEDY, Sampling


class PromptInvalid(ValueError):
    """The prompt or a limit of the generation is not possible. Change what the text names and ask again."""

    code: ClassVar[str] = "bad_request"


class PromptTooLong(PromptInvalid):
    """Prompt and one token do not fit into the context. Shorten the prompt or raise `model.context` on every host."""

    code: ClassVar[str] = "context_exceeded"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What to generate, and within which bounds.

    Attributes:
        id: the session's id, also the job id of its receipts; unique for ever.
        plan: id of the active plan.
        nonce: what the receipts must carry.
        prompt: token ids, each in [0, vocab).
        max_tokens: most tokens to generate, at least 1; prompt and generated tokens together never exceed context.
        eos: token ids that end the generation; the end token is committed too.
        context: tokens per session that every stage has room for.
        vocab: size of the vocabulary.
        prefill_chunk: most prompt tokens in one frame.
        window: most frames in flight; a stage must be able to rewind over so many.
        draft_tokens: most drafts beside a known token in one frame: K; no decode frame is wider than K + 1.
        sampling: how tokens are chosen, with a seed if it has a temperature.
        progress_seconds: after so long without a new verified frame or the receipts the session fails as "stalled".

    Raises:
        PromptInvalid, PromptTooLong: named in the text.

    """

    id: str
    plan: str
    nonce: str
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]
    context: int
    vocab: int
    prefill_chunk: int = 128
    window: int = 8
    draft_tokens: int = 4
    progress_seconds: float = 30.0
    sampling: Sampling = GREEDY

    def __post_init__(self) -> None:
        if not 1 <= self.prefill_chunk <= MAX_WIDTH or self.window < 1:
            raise ValueError(f"prefill_chunk {self.prefill_chunk} or window {self.window} is impossible")
        if not 0 <= self.draft_tokens < MAX_WIDTH:
            raise ValueError(f"draft_tokens {self.draft_tokens} is impossible")
        if not self.prompt:
            raise PromptInvalid("the prompt has no tokens: say something to continue from")
        for index, token in enumerate(self.prompt):
            if not 0 <= token < self.vocab:
                raise PromptInvalid(
                    f"prompt token {index} is {token}, not in [0, {self.vocab}) of this model"
                )
        for token, _ in self.sampling.logit_bias:
            if token >= self.vocab:
                raise PromptInvalid(f"logit_bias names token {token}, not in [0, {self.vocab}) of this model")
        if self.max_tokens < 1:
            raise PromptInvalid(f"max_tokens is {self.max_tokens}, but must be at least 1")
        if len(self.prompt) + 1 > self.context:
            raise PromptTooLong(
                f"the prompt has {len(self.prompt)} tokens, but at most {self.context - 1} leave room for an answer "
                f"in a context of {self.context}: shorten it or raise `model.context`"
            )

    @property
    def limit(self) -> int:
        """Most tokens that can be generated: max_tokens, or what the context leaves."""
        return min(self.max_tokens, self.context - len(self.prompt))
