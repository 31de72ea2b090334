"""Delivers one partition of one minibatch: one pass over its rows feeds every sink.

Always true:
- rows keep their order, and no row waits that a step could have taken;
- the batches of a partition are gathered into runs that a step of a lane takes whole: the work done
  once per run, above all looking up its entities, costs a fifth if five batches are one run;
- no run has more bytes than `GATHERED_BYTES` and the batch that exceeded it.
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
    """Choose the strategy that delivers the events of a lane."""
    if lane.sink.whole:
        return OverwriteStrategy(lane)
    if lane.sink.capability.records_intents:
        return IntentStrategy(lane)
    return ProgressStrategy(lane)


@contextlib.contextmanager
def _giving_up(lanes: Sequence[Lane]) -> Iterator[None]:
    """If a sink or the input fails, let every lane settle what it knows to be acknowledged: a
    destination that is down puts no event of another one in doubt.
    """
    try:
        yield
    except Fenced:
        raise
    except Exception:
        for lane in lanes:
            if isinstance(lane.way, IntentStrategy):
                with contextlib.suppress(Exception):  # the first error is the one to raise
                    lane.way.give_up()
        raise


@dataclass
class PartitionDelivery:
    """Delivers the batches of one partition, in its order, to every sink."""

    assignment: Assignment
    sinks: Sequence[Sink]
    client: LedgerClient
    journal: Journal
    runtime: Runtime = field(default_factory=Runtime)
    skipped: int = 0
    """Events of partitions without a report: all of them were handled before a lost checkpoint."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Report]:
        """Deliver everything and return one report for each sink that had events.

        Raises `Fenced` if another attempt has the partition; then this task must not succeed.
        """
        # 1. Only count a finished batch job. A sink that was added with a later minibatch gets
        #    nothing of this one.
        if self.assignment.opening.counts:
            return count_partition(self.assignment, self.sinks, batches)
        later = self.assignment.opening.later
        sinks = [sink for sink in self.sinks if sink.name not in later]
        if not sinks:
            return []
        # 2. Restore the counters as the previous minibatch left them, so that a replay after a
        #    crash assigns the same ids.
        base = self._counters()
        stamper = self.assignment.identity.stamper(self.assignment.partition, last=base.values)
        # 3. One pass over the input for all sinks. Each lane claims its partition in the ledger
        #    before its first effect, so after a crash the next attempt finds what may have been
        #    sent.
        with contextlib.ExitStack() as stack:
            lanes = [self._lane(sink, stack) for sink in sinks]
            with _giving_up(lanes):
                for batch in gathered(batches, lambda: max(lane.way.wants() for lane in lanes)):
                    rows = stamper.stamp(batch)
                    for lane in lanes:
                        lane.push(rows)
                # 4. Report only after every lane has finished: a task that fails before reports
                #    nothing, so the driver cannot complete the minibatch without it.
                reports = [report for lane in lanes if (report := lane.finish()) is not None]
            told = {report.sink for report in reports}
            self.skipped = sum(lane.figures.skipped for lane in lanes if lane.sink.name not in told)
        # 5. Return the new counters with the reports. They are written in the commit that completes
        #    the minibatch: a crash before it leaves the old ones for the replay.
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
        """Return the counters as the previous minibatch left them."""
        if not self.assignment.identity.assigns_ids:
            return State()
        serial = self.assignment.opening.row.serial
        place = self.assignment.partition
        return self.journal.restore(COUNTERS, place, before=serial, check=require_counts)


GATHERED_BYTES = 64 << 20


def gathered(
    batches: Iterable[pa.RecordBatch], wanted: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in runs of as many as are wanted, or a multiple of it; copy only
    if a run begins in one batch and ends in another.
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
