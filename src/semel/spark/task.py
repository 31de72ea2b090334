"""The task's part: it takes the batches of a partition and yields one row at the very end.

Always true:
- nothing is yielded before everything was delivered or an error is final: what was yielded keeps
  Python alive after the task was stopped;
- an attempt that was fenced fails its task, so that Spark never prefers its result.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semel.delivery import Assignment, PartitionDelivery
from semel.errors import ConfigurationError, Diverged, HeldInDoubt, SemelError
from semel.events import Attempt, Position, bucket_name
from semel.ledger.journal import Journal
from semel.ledger.processes import Process
from semel.ledger.scribe import Scribe
from semel.ledger.stores import open_store
from semel.spark.frames import BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from semel.delivery import Agreement
    from semel.ledger.minibatches import Opening
    from semel.ledger.reports import Report
    from semel.ledger.store import Store

SCHEMA = "outcome binary"

Outcome = list["Report"] | SemelError
"""What a task yields: its reports, or the error that no further attempt can mend."""

_stores: dict[str, Store] = {}
"""The ledgers this worker process has opened: it serves many tasks."""


@dataclass(frozen=True)
class Task:
    """Delivers the partitions that Spark gives to one task of one minibatch. Runs on an executor.

    Everything it knows travels in the closure: under Spark Connect a task is told neither its query
    nor its batch.
    """

    agreement: Agreement
    ledger: str
    opening: Opening
    waited: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver, then yield the outcome. Raises what another attempt may mend."""
        refuse_optimized()
        try:
            outcome: Outcome = self.deliver(batches)
        except (ConfigurationError, Diverged, HeldInDoubt) as error:
            outcome = error
        if outcome:
            yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})

    def deliver(self, batches: Iterator[pa.RecordBatch]) -> list[Report]:
        """Deliver every partition that comes, one after the other."""
        reports: list[Report] = []
        done: set[str] = set()
        for partition, pairs in groupby(self._partitions(batches), key=itemgetter(0)):
            if partition in done:
                raise ConfigurationError(
                    f"pipeline {self.agreement.name!r}: rows of source partition {partition!r} "
                    "came, then those of another, then more of it. Deliver the source's own "
                    "partitions: no repartition or union between the source and semel.deliver"
                )
            done.add(partition)
            reports += self._delivery(partition).run(batch for _, batch in pairs)
        return reports

    def _partitions(
        self, batches: Iterator[pa.RecordBatch]
    ) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Give the batches with the names of their partitions."""
        identity, buckets = self.agreement.identity, self.opening.row.partitions
        for batch in batches:
            if not batch.num_rows:
                continue
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
        scribe = Scribe(_store(self.ledger), self.agreement.name)
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
        return PartitionDelivery(assignment, self.agreement.sinks, scribe, Journal(scribe))


def outcomes(rows: Iterable[tuple[bytes]]) -> list[Report]:
    """Read what the tasks yielded. Raises the first error among them."""
    reports: list[Report] = []
    for (text,) in rows:
        outcome: Outcome = pickle.loads(text)  # noqa: S301 - our own task made it
        if isinstance(outcome, SemelError):
            raise outcome
        reports += outcome
    return reports


def refuse_optimized() -> None:
    """Assertions state the design: without them nobody would notice that it does not hold."""
    if sys.flags.optimize:
        raise ConfigurationError(
            "Python runs with -O (PYTHONOPTIMIZE), which removes the checks that semel's promise "
            "rests on: start the driver and the executors without it"
        )


def _store(url: str) -> Store:
    """The ledger at `url`, opened once in this process."""
    if url not in _stores:
        _stores[url] = open_store(url)
    return _stores[url]
