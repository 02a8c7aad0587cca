"""What a what-if says: how the swarm would differ. Nothing heavy is imported here, so that commands start quickly."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from swarmd.printable import printable

_FORM = ConfigDict(extra="forbid", strict=True)


class WhatIfBad(Exception):
    """A what-if cannot be read, or names a host that is not there. Correct what the text names."""

    code: ClassVar[str] = "bad_request"


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class ExtraHost:
    """A host that is not there.

    Attributes:
        vram: GB of 10^9 bytes that its block may take.
        ms: milliseconds for one layer and one token.
        rtt: round trip in milliseconds to every other host.
        uplink: 10^6 bits a second that it can send; None: no limit.

    """

    vram: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    ms: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
    rtt: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    uplink: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_FORM)
class WhatIf:
    """How the swarm would differ; None: not at all.

    Attributes:
        without: hosts that would not be there, by id or its end.
        extra: hosts that would be there; called "with" in JSON.
        objective: what the ring would be best at.
        model: the model that would be served.
        context: tokens per session; sessions: how many at once.

    """

    without: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    extra: tuple[ExtraHost, ...] = Field(default=(), max_length=16, alias="with")
    objective: Literal["tok_s", "latency", "aggregate"] | None = None
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    context: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    sessions: Annotated[int, Field(ge=1, le=4096)] | None = None


_WHAT_IF: TypeAdapter[WhatIf] = TypeAdapter(WhatIf)
NOTHING = WhatIf()


def read_what_if(fields: object) -> WhatIf:
    """Return the what-if in a JSON-like map. Raises WhatIfBad, which names the field."""
    try:
        return _WHAT_IF.validate_json(json.dumps(fields))  # strict by the types of JSON
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "what_if"
        given = printable(repr(first["input"]))[:80]
        raise WhatIfBad(f"{printable(where)[:80]}: {first['msg']}, not {given}") from error


def write_what_if(what_if: WhatIf) -> dict[str, Any]:
    """Return a what-if as a JSON-like map, for read_what_if()."""
    fields = dataclasses.asdict(what_if)
    fields["with"] = fields.pop("extra")
    return fields
