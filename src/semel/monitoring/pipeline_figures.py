"""The figures of one start of a pipeline: an observer of its driver, read as samples.

Always true:
- an event of a completed minibatch is counted as delivered once, whichever attempt delivered it; a
  minibatch that was complete before and is only counted again adds none;
- it is notified in several threads, and read in others.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from semel.delivery import (
    EventResent,
    Figures,
    HeartbeatWritten,
    MarkerChosen,
    MinibatchCompleted,
    MinibatchOpened,
    QueryProgressed,
)
from semel.ledger import CommitFigures
from semel.monitoring import catalogue
from semel.monitoring.catalogue import Distribution, Sample
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from semel.delivery import DeliveryEvent
    from semel.runtime import Clock

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class PipelineFigures:
    """Counts what the driver of one start does.

    Attributes:
        driver_commits: returns what the driver itself asked of the ledger; set once it has one.
    """

    def __init__(self, pipeline: str, sinks: Sequence[str], clock: Clock) -> None:
        self.pipeline = pipeline
        self.sinks = tuple(sinks)
        self.driver_commits: Callable[[], CommitFigures] = CommitFigures
        self._clock = clock
        self._lock = threading.Lock()
        self._by_sink = dict.fromkeys(self.sinks, Figures())
        self._delivered: Counter[str] = Counter()
        self._resent: Counter[tuple[str, str]] = Counter()
        self._skipped = self._minibatches = self._run = 0
        self._seconds = 0.0
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._commits = CommitFigures()
        self._opened_at: float | None = None
        self._beat_at = clock.monotonic()
        self._chosen: MarkerChosen | None = None
        self._query: QueryProgressed | None = None

    def observe(self, event: DeliveryEvent) -> None:
        """Count what an event says."""
        with self._lock:
            match event:
                case MinibatchOpened():
                    self._run = event.run
                    self._opened_at = self._clock.monotonic() - event.seconds
                case MinibatchCompleted():
                    self._completed(event)
                case EventResent() if event.state is not None:
                    self._resent[event.sink, event.state.value] += 1
                    if event.state is ParkedState.DELIVERED:
                        self._delivered[event.sink] += 1
                case HeartbeatWritten():
                    self._run = event.run
                    self._beat_at = self._clock.monotonic()
                case MarkerChosen():
                    self._chosen = event
                case QueryProgressed():
                    self._query = event
                case _:
                    return

    def _completed(self, event: MinibatchCompleted) -> None:
        self._opened_at = None
        self._minibatches += 1
        self._skipped += event.skipped
        self._commits += event.commits
        self._seconds += event.seconds
        self._buckets[bisect_left(BOUNDS_S, event.seconds)] += 1
        for sink, figures in event.figures.items():
            self._by_sink[sink] = self._by_sink.get(sink, Figures()) + figures
            self._skipped += figures.skipped
            if not event.again:
                self._delivered[sink] += figures.delivered + figures.suppressed

    def samples(self) -> Iterator[Sample]:
        """Return the figures as of now."""
        with self._lock:
            found = [*self._counted(), *self._times(), *self._paced(), *self._of_spark()]
        yield from found

    def _counted(self) -> Iterator[Sample]:
        for sink, figures in self._by_sink.items():
            at = (self.pipeline, sink)
            yield Sample(catalogue.DELIVERED, at, self._delivered[sink])
            yield Sample(catalogue.SUPPRESSED, at, figures.suppressed)
            yield Sample(catalogue.PARKED, at, figures.parked)
            yield Sample(catalogue.IN_DOUBT, at, figures.doubted)
            yield Sample(catalogue.DROPPED, at, figures.dropped)
            yield Sample(catalogue.BYTES, at, figures.bytes)
        for (sink, state), count in sorted(self._resent.items()):
            yield Sample(catalogue.RESENT, (self.pipeline, sink, state), count)
        yield Sample(catalogue.SKIPPED, (self.pipeline,), self._skipped)
        yield Sample(catalogue.MINIBATCHES, (self.pipeline,), self._minibatches)
        for where, used in (("driver", self.driver_commits()), ("tasks", self._commits)):
            at = (self.pipeline, where)
            yield Sample(catalogue.COMMITS, at, Distribution(used.commits, used.seconds))
            yield Sample(catalogue.LEDGER_ERRORS, at, used.errors)

    def _times(self) -> Iterator[Sample]:
        now, at = self._clock.monotonic(), (self.pipeline,)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        buckets = tuple(zip(bounds, accumulate(self._buckets), strict=True))
        yield Sample(
            catalogue.MINIBATCH_SECONDS, at, Distribution(self._minibatches, self._seconds, buckets)
        )
        opened = 0.0 if self._opened_at is None else now - self._opened_at
        yield Sample(catalogue.OPEN_SECONDS, at, opened)
        yield Sample(catalogue.HEARTBEAT_AGE, at, now - self._beat_at)
        yield Sample(catalogue.RUN, at, self._run)

    def _paced(self) -> Iterator[Sample]:
        chosen = self._chosen
        if chosen is None:
            return
        for share, value in (("0.5", chosen.p50_s), ("0.99", chosen.p99_s)):
            if value is not None:
                yield Sample(catalogue.LATENCY, (self.pipeline, share), value)
        yield Sample(catalogue.LATENCY_REQUIRED, (self.pipeline,), chosen.latency_s)
        yield Sample(catalogue.INTERVAL, (self.pipeline,), chosen.choice.interval_s)

    def _of_spark(self) -> Iterator[Sample]:
        seen = self._query
        if seen is None:
            return
        yield Sample(catalogue.INPUT_RATE, (self.pipeline,), seen.query.rows_in_per_s)
        yield Sample(catalogue.QUERY_SECONDS, (self.pipeline,), seen.query.seconds)
        for source, count in seen.behind.items():
            yield Sample(catalogue.BEHIND, (self.pipeline, source), count)
        for place, state in enumerate(seen.state):
            at = (self.pipeline, f"{place} {state.operator}")
            yield Sample(catalogue.STATE_ROWS, at, state.rows)
            yield Sample(catalogue.STATE_BYTES, at, state.memory_bytes)
