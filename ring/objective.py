"""Objective: what a plan is to be best at, and what it must respect beside memory and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ring.drafting import Drafter
from ring.identity import PeerId

ObjectiveKind = Literal["tok_s", "latency", "aggregate"]

KINDS: tuple[ObjectiveKind, ...] = get_args(ObjectiveKind)


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to be best.

    Attributes:
        kind: "tok_s": the predicted tokens per second of one session; "latency": the time of a one-token frame once
            around; "aggregate": the tokens per second of all promised sessions together.
        prompt_tokens: length of the prompt for which the time to the first token is predicted, and of the context at
            which drafts are assumed to be accepted.
        ttft_limit_us: the most microseconds to the first token of such a prompt; 0: no limit.
        drafters: the drafters that sessions may use, with what was measured of them.
        horizon_s: for how many seconds a ring is expected to stand: a plan that loads for s seconds must be
            better by s / horizon_s. 0: loading costs nothing.

    """

    kind: ObjectiveKind = "tok_s"
    prompt_tokens: int = 512
    ttft_limit_us: int = 0
    drafters: tuple[Drafter, ...] = ()
    horizon_s: int = 3600

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.ttft_limit_us < 0 or self.horizon_s < 0:
            raise ValueError(
                f"prompt_tokens {self.prompt_tokens} must be at least 1, and ttft_limit_us {self.ttft_limit_us} and"
                f" horizon_s {self.horizon_s} at least 0"
            )


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a ring must respect.

    Attributes:
        distinct_subnets: whether no two hosts of a ring may announce addresses of one subnet.
        trusted: the hosts, ascending, that may hold the two ends of the model, where prompt and answer can be read;
            empty: every host may.
        end_layers: how many layers at either end only trusted hosts may hold.

    """

    distinct_subnets: bool = False
    trusted: tuple[PeerId, ...] = ()
    end_layers: int = 1

    def __post_init__(self) -> None:
        if self.end_layers < 1 or list(self.trusted) != sorted(set(self.trusted)):
            raise ValueError(
                f"end_layers {self.end_layers} must be at least 1, and trusted ascending without repeats"
            )


DEFAULT_OBJECTIVE = Objective()
NO_CONSTRAINTS = Constraints()
