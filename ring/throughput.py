"""The model of speed: how long a frame takes once around a ring, what the slowest part of it needs, and what that means
in tokens per second.

A ring of stages i = 0 … k-1 (0 is the head, k-1 the tail) that serve n_i layers each moves a frame of w tokens in

    T(w) = Σ_i n_i · t_i(w)  +  w · tail  +  Σ_i (one_way_i + wire_i(w) + overhead_i)
    τ(w) = max_i max(n_i · t_i(w) (+ w · tail at the tail), wire_i(w))

t_i(w) is stage i's measured time for one layer at width w, tail the tail's measured time for norm, lm_head and choice
of one token. Edge i leads to the next stage, the last one from the tail back to the head, where the coordinator lives; a
ring of one stage has no edges. wire_i(w) is the frame's bytes over stage i's uplink, overhead_i what a hop was measured
to cost beyond the round trip of a small message. A stage computes one frame at a time and sends one at a time, and does
both at once. What such a ring yields is in ring/pace.py.

All quantities are integers, so that every host computes the same bytes (invariant I3); roundings go up, and are far below
what can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NS_PER_US = 1_000
NS_PER_SECOND = 1_000_000_000

PREFILL_WIDTH = 512
"""Tokens in one frame of a prompt; a shorter prompt is computed in one piece."""

FRAME_HEADER_BYTES = 256
"""What a frame has beside its hidden states: names, positions and the framing of two layers (measured: 180 to 250)."""

TOKEN_BYTES = 5
"""A token on its way from the tail back to the coordinator."""

LayerTimes = tuple[tuple[int, int], ...]
"""(frame width in tokens, nanoseconds for one layer), ascending in width; not empty."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """What the model of speed has to know of one stage of a ring.

    Attributes:
        layers: how many layers the stage serves.
        layer_ns: its measured times for one layer.
        tail_ns: nanoseconds a token for norm, lm_head and choice at the tail; 0 at every other stage.
        hop_us: one-way microseconds to the next stage (at the tail: back to the head); 0 for a ring of one.
        token_bytes: bytes of a frame to the next stage that each token adds; 0 for a ring of one.
        uplink: bytes per second that the stage can send; 0 where that was not measured (or there is nobody to send to).
        overhead_ns: nanoseconds that a hop costs beyond hop_us and the bytes' time.

    """

    layers: int
    layer_ns: LayerTimes
    tail_ns: int
    hop_us: int
    token_bytes: int = 0
    uplink: int = 0
    overhead_ns: int = 0

    def compute_ns(self, width: int) -> int:
        """Return the nanoseconds this stage computes on a frame of `width` tokens.

        The choice is charged for every token of the frame: exact for one token, an upper bound for more,
        because one token is all that is measured.
        """
        return self.layers * layer_ns_at(self.layer_ns, width) + width * self.tail_ns

    def wire_ns(self, width: int) -> int:
        """Return the nanoseconds for which a frame of `width` tokens keeps the stage's uplink busy."""
        return wire_ns(self.token_bytes, self.uplink, width)

    def hop_ns(self, width: int) -> int:
        """Return the nanoseconds from the end of this stage's computing to the frame's arrival at the next one."""
        return self.hop_us * NS_PER_US + self.wire_ns(width) + self.overhead_ns


def wire_ns(token_bytes: int, uplink: int, width: int) -> int:
    """Return the nanoseconds in which `uplink` bytes a second send a frame; 0 where the uplink is unknown (0)."""
    if not uplink:
        return 0
    return _ceil_div((FRAME_HEADER_BYTES + width * token_bytes) * NS_PER_SECOND, uplink)


def layer_ns_at(measured: LayerTimes, width: int) -> int:
    """Return the nanoseconds for one layer at a frame width, from the widths that were measured.

    Between two measured widths the time is interpolated linearly. Outside of them the nearest segment is
    prolonged, held between what physics allows: a wider frame is never faster than the widest measured one,
    and a narrower frame costs at least its tokens' share of the narrowest and at most all of it. With one
    measurement only, a wider frame costs its tokens' share and a narrower one as much as the measured one.

    Raises:
        ValueError: nothing was measured, or the width is below 1.

    """
    if not measured or width < 1:
        raise ValueError(f"no time for width {width} from the measurements {measured}")
    first, last = measured[0], measured[-1]
    if width < first[0]:
        line = first[1] if len(measured) == 1 else _line(first, measured[1], width)
        return min(first[1], max(line, _ceil_div(first[1] * width, first[0])))
    if width > last[0]:
        if len(measured) == 1:
            return _ceil_div(last[1] * width, last[0])
        return max(last[1], _line(measured[-2], last, width))
    low = max(point for point in measured if point[0] <= width)
    high = min(point for point in measured if point[0] >= width)
    return _line(low, high, width)


def one_way_us(there_us: int, back_us: int) -> int:
    """Return the one-way microseconds of an edge from the round trips that its two ends measured.

    Half of the larger one: an edge is as slow as its more pessimistic end says. The round trips are
    measured on the daemons' own streams, so they contain what a hop costs above the bare network.
    """
    return _ceil_div(max(there_us, back_us), 2)


def circuit_ns(stages: Sequence[StageCost], width: int = 1) -> int:
    """Return T: the nanoseconds of a frame of `width` tokens once around the ring (formula: see the module)."""
    return sum(stage.compute_ns(width) + stage.hop_ns(width) for stage in stages)


def bottleneck_ns(stages: Sequence[StageCost], width: int = 1) -> int:
    """Return τ: the nanoseconds for which a frame keeps the slowest stage or uplink busy: frames follow each other at
    this distance at best.
    """
    return max(max(stage.compute_ns(width), stage.wire_ns(width)) for stage in stages)


def prefill_ns(circuit_ns: int, bottleneck_ns: int, frames: int) -> int:
    """Return the nanoseconds from sending a prompt to having its first token, on an idle ring.

    The prompt goes around in frames that follow each other without waiting, so the first one fills the pipeline and
    each further one costs what the slowest part needs for it: T(w) + (frames - 1) · τ(w). The last frame is
    counted as a full one.

    Args:
        circuit_ns: T(w) at the prompt's frame width, see prefill_frames.
        bottleneck_ns: τ(w).
        frames: how many frames the prompt has.

    """
    return circuit_ns + (frames - 1) * bottleneck_ns


def prefill_frames(prompt_tokens: int) -> tuple[int, int]:
    """Return (frame width in tokens, number of frames) in which a prompt goes around.

    Raises:
        ValueError: prompt_tokens is below 1.

    """
    if prompt_tokens < 1:
        raise ValueError(f"prompt_tokens is {prompt_tokens}: a prompt has at least 1 token")
    width = min(PREFILL_WIDTH, prompt_tokens)
    return width, _ceil_div(prompt_tokens, width)


def _line(low: tuple[int, int], high: tuple[int, int], width: int) -> int:
    (x0, y0), (x1, y1) = low, high
    if x0 == x1:
        return y0
    return y0 + _ceil_div((y1 - y0) * (width - x0), x1 - x0)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
