"""The model of speed: how long a frame takes once around a ring, and what that means in tokens per second.

A ring of stages i = 0 … k-1 (0 is the head, k-1 the tail) that serves n_i layers each moves a frame of w
tokens in

    circuit(w) = Σ_i n_i · t_i(w)  +  w · tail  +  Σ_i hop(i → i+1 mod k)

t_i(w) is stage i's measured time for one layer at width w, tail the tail's measured time for norm, lm_head
and choice of one token, and hop the one-way time of an edge. The last hop is the return from the tail to
the head, where the coordinator lives; a ring of one stage has no hops. A stage computes one frame at a
time. All quantities are integers, so that every host computes the same bytes (invariant I3); roundings go
up, and are far below what can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NS_PER_US = 1_000
NS_PER_SECOND = 1_000_000_000

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

    """

    layers: int
    layer_ns: LayerTimes
    tail_ns: int
    hop_us: int

    def compute_ns(self, width: int) -> int:
        """Return the nanoseconds this stage computes on a frame of `width` tokens.

        The choice is charged for every token of the frame: exact for one token, an upper bound for more,
        because one token is all that is measured.
        """
        return self.layers * layer_ns_at(self.layer_ns, width) + width * self.tail_ns


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
    """Return the nanoseconds of a frame of `width` tokens once around the ring (formula: see the module)."""
    return sum(stage.compute_ns(width) + stage.hop_us * NS_PER_US for stage in stages)


def predicted_millitokens_per_second(circuit_ns: int) -> int:
    """Return thousandths of tokens per second of one plainly decoded session: one token a traversal."""
    return 1_000 * NS_PER_SECOND // max(circuit_ns, 1)


def prefill_ns(stages: Sequence[StageCost], prompt_tokens: int, chunk: int) -> int:
    """Return the nanoseconds from sending a prompt to having its first token, on an idle ring.

    The prompt goes around in frames of `chunk` tokens that follow each other without waiting, so the first
    one fills the pipeline and each further one costs what the slowest stage needs for it: circuit(w) +
    (⌈prompt / w⌉ - 1) · max_i compute_i(w) with w = min(chunk, prompt). The last frame is counted as a full
    one.

    Raises:
        ValueError: prompt_tokens or chunk is below 1.

    """
    if prompt_tokens < 1 or chunk < 1:
        raise ValueError(f"prompt_tokens {prompt_tokens} and chunk {chunk} must be at least 1")
    width = min(chunk, prompt_tokens)
    frames = _ceil_div(prompt_tokens, width)
    return circuit_ns(stages, width) + (frames - 1) * max(stage.compute_ns(width) for stage in stages)


def _line(low: tuple[int, int], high: tuple[int, int], width: int) -> int:
    (x0, y0), (x1, y1) = low, high
    if x0 == x1:
        return y0
    return y0 + _ceil_div((y1 - y0) * (width - x0), x1 - x0)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
