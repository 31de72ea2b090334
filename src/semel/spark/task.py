"""The task's part: it takes the batches of a partition and yields one row at the very end.

Always true:
- nothing is yielded before everything was delivered or an error is final: what was yielded keeps
  Python alive after the task was stopped;
- an attempt that was fenced fails its task, so that Spark never prefers its result.
"""

from __future__ import annotations

import pickle
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
    plain_text,
)
from semel.events import Attempt, Position, bucket_name
from semel.ledger.damage import DamagedRow
from semel.ledger.journal import Journal
from semel.ledger.processes import Process
from semel.ledger.scribe import Scribe
from semel.ledger.stores import open_store
from semel.spark.ahead import reading_ahead
from semel.spark.failures import TEXT_MAX, kind_of, marked
from semel.spark.frames import BUCKET
from semel.spark.refusals import refuse_optimized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from semel.delivery import Agreement
    from semel.ledger.minibatches import Opening
    from semel.ledger.reports import Report

SCHEMA = "outcome binary"


@dataclass(frozen=True)
class Outcome:
    """What the partitions of a task came to.

    Attributes:
        skipped: events of partitions that have no report, because nothing in them was new.
        error: what stopped it, where no further attempt can mend that.
    """

    reports: tuple[Report, ...] = ()
    skipped: int = 0
    error: SemelError | None = None

    @classmethod
    def of(cls, parts: Iterable[Outcome]) -> Outcome:
        """Put the outcomes of several tasks together. Raises the first error among them."""
        reports: list[Report] = []
        skipped = 0
        for part in parts:
            if part.error is not None:
                raise part.error
            reports += part.reports
            skipped += part.skipped
        return cls(tuple(reports), skipped)

    def dump(self) -> bytes:
        """Give it as it travels to the driver."""
        return pickle.dumps(self)

    @classmethod
    def load(cls, text: bytes) -> Outcome:
        """Read it back."""
        outcome: Outcome = pickle.loads(text)  # noqa: S301 - our own task made it
        return outcome


JOURNALS = 8
"""How many runs a worker process remembers between its tasks."""

_journals: dict[tuple[str, str, str], tuple[Scribe, Journal]] = {}
"""The ledgers this worker process has opened, and the state it has read of each run."""


@dataclass(frozen=True)
class Task:
    """Delivers the partitions that Spark gives to one task of one minibatch. Runs on an executor.

    Everything it knows travels in the closure: under Spark Connect a task is told neither its query
    nor its batch. `nonce` tells the start it belongs to from every other, also under the same name
    in a ledger that was made anew. `names` are the columns' own, where they come under others.
    `token` is the action's own: by it the driver knows an error that this task raised.
    """

    agreement: Agreement
    ledger: str
    nonce: str
    opening: Opening
    waited: bool = False
    names: tuple[str, ...] | None = None
    token: str = field(default="", repr=False)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver, then yield the outcome. Raises what another attempt may mend."""
        try:
            refuse_optimized()
            with reading_ahead(batches) as ahead:
                outcome = Outcome.of(self.deliver(ahead))
        except (ConfigurationError, DamagedRow, Diverged, HeldInDoubt, SinkBroken) as error:
            outcome = Outcome(error=self._placed(error))
        except SemelError as error:
            made = marked(error, self.token)
            if made is error:
                raise
            raise made from None
        if outcome != Outcome():
            yield pa.RecordBatch.from_pydict({"outcome": [outcome.dump()]})

    def _placed(self, error: SemelError) -> SemelError:
        """Say of an error which pipeline and minibatch it is about, where it does not know."""
        text = plain_text(error, TEXT_MAX)
        if not text.startswith("pipeline ") and not isinstance(error, DamagedRow):
            place = f"pipeline {self.agreement.name!r}, minibatch {self.opening.row.minibatch}"
            text = f"{place}: {text}"
        return kind_of(error)(text)

    def deliver(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Outcome]:
        """Deliver every partition that comes, one after the other."""
        done: set[str] = set()
        for partition, pairs in groupby(self._partitions(batches), key=itemgetter(0)):
            if partition in done:
                raise ConfigurationError(
                    f"pipeline {self.agreement.name!r}: rows of source partition {partition!r} "
                    "came, then those of another, then more of it. Deliver the source's own "
                    "partitions: no repartition or union between the source and semel.deliver"
                )
            done.add(partition)
            delivery = self._delivery(partition)
            reports = delivery.run(batch for _, batch in pairs)
            yield Outcome(tuple(reports), delivery.skipped)

    def _partitions(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Give the batches with the names of their partitions."""
        identity, buckets = self.agreement.identity, self.opening.row.partitions
        for batch in batches:
            if not batch.num_rows:
                continue
            if self.names is not None:
                batch = batch.rename_columns(list(self.names))  # noqa: PLW2901 - the same batch
            if buckets is None:
                if not isinstance(identity, Position):
                    raise AssertionError("without buckets an event is its position")
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
        scribe, journal = self._journal()
        assignment = Assignment(
            pipeline=self.agreement.name,
            opening=self.opening,
            identity=self.agreement.identity,
            partition=partition,
            attempt=Attempt(self.opening.row.run, context.taskAttemptId()),
            process=Process.here(),
            task=context.partitionId(),
            order=self.agreement.order,
            accept_gap=self.agreement.accept_gap,
            waited=self.waited,
        )
        return PartitionDelivery(assignment, self.agreement.sinks, scribe, journal)

    def _journal(self) -> tuple[Scribe, Journal]:
        """Give the ledger and the state read so far, opened once for this run in this process."""
        place = (self.ledger, self.agreement.name, self.nonce)
        found = _journals.pop(place, None)
        if found is None:
            scribe = Scribe(open_store(self.ledger, create=False), self.agreement.name)
            found = (scribe, Journal(scribe))
        while len(_journals) >= JOURNALS:
            scribe, _ = _journals.pop(next(iter(_journals)))
            scribe.store.close()
        _journals[place] = found
        return found
