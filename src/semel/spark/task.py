"""The task's part of a delivery: it delivers the batches of its partitions and yields one row.

Always true:
- nothing is yielded before everything is delivered or an error is final: Python outlives a stopped
  task that has yielded something;
- a fenced attempt fails its task, so that Spark never prefers its result;
- batches are read ahead in order, each once, so that Spark computes the next rows while a
  destination works; at most `AHEAD_BYTES` and one batch wait;
- an error of the input is raised before the batches read ahead of it, so that a stopped task ends
  soon; after the block ends nothing reads, because Spark reads on where it ended.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semel.delivery import Assignment, PartitionDelivery
from semel.errors import (
    ConfigurationError,
    Diverged,
    HeldInDoubt,
    SemelError,
    SinkBroken,
    StopRequested,
    plain_text,
)
from semel.events import Attempt, bucket_name
from semel.ledger import DamagedRow, Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.spark.checks import refuse_optimized
from semel.spark.failures import TEXT_MAX, kind_of, marked
from semel.spark.frames.repartition import BUCKET
from semel.urls import conceal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from semel.delivery import PipelineSpec
    from semel.ledger import OpenMinibatch, Report

SCHEMA = "outcome binary"
FINAL = (ConfigurationError, DamagedRow, Diverged, HeldInDoubt, SinkBroken, StopRequested)
"""The errors that another attempt cannot overcome. A task that returns one does not fail, so that
the other tasks of its action end by themselves.
"""


@dataclass(frozen=True)
class TaskOutcome:
    """The result of a task.

    Attributes:
        skipped: events of partitions without a report, because nothing in them was new.
        repeats: by sink, those among such events that were dropped as repeats.
        error: the error that stopped it, if another attempt cannot help.
    """

    reports: tuple[Report, ...] = ()
    skipped: int = 0
    error: SemelError | None = None
    repeats: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[TaskOutcome]) -> TaskOutcome:
        """Combine the outcomes of several tasks. Raises the first error among them; that the run is
        asked to stop comes last.
        """
        reports: list[Report] = []
        skipped = 0
        repeats: Counter[str] = Counter()
        stop: StopRequested | None = None
        for part in parts:
            if isinstance(part.error, StopRequested):
                stop = part.error
            elif part.error is not None:
                raise part.error
            reports += part.reports
            skipped += part.skipped
            repeats.update(part.repeats)
        if stop is not None:
            raise stop
        return cls(tuple(reports), skipped, repeats=dict(repeats))

    def dump(self) -> bytes:
        """Return it as bytes, for the driver."""
        return pickle.dumps(self)

    @classmethod
    def load(cls, text: bytes) -> TaskOutcome:
        """Read what `dump` returned."""
        outcome: TaskOutcome = pickle.loads(text)  # noqa: S301 - our own task made it
        return outcome


JOURNALS = 8
"""The number of runs that a worker process keeps open between its tasks."""

_journals: dict[tuple[str, str, str], tuple[LedgerClient, Journal]] = {}
"""The ledgers that this worker process has opened, and the state it has read for each run."""


@dataclass(frozen=True)
class Task:
    """Delivers the partitions of one Spark task in one minibatch. Runs on an executor.

    Everything it needs is in the closure: with Spark Connect a task knows neither its query nor its
    batch.

    Attributes:
        nonce: unique for a start, even if a ledger is recreated and the name is used again.
        names: the original column names, if the columns were renamed.
        token: unique for an action; the driver recognises errors of this task by it.
    """

    spec: PipelineSpec
    ledger: str
    nonce: str
    opening: OpenMinibatch
    waited: bool = False
    names: tuple[str, ...] | None = None
    token: str = field(default="", repr=False)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver, then yield the outcome. Raises errors that another attempt may overcome."""
        try:
            refuse_optimized()
            with reading_ahead(batches) as ahead:
                outcome = TaskOutcome.of(self.deliver(ahead))
        except FINAL as error:
            outcome = TaskOutcome(error=self._placed(error))
        except SemelError as error:
            made = marked(error, self.token)
            if made is error:
                raise
            raise made from None
        if outcome != TaskOutcome():
            yield pa.RecordBatch.from_pydict({"outcome": [outcome.dump()]})

    def _placed(self, error: SemelError) -> SemelError:
        """Put pipeline and minibatch before the message of an error that does not name them."""
        text = plain_text(conceal(str(error), self.spec.hidden), TEXT_MAX)
        if not text.startswith("pipeline ") and not isinstance(error, DamagedRow):
            place = f"pipeline {self.spec.name!r}, minibatch {self.opening.row.minibatch}"
            text = f"{place}: {text}"
        return kind_of(error)(text)

    def deliver(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TaskOutcome]:
        """Deliver the partitions of this task one after the other."""
        done: set[str] = set()
        for partition, pairs in groupby(self._partitions(batches), key=itemgetter(0)):
            if partition in done:
                raise ConfigurationError(
                    f"pipeline {self.spec.name!r}: rows of source partition {partition!r} "
                    "are mixed with rows of another. Deliver the source's own partitions: remove "
                    "repartition and union between the source and semel.deliver"
                )
            done.add(partition)
            delivery = self._delivery(partition)
            reports = delivery.run(batch for _, batch in pairs)
            yield TaskOutcome(tuple(reports), delivery.skipped, repeats=delivery.repeats)

    def _partitions(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Yield the batches with the names of their partitions."""
        identity, buckets = self.spec.identity, self.opening.row.partitions
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.names is not None:
                batch = batch.rename_columns(list(self.names))  # noqa: PLW2901 - the same batch
            if buckets is None:
                yield from identity.split(batch)
            else:
                ends = pc.min_max(batch.column(BUCKET)).as_py()
                if ends["min"] != ends["max"] or batch.schema.names[0] != BUCKET:
                    raise AssertionError("one task holds one bucket, which its first column names")
                yield bucket_name(ends["min"], buckets), batch.remove_column(0)

    def _delivery(self, partition: str) -> PartitionDelivery:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise AssertionError("a task has a context")
        client, journal = self._journal()
        assignment = Assignment(
            pipeline=self.spec.name,
            opening=self.opening,
            identity=self.spec.identity,
            partition=partition,
            attempt=Attempt(self.opening.row.run, context.taskAttemptId()),
            process=Process.here(),
            task=context.partitionId(),
            order=self.spec.order,
            accept_gap=self.spec.accept_gap,
            drop_repeats=self.spec.drop_repeats,
            known_as=self.spec.known_as,
            waited=self.waited,
        )
        return PartitionDelivery(
            assignment, self.spec.sinks, client, journal, audit=self.spec.audit
        )

    def _journal(self) -> tuple[LedgerClient, Journal]:
        """Return the ledger and the state read so far; both are opened once per run and process."""
        place = (self.ledger, self.spec.name, self.nonce)
        found = _journals.pop(place, None)
        if found is None:
            client = LedgerClient(
                open_store(self.ledger, create=False),
                self.spec.name,
                known_as=self.spec.known_as,
                hidden=self.spec.hidden,
            )
            found = (client, Journal(client))
        while len(_journals) >= JOURNALS:
            client, _ = _journals.pop(next(iter(_journals)))
            client.store.close()
        _journals[place] = found
        return found


AHEAD_BYTES = 16 << 20


@contextmanager
def reading_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Return the same batches, read by a separate thread until the block ends."""
    reader = _Reader(batches)
    reader.start()
    try:
        yield reader.taken()
    finally:
        reader.leave()


class _Reader(threading.Thread):
    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        super().__init__(name="semel reads ahead", daemon=True)
        self._batches = batches
        self._changed = threading.Condition()
        self._waiting: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._ended = self._left = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Read until the input ends or the block is left."""
        try:
            for batch in self._batches:
                if not self._put(batch):
                    break
        except BaseException as error:  # noqa: BLE001 - raised again in `taken`
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Add a batch, and wait until there is room for the next; False if the block was left."""
        with self._changed:
            self._waiting.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._bytes < AHEAD_BYTES)
            return not self._left

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that were read."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if self._error is not None:
                    raise self._error
                if not self._waiting:
                    return
                batch = self._waiting.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch

    def leave(self) -> None:
        """Stop after the batch that is being read."""
        with self._changed:
            self._left = True
            self._changed.notify_all()
        self.join()
