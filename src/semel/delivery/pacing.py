"""Pacing: holds the end of a micro-batch until the next marker is due, for any source of Spark.

Always true:
- a marker is where Spark looks for new input, just after the end of the micro-batch before;
- markers are recorded in the commit that completes their minibatch, and in no other;
- it waits only after a minibatch is complete, so a crash while it waits costs one recount;
- the latency is an estimate: events are taken to arrive evenly between two markers, and to be
  delivered when their minibatch is complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.delivery.observer import MarkerChosen
from semel.ledger import MarkerHead, MarkerRow
from semel.streams import MarkerClock, Markers, stream_of_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from semel.delivery.observer import Observer
    from semel.ledger import LedgerClient, OpenMinibatch, Report
    from semel.ledger.store import Update
    from semel.streams import Application, Choice, Newest

KEPT = 100
"""How many of the newest markers stay in the ledger, and how many minibatches a latency is of."""
LOOK_S = 0.1
"""How often the query is asked while waiting whether it was stopped."""
IDLE = 2.0
IDLE_S = 0.25
"""Between two micro-batches Spark waited for input, if more time passed than it usually needs."""
FIRST = "the first minibatch of this start"


@dataclass(frozen=True, slots=True)
class Waited:
    """One minibatch: how long its first event waited for the marker, and what followed."""

    since_s: float
    cost_s: float
    events: int


@dataclass
class Pacing:
    """Paces the minibatches of one `start()`. Runs on the driver, in the thread of `foreachBatch`.

    Attributes:
        trigger_s: the interval of Spark's own trigger; infinite if the query ends by itself.
    """

    client: LedgerClient
    application: Application
    observer: Observer
    trigger_s: float = 0.0
    _clock: MarkerClock = field(init=False)
    _markers: Markers = field(init=False)
    _newest: Newest | None = None
    _planned: tuple[Newest, Waited] | None = None
    _choice: Choice | None = None
    _began_at: float = 0.0
    _marker_at: float | None = None
    _marker_before: float | None = None
    _released_at: float | None = None
    _between_s: float = 0.0
    _idle: bool = False
    _total: int = 0
    _waited: deque[Waited] = field(default_factory=lambda: deque(maxlen=KEPT))

    def __post_init__(self) -> None:
        self._clock = MarkerClock(self.application)
        self._markers = Markers(self.client, stream_of_pipeline(self.client.pipeline))

    def began(self) -> None:
        """Learn that Spark begins a micro-batch: its marker was set just before."""
        now = self._began_at = self.client.clock.monotonic()
        self._marker_before, self._marker_at = self._marker_at, now
        self._idle = False
        if self._released_at is None:
            return
        # Spark needs this long at least between two micro-batches; more is waiting for input.
        between = now - self._released_at
        usual = self._between_s * 1.1 + 0.01 if self._between_s else min(between, 1.0)
        self._idle = between > IDLE * usual + IDLE_S
        self._between_s = min(between, usual)
        self._marker_at = now - self._between_s if self._idle else self._released_at

    def plan(self, opening: OpenMinibatch, reports: Sequence[Report]) -> list[Update]:
        """Return the rows of the marker at the end of a minibatch, for the commit that completes
        it. That commit requires the open minibatch, so no other run writes the same marker.
        """
        self._planned = None
        if opening.row.again or opening.settled:
            return []  # its marker is recorded; it is only counted
        if self._newest is None:
            self._newest = self._markers.newest()
            self._clock.load(self._newest.head.clock)
        waited = self._measured(reports)
        latencies = [*self._waited, waited]
        choice, clock = self._choice, self.client.clock
        head = MarkerHead(
            0,
            self._clock.dump(),
            self.application.name,
            self.application.latency_s,
            self.application.safety,
            quantile(latencies, 0.5),
            quantile(latencies, 0.99),
        )
        marker = MarkerRow(
            {str(at): text for at, text in enumerate(opening.inputs)},
            0.0 if choice is None else choice.interval_s,
            self._clock.rate if choice is None else choice.rate,
            FIRST if choice is None else choice.reason,
            clock.wall() - (clock.monotonic() - self._marked()),
            waited.events,
            waited.since_s,
            waited.cost_s,
            str(opening.row.minibatch),
        )
        newest, _, updates = self._markers.plan(self._newest, marker, head, KEPT)
        self._planned = newest, waited
        return updates

    def _marked(self) -> float:
        return self._began_at if self._marker_at is None else self._marker_at

    def _measured(self, reports: Iterable[Report]) -> Waited:
        """Return what the minibatch took until now."""
        by_sink: dict[str, int] = {}
        for report in reports:
            by_sink[report.sink] = by_sink.get(report.sink, 0) + report.count
        before, at = self._marker_before, self._marked()
        since = 0.0 if before is None or self._idle else at - before
        cost = self.client.clock.monotonic() - at
        return Waited(since, cost, max(by_sink.values(), default=0))

    def ended(self) -> None:
        """Learn that the minibatch is complete, and choose when the next one begins."""
        if self._planned is None:
            return
        self._newest, waited = self._planned
        self._planned = None
        cost = self.client.clock.monotonic() - self._marked()
        self._waited.append(Waited(waited.since_s, cost, waited.events))
        self._total += waited.events
        self._clock.arrived(self._total, self._marked())
        self._clock.marked(self._marked())
        self._clock.ran(waited.events, cost)
        before, self._choice = self._choice, self._clock.choose()
        self.observer.observe(
            MarkerChosen(
                self.client.pipeline,
                self._newest.number,
                self._choice,
                quantile(self._waited, 0.5),
                quantile(self._waited, 0.99),
                self.application.latency_s,
                news=_is_news(before, self._choice),
            )
        )

    def hold(self, active: Callable[[], bool], *, behind: bool = False) -> float:
        """Wait until the next marker is due, and return for how long; not if the input is `behind`
        (Spark left some of it for the next micro-batch), or Spark's own trigger is longer.
        """
        clock = self.client.clock
        began = clock.monotonic()
        if self._choice is not None and not behind and self.trigger_s < self._choice.interval_s:
            due = self._marked() + self._choice.interval_s
            while (left := due - clock.monotonic()) > 0 and active():
                clock.sleep(min(left, LOOK_S))
        self._released_at = clock.monotonic()
        return self._released_at - began


def _is_news(before: Choice | None, now: Choice) -> bool:
    """Whether a choice differs enough from the one before for a line in the log."""
    if before is None or before.reachable != now.reachable:
        return True
    return not 0.5 <= now.interval_s / max(before.interval_s, 1e-9) <= 2.0


def quantile(minibatches: Iterable[Waited], share: float) -> float | None:
    """Return the latency that this share of the events had at most; None if there were none.

    An event waits for the marker, from not at all up to the whole time since the marker before,
    and then for its minibatch.
    """
    found = [each for each in minibatches if each.events]
    total = sum(each.events for each in found)
    if not total:
        return None
    least, most = 0.0, max(each.since_s + each.cost_s for each in found)
    while most - least > 1e-3 * most:
        middle = (least + most) / 2
        reached = sum(each.events * _reached(each, middle) for each in found)
        least, most = (least, middle) if reached >= share * total else (middle, most)
    return most


def _reached(minibatch: Waited, latency: float) -> float:
    """Return the share of the events of a minibatch with at most this latency."""
    if latency < minibatch.cost_s:
        return 0.0
    if latency >= minibatch.cost_s + minibatch.since_s:
        return 1.0
    return (latency - minibatch.cost_s) / minibatch.since_s
