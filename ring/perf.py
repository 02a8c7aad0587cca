"""PerfBook: what a swarm has learned about how fast its hosts, edges and drafters are.

Times, rates and chances are averaged: over all samples at first, then exponentially, so that what was long ago is
forgotten (EWMA). A round trip is the least of the last samples: whatever disturbs it only ever makes it longer. What was
remembered from an earlier run yields to the first sample of this one where it is a round trip, and takes part in the
average elsewhere. swarmd/perf_store.py keeps a book on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from ring.throughput import LayerTimes

Kind = Literal["layer", "tail", "rtt", "uplink", "overhead", "draft", "draft_time"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Subject = tuple[Kind, tuple[str | int, ...]]
"""What an estimate is about: its kind, and hosts, models, widths."""

MAX_ESTIMATES = 65_536
"""Beyond so many, those that were not renewed for longest are forgotten."""

RTT_WINDOW = 12
"""Samples of which a round trip is the least."""

MAX_DEPTH = 16
"""Drafts of a chain whose acceptance is told apart; deeper ones count as the last of these."""

_LARGEST = 1 << 62
_MEMORY = 8  # samples: how many count in an average of times or rates
_DRAFT_MEMORY = 64  # of drafts, each of which is either accepted or not
_LEAST_BUCKET = 512  # tokens: contexts below it are one bucket, above it each power of two begins one
_MILLION = 1_000_000
_APART = 10  # percent by which a figure has to move before it is said anew
_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """A learned value.

    Attributes:
        value: nanoseconds ("layer" for one layer, "tail", "overhead", "draft_time" for one draft), microseconds ("rtt"),
            bytes per second ("uplink") or a chance in millionths ("draft").
        samples: from how many samples, as far as they count; 0: it is only expected.

    """

    value: int
    samples: int


class PerfBook:
    """Takes samples in and gives estimates out; remembers which ones changed, for whoever saves them."""

    def __init__(self, remembered: Iterable[tuple[Subject, Estimate]] = ()) -> None:
        self._estimates: dict[Subject, Estimate] = dict(remembered)
        self._groups: dict[Subject, dict[Subject, None]] = {}
        for subject in self._estimates:
            self._groups.setdefault(_group(subject), {})[subject] = None
        self._windows: dict[Subject, deque[int]] = {}
        self._changed: dict[Subject, None] = {}
        self._forget_oldest()

    def __len__(self) -> int:
        return len(self._estimates)

    def expect_layer(self, peer: str, model: str, width: int, ns: int) -> None:
        """A host should take `ns` nanoseconds, by a trial without work: the first sample of work replaces this.

        Where work has been seen already, the trial counts as one more sample: a host that once was slow and is left out for
        it has no other way to be thought of better.
        """
        self._expect(("layer", (peer, model, width)), ns)

    def expect_tail(self, peer: str, model: str, ns: int) -> None:
        """The same for the time to turn a hidden state into a token."""
        self._expect(("tail", (peer, model)), ns)

    def saw_layer(self, peer: str, model: str, width: int, ns: int) -> None:
        """A host took `ns` nanoseconds for one layer and a frame of `width` tokens."""
        self._average(("layer", (peer, model, width)), ns, _MEMORY)

    def layer_ns(self, peer: str, model: str) -> LayerTimes:
        """Return a host's (frame width, nanoseconds) for one layer, ascending in width; empty where nothing is known."""
        group = self._groups.get(("layer", (peer, model)), ())
        return tuple(sorted((int(subject[1][2]), self._estimates[subject].value) for subject in group))

    def saw_tail(self, peer: str, model: str, ns: int) -> None:
        """A host took `ns` nanoseconds to turn a hidden state into a token."""
        self._average(("tail", (peer, model)), ns, _MEMORY)

    def tail_ns(self, peer: str, model: str) -> int:
        """Return a host's nanoseconds to turn a hidden state into a token; 0 where that is not known."""
        return self._value("tail", peer, model)

    def saw_rtt(self, here: str, there: str, us: int) -> None:
        """`here` measured a round trip of `us` microseconds to `there`."""
        subject: Subject = ("rtt", (here, there))
        window = self._windows.setdefault(subject, deque(maxlen=RTT_WINDOW))
        window.append(_bounded(us))
        self._put(subject, Estimate(min(window), len(window)))

    def rtt_us(self, here: str, there: str) -> int:
        """Return the microseconds of the directed edge; 0 where it was never measured."""
        return self._value("rtt", here, there)

    def saw_uplink(self, peer: str, bytes_per_second: int) -> None:
        """A host was seen to send so fast."""
        self._average(("uplink", (peer,)), bytes_per_second, _MEMORY)

    def uplink(self, peer: str) -> int:
        """Return the bytes per second that a host can send; 0 where that is not known."""
        return self._value("uplink", peer)

    def saw_overhead(self, peer: str, ns: int) -> None:
        """A hop took a host `ns` nanoseconds beyond computing and sending."""
        self._average(("overhead", (peer,)), ns, _MEMORY)

    def overhead_ns(self, peer: str) -> int:
        """Return what a hop costs a host beyond computing and sending, in nanoseconds; 0 where that is not known."""
        return self._value("overhead", peer)

    def saw_drafts(
        self, model: str, drafter: str, *, context: int, offered: int, accepted: int, token_ns: int
    ) -> None:
        """Of a chain of `offered` drafts at a context of so many tokens, the first `accepted` were what the model chose.

        Drafts behind the first wrong one say nothing. `token_ns` is what one draft took.

        Raises:
            ValueError: accepted is not within [0, offered].

        """
        if not 0 <= accepted <= offered:
            raise ValueError(f"accepted is {accepted}, not within [0, {offered}]")
        bucket = bucket_of(context)
        for depth in range(min(offered, accepted + 1)):
            subject: Subject = ("draft", (model, drafter, bucket, min(depth, MAX_DEPTH - 1)))
            self._average(subject, _MILLION * (depth < accepted), _DRAFT_MEMORY)
        if offered:
            self._average(("draft_time", (model, drafter)), token_ns, _MEMORY)

    def acceptance(self, model: str, drafter: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the rows of ring.drafting.Drafter.acceptance: (context, chances by depth), the first from 0; empty where
        nothing is known.
        """
        rows: dict[int, dict[int, int]] = {}
        for subject in self._groups.get(("draft", (model, drafter)), ()):
            _, (_, _, bucket, depth) = subject
            rows.setdefault(int(bucket), {})[int(depth)] = self._estimates[subject].value
        known: list[tuple[int, tuple[int, ...]]] = []
        for bucket, chances in sorted(rows.items()):
            depths = 0
            while depths in chances:
                depths += 1
            if depths:
                known.append((bucket if known else 0, tuple(chances[depth] for depth in range(depths))))
        return tuple(known)

    def draft_ns(self, model: str, drafter: str) -> int:
        """Return the nanoseconds of one draft; 0 where that is not known."""
        return self._value("draft_time", model, drafter)

    def take_changes(self) -> list[tuple[Subject, Estimate | None]]:
        """Return what changed since the last call; None for what was forgotten."""
        changes = [(subject, self._estimates.get(subject)) for subject in self._changed]
        self._changed.clear()
        return changes

    def put_back(self, changes: Iterable[tuple[Subject, Estimate | None]]) -> None:
        """Take changes that could not be saved as changed again."""
        self._changed.update((subject, None) for subject, _ in changes)

    def everything_changed(self) -> None:
        """Have all estimates saved anew: what was saved is lost."""
        self._changed.update(dict.fromkeys(self._estimates))

    def _value(self, kind: Kind, *names: str) -> int:
        estimate = self._estimates.get((kind, names))
        return 0 if estimate is None else estimate.value

    def _expect(self, subject: Subject, ns: int) -> None:
        former = self._estimates.get(subject)
        if former is not None and former.samples:
            self._average(subject, ns, _MEMORY)
        else:
            self._put(subject, Estimate(_bounded(ns), 0))

    def _average(self, subject: Subject, sample: int, memory: int) -> None:
        former = self._estimates.get(subject, Estimate(0, 0))
        samples = min(former.samples + 1, memory)
        # Units finer than one would be lost in each step otherwise: an average would stick beside its samples.
        step, rest = divmod(abs(_bounded(sample) - former.value), samples)
        step += rest > 0
        value = former.value + (step if sample > former.value else -step)
        self._put(subject, Estimate(value, samples))

    def _put(self, subject: Subject, estimate: Estimate) -> None:
        self._estimates.pop(subject, None)  # so that the order is that of the last samples
        self._estimates[subject] = estimate
        self._groups.setdefault(_group(subject), {})[subject] = None
        self._changed[subject] = None
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._estimates) > MAX_ESTIMATES:
            oldest = next(iter(self._estimates))
            del self._estimates[oldest]
            self._windows.pop(oldest, None)
            group = self._groups[_group(oldest)]
            del group[oldest]
            if not group:
                del self._groups[_group(oldest)]
            self._changed[oldest] = None


def _group(subject: Subject) -> Subject:
    """Return what the estimates of all widths of a host, or of all depths of a drafter, have in common."""
    kind, names = subject
    return kind, names[:2]


def bucket_of(context: int) -> int:
    """Return the least context of the bucket that a context of so many tokens lies in."""
    return 0 if context < _LEAST_BUCKET else 1 << (context.bit_length() - 1)


def steady(said: int, estimate: int) -> int:
    """Return the figure to announce, given the one that was announced last (0: none): the same one until the estimate has
    moved by a tenth, then the estimate with two significant digits. So noise does not make plans flap.
    """
    if said and abs(estimate - said) * 100 <= said * _APART:
        return said
    unit = int(10 ** max(0, len(str(estimate)) - _DIGITS))
    return max(1, (estimate + unit // 2) // unit * unit) if estimate else 0


def _bounded(sample: int) -> int:
    return max(0, min(sample, _LARGEST))
