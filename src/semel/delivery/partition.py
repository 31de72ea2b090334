"""Delivers one partition of one minibatch: one pass over its rows feeds every sink."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.delivery.fenced import FencedWay
from semel.delivery.gathering import gathered
from semel.delivery.intents import IntentWay
from semel.delivery.lane import Lane
from semel.delivery.recounting import count
from semel.delivery.surroundings import Surroundings
from semel.delivery.watermarks import watermark
from semel.delivery.whole import WholeWay
from semel.errors import Fenced
from semel.events import Counter
from semel.ledger.journal import COUNTERS, Journal, State, require_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from semel.delivery.assignment import Assignment
    from semel.delivery.lane import Way
    from semel.ledger.reports import Report
    from semel.ledger.scribe import Scribe
    from semel.sinks import Sink


def way_of(lane: Lane) -> Way:
    """Choose how the events of a lane reach its destination."""
    if lane.sink.whole:
        return WholeWay(lane)
    if lane.sink.capability.records_intents:
        return IntentWay(lane)
    return FencedWay(lane)


@contextlib.contextmanager
def _giving_up(lanes: Sequence[Lane]) -> Iterator[None]:
    """When a sink or the input fails, let every lane settle what it knows to be acknowledged: a
    destination that is down puts nothing in doubt at another one.
    """
    try:
        yield
    except Fenced:
        raise
    except Exception:
        for lane in lanes:
            if isinstance(lane.way, IntentWay):
                with contextlib.suppress(Exception):  # the first error is the one that is told
                    lane.way.give_up()
        raise


@dataclass
class PartitionDelivery:
    """Takes the batches of one partition, in its order, and delivers them to every sink."""

    assignment: Assignment
    sinks: Sequence[Sink]
    scribe: Scribe
    journal: Journal
    around: Surroundings = field(default_factory=Surroundings)
    skipped: int = 0
    """Events of partitions without a report: all of them were handled before a lost checkpoint."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Report]:
        """Deliver everything and report, one report for each sink that had events.

        Raises `Fenced` when another attempt has the partition; its task must not succeed.
        """
        if self.assignment.opening.counts:
            return count(self.assignment, self.sinks, batches)
        base = self._counters()
        stamper = self.assignment.identity.stamper(self.assignment.partition, last=base.values)
        with contextlib.ExitStack() as stack:
            lanes = [self._lane(sink, stack) for sink in self.sinks]
            with _giving_up(lanes):
                for batch in gathered(batches, lambda: max(lane.way.wants() for lane in lanes)):
                    rows = stamper.stamp(batch)
                    for lane in lanes:
                        lane.push(rows)
                reports = [report for lane in lanes if (report := lane.finish()) is not None]
            told = {report.sink for report in reports}
            self.skipped = sum(lane.figures.skipped for lane in lanes if lane.sink.name not in told)
        counted = stamper.state()
        if not counted:
            return reports
        serial = self.assignment.opening.row.serial
        entry = self.journal.entry(COUNTERS, self.assignment.partition, serial, base, dict(counted))
        return [replace(report, entries=(*report.entries, entry)) for report in reports]

    def _lane(self, sink: Sink, stack: contextlib.ExitStack) -> Lane:
        mark = watermark(self.assignment, sink, self.journal)
        lane = Lane(self.assignment, sink, self.scribe, self.around, mark)
        lane.way = way_of(lane)
        stack.callback(lane.way.close)
        return lane

    def _counters(self) -> State:
        """Give the counters as the minibatch before left them."""
        if not isinstance(self.assignment.identity, Counter):
            return State()
        serial = self.assignment.opening.row.serial
        place = self.assignment.partition
        return self.journal.restore(COUNTERS, place, before=serial, check=require_counts)
