"""Delivers one partition of one minibatch: one pass over its rows feeds every sink.

Always true:
- rows keep their order, and no row waits that a step could have taken;
- the buffer of a sink counts and digests each row once, and only its own methods change it: a
  strategy reads the position and asks for digests;
- the batches of a partition are gathered into runs that a step of a strategy takes whole: the work
  done once per run, above all looking up its entities, costs a fifth if five batches are one run;
- no run has more bytes than `GATHERED_BYTES` and the batch that exceeded it;
- nothing is written for a partition without events;
- the end of the input proves nothing: recorded events that did not come are reported as short, not
  as done.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.delivery.assignment import SinkPartition, recorded_columns
from semel.delivery.audit import PartitionAudit
from semel.delivery.observer import (
    NO_FIGURES,
    ChunkDelivered,
    EventsSetAside,
    EventsSkipped,
    EventsSuppressed,
    Figures,
    LogObserver,
    RepeatsDropped,
)
from semel.delivery.parking.parking import Expected, PartitionParking, schema_text
from semel.delivery.recovery.watermarks import watermark
from semel.delivery.strategies.intent import IntentStrategy
from semel.delivery.strategies.overwrite import OverwriteStrategy
from semel.delivery.strategies.progress import ProgressStrategy
from semel.delivery.strategies.replay_check import count_partition
from semel.errors import Fenced
from semel.events import Digest, Rows, put_together
from semel.ledger import COUNTERS, CommitFigures, Journal, JournalState, Report, require_counts
from semel.protocol import RECORDS_INTENTS
from semel.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from semel.delivery.assignment import Assignment
    from semel.delivery.observer import Observer
    from semel.delivery.recovery.watermarks import Watermark
    from semel.delivery.strategies import Strategy
    from semel.ledger import LedgerClient
    from semel.sinks import AuditLog, Sink


class Buffer:
    """The rows of one partition that came and are not done yet at one sink. Runs on an executor.

    Attributes:
        count: how many rows came in all.
        waiting: how many of them are not done yet.
        position: how many of them are done, and so where the next one stands in the order.
        columns: the types of the columns of the first rows, as the ledger keeps them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0
        self.position = 0
        self.columns: dict[str, str] | None = None
        self._runs: list[Rows] = []
        self._digest: Digest | None = None
        self._ends: list[list[Any]] = []
        self._ahead: tuple[int, Digest, str] | None = None
        self._digested: str | None = None

    def push(self, rows: Rows) -> None:
        """Take the next rows, in the partition's order, and number them by it."""
        rows = rows.renumber(self.count)
        if self._digest is None:
            self._digest = Digest(rows.batch.schema)
            self.columns = recorded_columns(rows)
        self._ends = rows.ends(after=self._ends)
        count = rows.batch.num_rows
        self.count += count
        self.waiting += count
        self._runs.append(rows)

    def next(self, wanted: int) -> Rows:
        """Return the next rows, as many as are `wanted` or all that wait; they stay."""
        if len(self._runs) > 1 and len(self._runs[0]) < wanted:
            self._runs = [Rows.concat(self._runs)]
        return self._runs[0].slice(0, wanted)

    def drop(self, done: int) -> None:
        """Drop the first `done` of the rows that `next` returned, and digest them: often they were
        digested already, to be recorded.
        """
        rows = self._runs[0]
        if self._ahead is not None and self._ahead[0] == self.position + done:
            self._digest, self._digested = self._ahead[1:]
        else:
            self._running.update(rows.batch.slice(0, done))
            self._digested = None
        self._ahead = None
        self.position += done
        self.waiting -= done
        count = rows.batch.num_rows
        if done < count:
            self._runs[0] = rows.slice(done, count)
        else:
            self._runs.pop(0)

    def digest_to(self, stop: int) -> str:
        """Return the digest of the partition up to the position `stop`, which is at most the end of
        the rows that `next` returned.
        """
        if stop == self.position:
            if self._digested is None:
                self._digested = self._running.hexdigest()
            return self._digested
        ahead = self._running.ahead(self._runs[0].batch.slice(0, stop - self.position))
        text = ahead.hexdigest()
        self._ahead = (stop, ahead, text)
        return text

    @property
    def ends(self) -> tuple[list[Any], list[Any]]:
        """The sort keys of the first and of the last row that came."""
        return self._ends[0], self._ends[1]

    @property
    def _running(self) -> Digest:
        if self._digest is None:
            raise AssertionError("rows came, so there is a digest")
        return self._digest


