"""The JSON form of objective and constraints, as a signed plan carries them."""

from __future__ import annotations

from ring.drafting import MAX_CHAIN, Drafter
from ring.fields import (
    FieldError,
    as_choice,
    as_integer,
    as_list,
    as_map,
    as_pair,
    as_peer,
    as_text,
    refuse_other_keys,
    required,
)
from ring.objective import KINDS, Constraints, Objective

MAX_NAME = 64
"""Longest name of a drafter."""

_MAX_DRAFTERS = 16
_MAX_ROWS = 64
_MAX_TRUSTED = 4096
_MAX_LAYERS = 4096
_OBJECTIVE_KEYS = ("kind", "prompt_tokens", "ttft_limit_us", "drafters", "horizon_s")
_DRAFTER_KEYS = ("name", "token_ns", "acceptance")
_CONSTRAINT_KEYS = ("distinct_subnets", "trusted", "end_layers")


def write_objective(objective: Objective) -> dict[str, object]:
    """Return the JSON object of an objective."""
    return {
        "kind": objective.kind,
        "prompt_tokens": objective.prompt_tokens,
        "ttft_limit_us": objective.ttft_limit_us,
        "drafters": [
            {
                "name": drafter.name,
                "token_ns": drafter.token_ns,
                "acceptance": [[start, list(chances)] for start, chances in drafter.acceptance],
            }
            for drafter in objective.drafters
        ],
        "horizon_s": objective.horizon_s,
    }


def read_objective(value: object) -> Objective:
    """Return the objective in a JSON object.

    Raises:
        FieldError: a field is missing, unknown or out of its range.

    """
    fields = as_map("objective", value)
    refuse_other_keys("objective", fields, _OBJECTIVE_KEYS)
    drafters = as_list("objective.drafters", required(fields, "drafters"), _MAX_DRAFTERS)
    return Objective(
        kind=as_choice("objective.kind", required(fields, "kind"), KINDS),
        prompt_tokens=as_integer("objective.prompt_tokens", required(fields, "prompt_tokens"), 1),
        ttft_limit_us=as_integer("objective.ttft_limit_us", required(fields, "ttft_limit_us")),
        drafters=tuple(_read_drafter(entry) for entry in drafters),
        horizon_s=as_integer("objective.horizon_s", required(fields, "horizon_s")),
    )


def write_constraints(constraints: Constraints) -> dict[str, object]:
    """Return the JSON object of constraints."""
    return {
        "distinct_subnets": constraints.distinct_subnets,
        "trusted": list(constraints.trusted),
        "end_layers": constraints.end_layers,
    }


def read_constraints(value: object) -> Constraints:
    """Return the constraints in a JSON object.

    Raises:
        FieldError: a field is missing, unknown or out of its range.

    """
    fields = as_map("constraints", value)
    refuse_other_keys("constraints", fields, _CONSTRAINT_KEYS)
    distinct = required(fields, "distinct_subnets")
    if not isinstance(distinct, bool):
        raise FieldError(f"constraints.distinct_subnets is {distinct!r:.100}, not true or false")
    trusted = as_list("constraints.trusted", required(fields, "trusted"), _MAX_TRUSTED)
    try:
        return Constraints(
            distinct,
            tuple(as_peer("constraints.trusted", peer) for peer in trusted),
            as_integer("constraints.end_layers", required(fields, "end_layers"), 1, _MAX_LAYERS),
        )
    except ValueError as error:
        raise FieldError(f"constraints: {error}") from error


def _read_drafter(value: object) -> Drafter:
    fields = as_map("objective.drafters", value)
    refuse_other_keys("objective.drafters", fields, _DRAFTER_KEYS)
    rows = as_list("objective.drafters.acceptance", required(fields, "acceptance"), _MAX_ROWS)
    try:
        return Drafter(
            as_text("objective.drafters.name", required(fields, "name"), MAX_NAME),
            as_integer("objective.drafters.token_ns", required(fields, "token_ns")),
            tuple(_read_row(entry) for entry in rows),
        )
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(f"objective.drafters: {error}") from error


def _read_row(value: object) -> tuple[int, tuple[int, ...]]:
    name = "objective.drafters.acceptance"
    start, chances = as_pair(name, value)
    entries = as_list(name, chances, MAX_CHAIN)
    return as_integer(name, start), tuple(as_integer(name, chance) for chance in entries)
