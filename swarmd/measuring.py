"""Measuring: opens the runtime, sizes the model and times one layer of it, so that the planner has something to plan on."""

from __future__ import annotations

import trio

from conf.schema import Config
from registry.shape import ModelShape
from swarmd import logs
from swarmd.activity import Activity
from swarmd.engine import Engine
from swarmd.facts import OwnFacts
from swarmd.learning import Learning

# Left to the rest of the machine when runtime.memory_limit is "auto".
_RESERVE_SHARE = 10  # a tenth of what is free
_RESERVE_LEAST = 512 << 20  # bytes


def automatic_limit(free: int) -> int:
    """Return the memory limit in bytes for a device with `free` bytes free: all but a reserve."""
    return max(0, free - max(_RESERVE_LEAST, free // _RESERVE_SHARE))


async def measure_host(
    config: Config, engine: Engine, facts: OwnFacts, learning: Learning, activity: Activity
) -> ModelShape:
    """Measure this host and write the result into `facts`; returns the model's shape.

    Raises:
        runtimes.base.RuntimeFailure: the model cannot be served here.

    """
    facts.update(waiting_for="the runtime to start and one layer to be timed")
    shape = await engine.start()
    if engine.instead_of:
        activity.note(
            "runtime_fallback",
            f"no runtime {engine.instead_of} is installed: {engine.runtime_name} serves adapter {engine.adapter}",
        )
    logs.adopt_libraries()  # the runtime's libraries have just set up handlers of their own
    free = await engine.memory_free()
    chosen = config.runtime.memory_limit
    limit = automatic_limit(free) if chosen == "auto" else int(chosen)
    facts.update(
        state="measuring",
        device=engine.device,
        memory_total=await engine.memory_total(),
        memory_limit=limit,
        memory_free=min(free, limit),
    )
    probe = await engine.probe()
    learning.probed(probe, model=engine.source.model_id, dtype=config.runtime.dtype, device=facts.device)
    facts.update(state="standby", waiting_for="")
    activity.note(
        "measured",
        device=engine.device,
        memory_limit=limit,
        layer_us=[ns // 1000 for _, ns in probe.layer_ns],
    )
    await trio.lowlevel.checkpoint()
    return shape