def strategy_of(partition: SinkPartition, parking: PartitionParking, buffer: Buffer) -> Strategy:
    """Choose the strategy that delivers a partition to its sink."""
    if partition.sink.whole:
        return OverwriteStrategy(partition, parking, buffer)
    if partition.capability in RECORDS_INTENTS:
        return IntentStrategy(partition, parking, buffer)
    return ProgressStrategy(partition, parking, buffer)


class SinkDelivery:
    """Delivers one partition of one minibatch to one sink: passes its rows through a buffer to a
    strategy, adds up what the strategy did, and reports. Runs on an executor.
    """

    def __init__(
        self, partition: SinkPartition, watermark: Watermark, audit: PartitionAudit | None = None
    ) -> None:
        self.partition = partition
        self._audit = audit
        self.figures = NO_FIGURES
        self._watermark = watermark
        self._buffer = Buffer()
        self._strategy = strategy_of(partition, PartitionParking(partition), self._buffer)
        self._expected: Expected | None = None
        self._began = partition.runtime.clock.wall()

    def wants(self) -> int:
        """Return how many rows the next step takes."""
        return self._strategy.wants()

    def push(self, rows: Rows) -> None:
        """Take the next rows, in the partition's order."""
        handled = self._watermark.handled(rows)
        if handled.any():
            self._skip(rows.take(handled))
            rows = rows.take(~handled)
        if not len(rows):
            return
        self._watermark.observe(rows)
        if self._audit is not None:
            self._audit.push(rows)
        self._buffer.push(rows)
        while self._buffer.waiting and self._buffer.waiting >= (wanted := self._strategy.wants()):
            self._step(wanted)

    def _skip(self, rows: Rows) -> None:
        """Count events that came before: before a checkpoint was lost, or as a repeat; and fill in
        the payload of parked ones that wait for it.
        """
        repeats = self._watermark.repeats
        self._note(Figures(skipped=len(rows) - repeats, repeats=repeats))
        if self._expected is None:
            self._expected = Expected(self.partition.client, self.partition.sink.name)
        self._expected.fill(rows, schema_text(rows))

    def finish(self) -> Report | None:
        """Deliver what is buffered, because the input has ended, and report; None for a partition
        without events.
        """
        buffer, partition = self._buffer, self.partition
        while buffer.waiting:
            self._step(self._strategy.wants())
        if not buffer.count:
            return None
        ended = self._strategy.finish()
        if partition.claim.row is None:
            raise AssertionError("events came, so the partition was claimed")
        entry = self._watermark.entry()
        first, last = buffer.ends
        figures = self.figures
        audited = None if self._audit is None else self._audit.finish(figures)
        return Report(
            sink=partition.sink.name,
            partition=partition.assignment.partition,
            attempt=partition.assignment.attempt,
            count=buffer.count,
            digest=buffer.digest_to(buffer.position),
            osn=partition.claim.osn + buffer.count,
            sent=ended.sent,
            first=first,
            last=last,
            short=ended.short,
            mark=self._watermark.mark(),
            entries=() if entry is None else (entry,),
            delivered=figures.delivered,
            suppressed=figures.suppressed,
            parked=figures.parked,
            doubted=figures.doubted,
            dropped=figures.dropped,
            parked_before=figures.parked_before,
            dropped_before=figures.dropped_before,
            skipped=figures.skipped,
            unanswered=ended.unanswered,
            placed=ended.placed,
            columns=buffer.columns,
            bytes=figures.bytes,
            seconds=figures.seconds,
            repeats=figures.repeats,
            began=self._began,
            ended=partition.runtime.clock.wall(),
            audited=audited,
        )

    def give_up(self) -> None:
        """Settle what is known to be acknowledged, because the task fails."""
        self._strategy.give_up()

    def close(self) -> None:
        """Close the session, also after an error."""
        self._strategy.close()

    def _step(self, wanted: int) -> None:
        """Pass the strategy the rows that it wants, and drop those that are done."""
        clock = self.partition.runtime.clock
        rows = self._buffer.next(wanted)
        began = clock.monotonic()
        step = self._strategy.step(rows)
        if step.done:
            self._buffer.drop(min(wanted, self._buffer.waiting))
        if step.figures is not NO_FIGURES:
            figures = step.figures
            if figures.delivered:
                seconds = clock.monotonic() - began
                figures = replace(figures, bytes=rows.batch.nbytes, seconds=seconds)
            self._note(figures)

    def _note(self, figures: Figures) -> None:
        """Add figures up, and notify the observer of them."""
        self.figures += figures
        assignment, sink = self.partition.assignment, self.partition.sink.name
        minibatch = assignment.opening.row.minibatch
        place = (assignment.pipeline, minibatch, sink, assignment.partition)
        observe = self.partition.observer.observe
        if figures.skipped:
            observe(EventsSkipped(*place, figures.skipped))
        if figures.repeats:
            observe(RepeatsDropped(*place, figures.repeats))
        if figures.suppressed or figures.parked_before or figures.dropped_before:
            before = (figures.suppressed, figures.parked_before, figures.dropped_before)
            observe(EventsSuppressed(*place, *before))
        if figures.parked or figures.dropped:
            observe(EventsSetAside(*place, figures.parked, figures.doubted, figures.dropped))
        if figures.delivered:
            observe(ChunkDelivered(*place, figures.delivered, figures.bytes, figures.seconds))


