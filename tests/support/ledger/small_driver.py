"""A small driver without Spark: opens a minibatch, delivers its partitions, completes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from semel.delivery.assignment import Assignment
from semel.delivery.partition import PartitionDelivery
from semel.events import Attempt, Identity
from semel.ledger.journal import Journal
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.open import Minibatches, OpenMinibatch, OpenRequest
from semel.runtime import Runtime
from semel.sinks import Sink
from support.ledger.one_pipeline import ELSEWHERE, LedgerWorld


@dataclass
class SmallDriver:
    """One run of a pipeline. `journal` is what one worker process keeps between minibatches."""

    world: LedgerWorld
    identity: Identity
    sinks: Sequence[Sink]
    nonce: str = "n1"
    journal: Journal = field(init=False)
    run: int = field(init=False)
    minibatches: Minibatches = field(init=False)
    _task: int = 0

    def __post_init__(self) -> None:
        description = {
            "identity": self.identity.describe(),
            "sinks": {sink.name: sink.describe() for sink in self.sinks},
        }
        self.run = self.world.owners.register(description, ELSEWHERE, self.nonce)
        self.minibatches = Minibatches(self.world.client, self.run)
        self.journal = Journal(self.world.client)

    def open(self, batch: int, query: str = "q") -> OpenMinibatch:
        names = tuple(sink.name for sink in self.sinks)
        survives = self.identity.survives_lost_checkpoint
        return self.minibatches.open(
            OpenRequest(query, batch, names, survives_lost_checkpoint=survives)
        )

    def deliver(
        self, opening: OpenMinibatch, partition: str, batches: Sequence[pa.RecordBatch]
    ) -> list[Report]:
        """One attempt at one partition."""
        self._task += 1
        assignment = Assignment(
            self.world.pipeline,
            opening,
            self.identity,
            partition,
            Attempt(self.run, self._task),
            ELSEWHERE,
            task=0,
        )
        runtime = Runtime(self.world.clock, Random(1), lambda _: False)
        delivery = PartitionDelivery(
            assignment, self.sinks, self.world.client, self.journal, runtime
        )
        return delivery.run(batches)

    def complete(self, opening: OpenMinibatch, reports: Sequence[Report]) -> None:
        self.minibatches.complete(opening, reports, [sink.name for sink in self.sinks])

    def minibatch(self, batch: int, rows: Mapping[str, pa.RecordBatch]) -> list[Report]:
        """One whole minibatch."""
        opening = self.open(batch)
        reports = [
            each
            for partition, batched in rows.items()
            for each in self.deliver(opening, partition, [batched])
        ]
        self.complete(opening, reports)
        return reports


def payments(start: int, count: int, entities: int = 3) -> pa.RecordBatch:
    """Events with given, increasing ids."""
    ids = range(start, start + count)
    return pa.record_batch(
        {
            "c": pa.array([f"e{at % entities}" for at in ids]),
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([at * 1.5 for at in ids]),
        }
    )


def messages(start: int, count: int, topic: str = "t", partition: int = 0) -> pa.RecordBatch:
    """Events with a position."""
    return pa.record_batch(
        {
            "topic": pa.array([topic] * count),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(start, start + count), pa.int64()),
        }
    )
