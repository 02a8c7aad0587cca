"""The demo: a real swarm on this machine, one model that none of its hosts holds, and a check of the result."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from registry.shape import ModelShape
from runtimes import open_runtime
from runtimes.base import ModelSource
from runtimes.tokenizer import Tokenizer
from swarmd import control
from swarmd.local_swarm import LocalSwarm, LocalSwarmFailed, local_swarm

DEFAULT_PROMPT = "Tell me a story about small computers that work together."
_FOUND_WITHIN = 60.0  # s
_RING_WITHIN = 120.0  # s
_THREADS = 1  # per daemon: they share this machine's cores

OnEvent = Callable[[str, dict[str, Any]], None]


def tightest_limit(shape: ModelShape, hosts: int, *, context: int, sessions: int) -> int:
    """Return the least memory limit (bytes) under which `hosts` hosts together hold the model."""

    def hosts_needed(limit: int) -> int:
        count, lo = 0, 0
        while lo < shape.layer_count:
            fits = [
                hi
                for hi in range(lo + 1, shape.layer_count + 1)
                if shape.block_memory(lo, hi, context=context, sessions=sessions).total <= limit
            ]
            if not fits:
                return shape.layer_count + 1
            count, lo = count + 1, fits[-1]
        return count

    low, high = 0, shape.block_memory(0, shape.layer_count, context=context, sessions=sessions).total
    while low + 1 < high:
        middle = (low + high) // 2
        if hosts_needed(middle) <= hosts:
            high = middle
        else:
            low = middle
    return high


async def run_demo(
    hosts: int, prompt: str | None, max_tokens: int, memory_limit: int | None, on_event: OnEvent
) -> dict[str, Any]:
    """Run the demo and return the object that `swarmd demo --json` prints.

    on_event(kind, fields) tells how far it is: "stage" {text}, "peers" {peers}, "plan" (the plan document),
    "text" {delta}, "check" {name, ok, detail}.

    Raises:
        LocalSwarmFailed: the swarm did not come up; the text says what it waited for.

    """
    config = Config()
    row = load_registry(None, config.registry.publishers).row(config.model.id)
    source = ModelSource(row.id, checkpoint_path(row, None), row.layer_count, row.hf_arch)
    on_event("stage", {"text": f"Sizing {row.id}: {row.layer_count} layers"})
    shape = await trio.to_thread.run_sync(lambda: open_runtime(row.adapter).shape(source))
    context, sessions = config.model.context, config.model.sessions
    limit = memory_limit or tightest_limit(shape, hosts, context=context, sessions=sessions)
    settings = {
        "model.id": row.id,
        "model.context": context,
        "model.sessions": sessions,
        "runtime.memory_limit": str(limit),
        "runtime.threads": _THREADS,
    }
    messages = [{"role": "user", "content": prompt or DEFAULT_PROMPT}]
    # A short path: Unix sockets have room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        async with local_swarm(Path(home), f"demo-{secrets.token_hex(4)}", settings) as swarm:
            await _gather(swarm, hosts, limit, on_event)
            answer = await swarm.ring(within=_RING_WITHIN)
            on_event("plan", answer["plan"])
            result = await _generate(swarm, messages, max_tokens, on_event)
    plan = answer["plan"]
    result["hosts"] = hosts
    result["ring"] = [{name: stage[name] for name in ("peer", "lo", "hi")} for stage in plan["ring"]]
    result["predicted_tok_s"] = plan["millitok_s"] / 1000
    on_event("stage", {"text": "Running the same model whole, in one process, with transformers"})
    whole = await trio.to_thread.run_sync(lambda: _whole(source.path, messages, max_tokens))
    result["identical"] = whole == result.pop("token_ids")
    on_event("check", {"name": "identical", "ok": result["identical"], "detail": f"{len(whole)} tokens"})
    result["ok"] = result["identical"] and result["receipts_verified"] == len(result["ring"])
    return result


async def _gather(swarm: LocalSwarm, hosts: int, limit: int, on_event: OnEvent) -> None:
    """Start the hosts and wait until each sees all others."""
    on_event("stage", {"text": f"Starting {hosts} daemons, each with {limit:,} bytes for its block"})
    await swarm.add()
    async with trio.open_nursery() as nursery:
        for _ in range(hosts - 1):
            nursery.start_soon(swarm.add)
    with trio.move_on_after(_FOUND_WITHIN):
        while True:
            views = [await host.ask("peers") for host in swarm.hosts]
            if all(len(view["peers"]) == hosts for view in views):
                on_event("peers", views[0])
                return
            await trio.sleep(0.2)
    raise LocalSwarmFailed(f"the {hosts} hosts did not find each other within {_FOUND_WITHIN:g} s")


async def _generate(
    swarm: LocalSwarm, messages: Sequence[dict[str, str]], max_tokens: int, on_event: OnEvent
) -> dict[str, Any]:
    """Ask the last host, which need not be the coordinator."""
    text, tokens, final = "", list[int](), dict[str, Any]()
    asking = control.stream(swarm.hosts[-1].socket, "generate", messages=messages, max_tokens=max_tokens)
    async with asking as reply:
        async for event in reply:
            if event.get("event") == "token":
                text += event["text"]
                tokens += event["tokens"]
                on_event("text", {"delta": event["text"]})
            elif event.get("ok"):
                final = event
    verified, total = final["receipts_verified"], final["receipts"]
    on_event("check", {"name": "receipts", "ok": verified == total, "detail": f"{verified}/{total} verified"})
    return {
        "text": text,
        "token_ids": tokens,
        "tokens": len(tokens),
        "receipts_verified": verified,
        "tok_s": final["tok_s"],
    }


def _whole(path: Path, messages: Sequence[dict[str, str]], max_tokens: int) -> list[int]:
    from runtimes.hf.whole import generate_whole  # imports torch; only this check needs it

    return generate_whole(path, Tokenizer(path).encode_chat(messages), max_tokens, threads=_THREADS)