@contextlib.contextmanager
def _giving_up(deliveries: Sequence[SinkDelivery]) -> Iterator[None]:
    """If a sink or the input fails, let every sink settle what it knows to be acknowledged: a
    destination that is down puts no event of another one in doubt.
    """
    try:
        yield
    except Fenced:
        raise
    except Exception:
        for each in deliveries:
            with contextlib.suppress(Exception):  # the first error is the one to raise
                each.give_up()
        raise


@dataclass
class PartitionDelivery:
    """Delivers the batches of one partition, in its order, to every sink."""

    assignment: Assignment
    sinks: Sequence[Sink]
    client: LedgerClient
    journal: Journal
    runtime: Runtime = field(default_factory=Runtime)
    observer: Observer = field(default_factory=LogObserver)
    audit: AuditLog | None = None
    skipped: int = 0
    """Events of partitions without a report: all of them were handled before a lost checkpoint."""
    repeats: dict[str, int] = field(default_factory=dict)
    """By sink, events of partitions without a report that were dropped as repeats."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[Report]:
        """Deliver everything and return one report for each sink that had events.

        Raises `Fenced` if another attempt has the partition; then this task must not succeed.
        """
        # 1. Only count a finished batch job. A sink that was added with a later minibatch gets
        #    nothing of this one.
        used = self.client.used.figures
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
        # 3. One pass over the input for all sinks. Each delivery claims its partition in the ledger
        #    before its first effect, so after a crash the next attempt finds what may have been
        #    sent.
        with contextlib.ExitStack() as stack:
            deliveries = [self._to(sink, stack) for sink in sinks]
            with _giving_up(deliveries):
                for batch in gathered(batches, lambda: max(each.wants() for each in deliveries)):
                    rows = stamper.stamp(batch)
                    for each in deliveries:
                        each.push(rows)
                # 4. Report only after every delivery has finished: a task that fails before reports
                #    nothing, so the driver cannot complete the minibatch without it.
                reports = [report for each in deliveries if (report := each.finish()) is not None]
            reported = {report.sink for report in reports}
            silent = [each for each in deliveries if each.partition.sink.name not in reported]
            self.skipped = sum(each.figures.skipped for each in silent)
            self.repeats = {
                each.partition.sink.name: each.figures.repeats
                for each in silent
                if each.figures.repeats
            }
        # 5. Return the new counters with the reports. They are written in the commit that completes
        #    the minibatch: a crash before it leaves the old ones for the replay.
        counted = stamper.state() if self.assignment.identity.assigns_ids else {}
        if counted:
            serial, place = self.assignment.opening.row.serial, self.assignment.partition
            entry = self.journal.entry(COUNTERS, place, serial, base, dict(counted))
            reports = [replace(report, entries=(*report.entries, entry)) for report in reports]
        snapshots = self.journal.take_figures()
        if reports:
            after = self.client.used.figures
            commits = CommitFigures(
                after.commits - used.commits,
                after.seconds - used.seconds,
                after.errors - used.errors,
            )
            reports[0] = replace(reports[0], snapshots=snapshots, commits=commits)
        return reports

    def _to(self, sink: Sink, stack: contextlib.ExitStack) -> SinkDelivery:
        """Prepare the delivery to one sink, and close it with the stack."""
        assignment = self.assignment
        partition = SinkPartition(assignment, sink, self.client, self.runtime, self.observer)
        audit = None if self.audit is None else PartitionAudit(partition, self.audit)
        delivery = SinkDelivery(partition, watermark(assignment, sink, self.journal), audit)
        stack.callback(delivery.close)
        return delivery

    def _counters(self) -> JournalState:
        """Return the counters as the previous minibatch left them."""
        if not self.assignment.identity.assigns_ids:
            return JournalState()
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
