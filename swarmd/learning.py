"""Learning: what this host measures of itself while it works goes into the PerfBook, and from there into what it announces."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median_low

from ring.identity import PeerId
from ring.perf import steady
from ring.throughput import layer_ns_at
from runtimes.base import Probe
from swarmd.facts import OwnFacts
from swarmd.perf_store import PerfStore

_BATCH = 16  # frames, whose median is one sample: a single frame may have met anything


class Learning:
    """Feeds the book with this host's own figures, and announces them as soon as they have moved enough to matter.

    What the probe found on an idle host is the first sample; the ring's frames, with their caches and neighbours,
    are the later ones. So a host that is slower at work than it promised is soon planned for as it is.
    """

    def __init__(self, peer: PeerId, store: PerfStore, facts: OwnFacts) -> None:
        self._peer = peer
        self._store = store
        self._facts = facts
        self._served_as = ""
        self._widths: tuple[int, ...] = ()
        self._batches: dict[int, _Batch] = {}
        self._overheads = _Batch(self._saw_overhead)

    def probed(self, probe: Probe, *, model: str, dtype: str, device: str) -> None:
        """Take in what the probe measured. Figures of another device or dtype are others."""
        self._served_as = f"{model} {dtype} {device}"
        self._widths = tuple(width for width, _ in probe.layer_ns)
        book = self._store.book
        for width, ns in probe.layer_ns:
            book.expect_layer(self._peer, self._served_as, width, ns)
        book.expect_tail(self._peer, self._served_as, probe.tail_ns)
        self._facts.update(model=model)
        self._announce()

    def saw_rtt(self, there: PeerId, us: int) -> None:
        """Take in a round trip in microseconds."""
        self._store.book.saw_rtt(self._peer, there, us)

    def saw_uplink(self, bytes_per_second: int) -> None:
        """Take in how fast this host was seen to send."""
        self._store.book.saw_uplink(self._peer, bytes_per_second)
        self._announce()

    def computed(self, *, layers: int, width: int, tail: bool, ns: int) -> None:
        """Take in a frame: so many layers computed `width` tokens in `ns` nanoseconds, at the tail with their choice."""
        if not self._widths or (tail and width > 1):
            return  # the share of the choice is known for one token only
        if width not in self._batches:
            nearest = min(self._widths, key=lambda known: max(known / width, width / known))
            self._batches = {kept: batch for kept, batch in self._batches.items() if kept in self._widths}
            self._batches[width] = _Batch(lambda sample: self._saw_layer(nearest, width, sample))
        expected = layers * self._layer_ns(width) + tail * self._tail_ns
        self._batches[width].add(round(1_000_000 * ns / max(expected, 1)))

    def handed_on(self, ns: int) -> None:
        """Take in what a frame cost beyond computing, from its arrival to its being sent."""
        self._overheads.add(ns)

    def _layer_ns(self, width: int) -> int:
        return layer_ns_at(self._known_layers(), width)

    @property
    def _tail_ns(self) -> int:
        return self._store.book.tail_ns(self._peer, self._served_as)

    def _known_layers(self) -> tuple[tuple[int, int], ...]:
        known = self._store.book.layer_ns(self._peer, self._served_as)
        return tuple((width, ns) for width, ns in known if width in self._widths)

    def _saw_layer(self, nearest: int, width: int, millionths: int) -> None:
        """Scale what is known of the nearest measured width as the frames of this width differ from what was expected."""
        book = self._store.book
        known = dict(self._known_layers())
        book.saw_layer(self._peer, self._served_as, nearest, known[nearest] * millionths // 1_000_000)
        if width == 1:
            book.saw_tail(self._peer, self._served_as, self._tail_ns * millionths // 1_000_000)
        self._announce()

    def _saw_overhead(self, ns: int) -> None:
        self._store.book.saw_overhead(self._peer, ns)
        self._announce()

    def _announce(self) -> None:
        facts, book = self._facts, self._store.book
        said = dict(facts.layer_ns)
        facts.update(
            layer_ns=tuple((width, steady(said.get(width, 0), ns)) for width, ns in self._known_layers()),
            tail_ns=steady(facts.tail_ns, self._tail_ns),
            uplink=steady(facts.uplink, book.uplink(self._peer)),
            overhead_ns=steady(facts.overhead_ns, book.overhead_ns(self._peer)),
        )


class _Batch:
    """Gathers values and hands their median on."""

    def __init__(self, use: Callable[[int], None]) -> None:
        self._use = use
        self._values: list[int] = []

    def add(self, value: int) -> None:
        """Take one more value in."""
        self._values.append(value)
        if len(self._values) == _BATCH:
            self._use(median_low(self._values))
            self._values.clear()
