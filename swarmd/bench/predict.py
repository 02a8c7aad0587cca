"""`swarmd bench predict`: tokens per second as predicted, against those of real rings over a WAN of several delays."""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import trio

from conf.schema import Config
from registry.models import checkpoint_path, load_registry
from runtimes import open_runtime
from runtimes.base import ModelSource
from swarmd.bench.catalogue import Tell
from swarmd.bench.report import Check, Report, ResultTable
from swarmd.bench.wan import DelayedHosts, delayed_hosts
from swarmd.demo import DEFAULT_PROMPT, tightest_limit
from swarmd.local_swarm import LocalSwarm, local_swarm

RINGS = (1, 2, 3, 5)
DELAYS = (0.05, 0.02, 0.005)  # s, one way; falling, because a window's minimum falls at once and rises late
MOST_ERROR = 0.10
"""What the median over all rings may be off by."""

_TOKENS = 40
_RUNS = 3
_SETTLED_IN = 6.0  # s until a lower delay is measured and announced
_RING_WITHIN = 180.0  # s


@dataclass(frozen=True, slots=True)
class Prediction:
    """A ring at a delay.

    Attributes:
        hosts: stages in it.
        delay_ms: one way.
        probed: tok/s predicted before any frame under this delay.
        learned: tok/s predicted when the hosts had computed one answer.
        measured: median tok/s of the following answers.

    """

    hosts: int
    delay_ms: float
    probed: float
    learned: float
    measured: float

    @property
    def error(self) -> float:
        """By which share of what was measured the (learned) prediction is off."""
        return self.learned / self.measured - 1


def bench_predict(tell: Tell) -> Report:
    """Measure rings of every number of hosts at every delay; a ring of one has no delay."""
    return predict_report(trio.run(_measure, tell))


def predict_report(predictions: Sequence[Prediction]) -> Report:
    """Hold what was predicted against what was measured."""
    errors = [abs(prediction.error) for prediction in predictions]
    rows = [
        (
            str(one.hosts),
            f"{one.delay_ms:g}",
            f"{one.probed:.2f}",
            f"{one.learned:.2f}",
            f"{one.measured:.2f}",
            f"{100 * one.error:+.1f} %",
        )
        for one in predictions
    ]
    return Report(
        "predict",
        [Check("median error of predicted tok/s", median(errors) if errors else math.nan, MOST_ERROR)],
        [
            ResultTable(
                "tok/s of one session, plain decoding",
                ("hosts", "one way, ms", "by the probes", "predicted", "measured", "error"),
                tuple(rows),
            )
        ],
        {
            "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
            "tokens": _TOKENS,
            "answers": _RUNS,
            "predictions": [asdict(one) for one in predictions],
        },
    )


async def _measure(tell: Tell) -> list[Prediction]:
    predictions = []
    for count in RINGS:
        tell(f"a ring of {count}")
        async with _ring(count) as (swarm, wan):
            for delay in DELAYS if count > 1 else DELAYS[-1:]:
                tell(f"{count} hosts, {1000 * delay:g} ms one way")
                await wan.delay(delay)
                await trio.sleep(_SETTLED_IN)
                predictions.append(await _predicted(swarm, count, delay))
    return predictions


@asynccontextmanager
async def _ring(count: int) -> AsyncIterator[tuple[LocalSwarm, DelayedHosts]]:
    """Make a swarm whose hosts hold the bundled model only all together."""
    config = Config()
    row = load_registry(None, config.registry.publishers).row(config.model.id)
    source = ModelSource(row.id, checkpoint_path(row, None), row.layer_count, row.hf_arch)
    shape = await trio.to_thread.run_sync(lambda: open_runtime(row.adapter).shape(source))
    limit = tightest_limit(shape, count, context=config.model.context, sessions=1)
    settings = {
        "model.sessions": 1,
        "runtime.memory_limit": str(limit),
        "runtime.threads": 1,  # the hosts share this machine's cores
        "plan.replan_seconds": 0.0,
    }
    with tempfile.TemporaryDirectory(prefix="swarmd-") as home:
        async with (
            delayed_hosts(count) as wan,
            local_swarm(Path(home), f"predict-{secrets.token_hex(4)}", settings) as swarm,
        ):
            await wan.delay(DELAYS[0])
            for host in range(1, count + 1):
                listen = {"swarm.listen": [f"/ip4/{wan.address(host)}/tcp/4710"]}
                await swarm.add(listen, launch=wan.launch(host))
            await swarm.ring(within=_RING_WITHIN)
            yield swarm, wan


async def _predicted(swarm: LocalSwarm, count: int, delay: float) -> Prediction:
    probed = await _prediction(swarm)
    await _generate(swarm)
    learned = await _prediction(swarm)
    measured = [await _generate(swarm) for _ in range(_RUNS)]
    return Prediction(count, 1000 * delay, probed, learned, median(measured))


async def _prediction(swarm: LocalSwarm) -> float:
    """Return tok/s of the ring that stands, by what its hosts announce now."""
    answer = await swarm.hosts[0].ask("plan", what_if={})
    return float(answer["now"]["millitok_s"]) / 1000


async def _generate(swarm: LocalSwarm) -> float:
    """Generate an answer; returns its tokens per second, the first token aside."""
    messages = [{"role": "user", "content": DEFAULT_PROMPT}]
    answer = await swarm.hosts[0].ask("generate", messages=messages, max_tokens=_TOKENS)
    return float(answer["tok_s"])
