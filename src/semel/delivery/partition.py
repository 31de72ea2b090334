"""Delivers one partition of one minibatch: one pass over its rows feeds every sink.

Puts the batches of a partition together to runs that a step of a lane takes whole.

What is done once for a run, looking up its entities above all, costs a fifth where five batches are
one. Always true: rows keep their order, none waits that a step could have taken, and no run is made
of more bytes than `GATHERED_BYTES` and the batch that passed it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.delivery.lane import Lane
from semel.delivery.recovery.watermarks import watermark
from semel.delivery.strategies.intent import IntentStrategy
from semel.delivery.strategies.overwrite import OverwriteStrategy
from semel.delivery.strategies.progress import ProgressStrategy
from semel.delivery.strategies.replay_check import count_partition
from semel.errors import Fenced
from semel.events import put_together
from semel.ledger import COUNTERS, Journal, State, require_counts
from semel.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from semel.delivery.assignment import Assignment
    from semel.delivery.lane import Strategy
    from semel.ledger import LedgerClient, Report
    from semel.sinks import Sink


def way_of(lane: Lane) -> Strategy:
    """Choose how the events of a lane reach its destination."""
    if lane.sink.whole:
        return OverwriteStrategy(lane)
    if lane.sink.capability.records_intents:
        return IntentStrategy(lane)
    return ProgressStrategy(lane)


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
            if isinstance(lane.way, IntentStrategy):
                with contextlib.suppress(Exception):  # the first error is the one that is told
                    lane.way.give_up()
        raise


@dataclass
class PartitionDelivery:
    """Takes the batches of one partition, in its order, and delivers them to every sink."""

    assignment: Assignment
    sinks: Sequence[Sink]
    client: LedgerClient
    journal: Journal
    runtime: Runtime = field(default_factory=Runtime)
    skipped: int = 0
    """Events of partitions without a report: all of them were handled before a lost checkpoint."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Report]:
        """Deliver everything and report, one report for each sink that had events.

        Raises `Fenced` when another attempt has the partition; its task must not succeed.
        """
        if self.assignment.opening.counts:
            return count_partition(self.assignment, self.sinks, batches)
        later = self.assignment.opening.later
        sinks = [sink for sink in self.sinks if sink.name not in later]
        if not sinks:
            return []
        base = self._counters()
        stamper = self.assignment.identity.stamper(self.assignment.partition, last=base.values)
        with contextlib.ExitStack() as stack:
            lanes = [self._lane(sink, stack) for sink in sinks]
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
        lane = Lane(self.assignment, sink, self.client, self.runtime, mark)
        lane.way = way_of(lane)
        stack.callback(lane.way.close)
        return lane

    def _counters(self) -> State:
        """Give the counters as the minibatch before left them."""
        if not self.assignment.identity.assigns_ids:
            return State()
        serial = self.assignment.opening.row.serial
        place = self.assignment.partition
        return self.journal.restore(COUNTERS, place, before=serial, check=require_counts)


GATHERED_BYTES = 64 << 20


def gathered(
    batches: Iterable[pa.RecordBatch], wanted: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Give the rows of `batches` in runs of as many as are wanted, or a multiple of it; copy only
    where a run begins in one batch and ends in another.
    """
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rest = batch
        if kept and rest.schema != kept[0].schema:
            yield put_together(kept)
            kept, rows, size = [], 0, 0
        if kept:
            missing = max(wanted() - rows, 0)
            kept.append(rest.slice(0, missing))
            rows, size = rows + len(kept[-1]), size + kept[-1].nbytes
            if len(rest) < missing and size < GATHERED_BYTES:
                continue
            yield put_together(kept)
            kept, rows, size = [], 0, 0
            rest = rest.slice(missing)
        whole = len(rest) - len(rest) % max(wanted(), 1)
        if whole:
            yield rest.slice(0, whole)
            rest = rest.slice(whole)
        if len(rest):
            kept, rows, size = [rest], len(rest), rest.nbytes
    if kept:
        yield put_together(kept)
