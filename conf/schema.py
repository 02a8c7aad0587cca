"""Every setting of swarmd.toml, its type, its limits and its default."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, PlainValidator, TypeAdapter
from pydantic.dataclasses import dataclass

from conf.addresses import check_announce, check_bootstrap, check_http_listen, check_listen, check_peer

# The publisher of the registry that comes with swarmd.
BUNDLED_PUBLISHER = "6+/eGH+ML14j6RsOXeNnD9xc8N6O+Vsd0ZGyyLAef3Q="
_PUBLIC_KEY_BYTES = 32


def _path(value: object) -> Path | None:
    if isinstance(value, Path) or value is None:
        return value
    if not isinstance(value, str) or "\0" in value:
        raise ValueError('must be a path, or ""')
    return Path(value) if value else None


def _public_key(text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raw = b""
    if len(raw) != _PUBLIC_KEY_BYTES or base64.b64encode(raw).decode() != text:
        raise ValueError(
            f"{text!r} is not the standard base64 of a 32-byte Ed25519 public key (44 characters)"
        )
    return text


def _memory_limit(value: object) -> ByteSize | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        size = _SIZE.validate_python(value)
    except ValueError:
        size = ByteSize(0)
    if isinstance(value, bool) or not 1 <= size <= _LARGEST_SIZE:
        raise ValueError('must be "auto" or a size such as "6GiB" or "500MB"')
    return size


_SIZE = TypeAdapter(ByteSize)
_LARGEST_SIZE = 1 << 60
_SECTION = ConfigDict(extra="forbid")

SwarmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
PublicKey = Annotated[str, AfterValidator(_public_key)]
OptionalPath = Annotated[Path | None, BeforeValidator(_path)]
MemoryLimit = Annotated[ByteSize | Literal["auto"], PlainValidator(_memory_limit)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Swarm:
    """Which swarm this host joins, and how hosts reach each other.

    Attributes:
        name: hosts of one name find each other; lower-case letters, digits and "-", at most 63.
        listen: multiaddrs to listen on; port 0 takes any free one.
        bootstrap: multiaddrs, with /p2p/ID, of hosts to ask first when the swarm is not on this network.
        announce: multiaddrs to tell others beside those listened on, such as a router's forwarded port.
        mdns: find hosts on the local network.

    """

    name: SwarmName = "home"
    listen: Annotated[tuple[Annotated[str, AfterValidator(check_listen)], ...], Field(min_length=1)] = (
        "/ip4/0.0.0.0/tcp/4710",
    )
    bootstrap: tuple[Annotated[str, AfterValidator(check_bootstrap)], ...] = ()
    announce: tuple[Annotated[str, AfterValidator(check_announce)], ...] = ()
    mdns: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class State:
    """What swarmd keeps on disk.

    Attributes:
        dir: directory of the identity key, remembered peers and the control socket; None (""):
            $XDG_STATE_HOME/swarmd, or ~/.local/state/swarmd.

    """

    dir: OptionalPath = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Model:
    """Which model the swarm serves.

    Attributes:
        id: a row of the registry.
        path: directory of the model's files; None (""): where the registry row's enginePath says.
        context: tokens per session, prompt and answer together.
        sessions: how many generations run at once.

    """

    id: Annotated[str, Field(min_length=1)] = "tale"
    path: OptionalPath = None
    context: Annotated[int, Field(ge=1, le=1 << 24)] = 1024
    sessions: Annotated[int, Field(ge=1, le=4096)] = 4


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Runtime:
    """How this host computes.

    Attributes:
        name: a runtime plugin, or "auto": the one that fits the registry row's adapter.
        memory_limit: bytes that layers and sessions may take ("6GiB"), or "auto": what the device has free at
            start, less a reserve.
        threads: CPU threads; 0: the runtime's own choice.
        dtype: in which the model is served, or "auto": the checkpoint's own.
        numerics: "exact": a token's bits depend neither on its frame nor on other sessions, whatever it costs; "fast":
            they may; "auto": exact where it costs next to nothing.

    """

    name: Word = "auto"
    memory_limit: MemoryLimit = "auto"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    numerics: Literal["auto", "exact", "fast"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Registry:
    """Which models may be served at all.

    Attributes:
        path: a signed registry file; None (""): the one that comes with swarmd.
        publishers: public keys (standard base64, Ed25519) of those whose registry is trusted.

    """

    path: OptionalPath = None
    publishers: Annotated[tuple[PublicKey, ...], Field(min_length=1)] = (BUNDLED_PUBLISHER,)


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Plan:
    """What the leader plans for, when, and when it gives up. A ring is planned by the settings of the host that leads.

    Attributes:
        objective: what the ring is best at: "tok_s" (one session's tokens per second), "latency" (the time of one
            token around the ring) or "aggregate" (all sessions' tokens per second together).
        prompt_tokens: length of the prompts for which the time to the first token is predicted.
        ttft_limit_seconds: the most seconds to the first token of such a prompt; 0: no limit.
        distinct_subnets: no two hosts of a ring in one network (/24 or /48 by their addresses).
        trusted: PeerIds of the hosts that may hold the first and last layers, where prompt and answer can be read;
            empty: every host may.
        end_layers: how many layers at either end only trusted hosts may hold.
        horizon_seconds: for how long a ring is expected to stand: loading for s seconds must make it s / horizon
            better; 0: loading costs nothing.
        replan_seconds: how often to look whether another ring would be better than the one that stands; 0: never.
        least_gain: by which share another ring must be better to replace one that stands.
        settle_seconds: how long the set of hosts must be unchanged before a ring is planned.
        progress_timeout: seconds after which a load or a session without any progress is given up.

    """

    objective: Literal["tok_s", "latency", "aggregate"] = "tok_s"
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 512
    ttft_limit_seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0.0
    distinct_subnets: bool = False
    trusted: tuple[Annotated[str, AfterValidator(check_peer)], ...] = ()
    end_layers: Annotated[int, Field(ge=1, le=4096)] = 1
    horizon_seconds: Annotated[int, Field(ge=0, le=1 << 30)] = 3600
    replan_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    least_gain: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.1

    settle_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    progress_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Http:
    """The door for outside tools on this machine.

    Attributes:
        listen: loopback address to answer HTTP on, such as "127.0.0.1:4711"; "": nowhere.

    """

    listen: Annotated[str, AfterValidator(check_http_listen)] = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Log:
    """What the daemon writes about itself.

    Attributes:
        level: the least severe line to write.
        format: "console" for people, "json" one object a line, "auto": console on a terminal, else json.

    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True, config=_SECTION)
class Config:
    """The whole configuration; each attribute is a section of swarmd.toml."""

    swarm: Swarm = Swarm()
    state: State = State()
    model: Model = Model()
    runtime: Runtime = Runtime()
    registry: Registry = Registry()
    plan: Plan = Plan()
    http: Http = Http()
    log: Log = Log()
