"""Measures the ledger's size, and what a minibatch costs against what it grows with, without Spark.

Always true:
- everything goes through the real driver and partition deliveries, on an SQLite ledger; the sink
  looks at no row, so the time is semel's own;
- costs are seconds of a core (of this process), which other work on the machine changes little;
- every minibatch has to report all of its events, or the benchmark ends.
"""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.rounds import folder
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.errors import OutcomeUnknown
from semel.events import Attempt, Counter, Given, Position, bucket, sort
from semel.ledger import TABLES, Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.sinks import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.progress import BenchmarkProgress
    from semel.events import Identity

ENTITIES = 10_000
EVENTS = 10_000_000
MINIBATCH = 250_000
PARTITIONS = 4
WINDOW = 10_000
WEIGHED = 40
"""How often a long run is weighed."""
GIVEN = Given(entity="customer", event=("id",), increasing=True)
IDENTITIES: tuple[Identity, ...] = (Position(), GIVEN, Counter(entity="customer"))
LENGTH = None
SIZE, CURVE = "size: ", "curve: "

Rows = list[dict[str, Any]]


def measure(say: BenchmarkProgress, repetitions: int, events: int = EVENTS) -> dict[str, Rows]:
    """Run everything; return the rows of each table by its title. A point of a curve is the median
    of `repetitions` measurements.
    """
    found: dict[str, Rows] = {}
    curves: dict[str, Callable[[Path, int], Rows]] = {
        "events of a minibatch": by_events,
        "entities": by_entities,
        "partitions": by_partitions,
        "parked events": by_parked,
        "age of the ledger": by_age,
    }
    with folder() as place:
        title = f"{SIZE}{events:,} events of {ENTITIES:,} entities"
        found[title] = []
        for identity in IDENTITIES:
            say(f"{title}, {identity.kind} identity")
            found[title].append(size(place, identity, events))
            say(_said(found[title][-1]))
        for name, curve in curves.items():
            say(f"{CURVE}{name}")
            found[CURVE + name] = curve(place, repetitions)
            for row in found[CURVE + name]:
                say(_said(row))
    return found


def _said(row: dict[str, Any]) -> str:
    """A row as it is shown while the others are still measured."""
    cells = (
        f"{name} {each:,.4g}" if isinstance(each, float) else f"{each}"
        for name, each in row.items()
        if name != "x"
    )
    return ", ".join(cells)


# -- the pipeline that is measured


@dataclass
class MeasuredPipeline:
    """One pipeline in a ledger of its own, whose minibatches run one after the other."""

    place: Path
    name: str
    identity: Identity
    partitions: int = PARTITIONS
    window: int = WINDOW
    number: int = 0
    lost: bool = False
    unanswered: int = 0
    _rows: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file = self.place / f"{self.name}.db"
        self.store = open_store(f"sqlite:///{self.file}")
        self.client, self.process = LedgerClient(self.store, self.name), Process.here()
        self.journal = Journal(self.client)
        self.sink = Function(
            name="sink",
            function=self._call,
            window=self.window,
            batches=True,
            park_limit=10_000_000,
        )
        spread = None if self.identity.uses_source_partitions else self.partitions
        self.driver = Driver(
            self.client, [self.sink], self.identity, self.process, self.name, partitions=spread
        )
        self.driver.start()

    def _call(self, batch: pa.RecordBatch) -> None:
        """Take every row, or lose the answer."""
        if self.lost:
            self.unanswered += len(batch)
            raise OutcomeUnknown("the answer is lost")

    def run(self, events: int, entities: int = ENTITIES, first: int = 0) -> None:
        """Run the next minibatch, with entities from the number `first` on."""
        opening = self.driver.begin("query", self.number)
        reports = []
        for part in range(self.partitions):
            batch = self._batch(part, events, entities, first)
            if not len(batch):
                continue
            attempt = Attempt(self.driver.run, self.number * self.partitions + part + 1)
            by_source = self.identity.uses_source_partitions
            name = f"payments/{part}" if by_source else str(part)
            assignment = Assignment(
                self.name, opening, self.identity, name, attempt, self.process, part
            )
            delivery = PartitionDelivery(assignment, [self.sink], self.client, self.journal)
            reports += delivery.run([batch])
        self.driver.end(opening, reports)
        self.number += 1
        done = sum(report.delivered + report.parked for report in reports)
        if done != sum(report.count for report in reports) or done < events - self.partitions:
            raise AssertionError(f"{events} events were to be delivered, {done} were")

    def cost(self, events: int, minibatches: int, **rows: int) -> dict[str, float]:
        """Run minibatches and return what one costs: of a core, of the clock, in commits."""
        commits = self.client.used.figures.commits
        began, used = time.perf_counter(), time.process_time()
        for _ in range(minibatches):
            self.run(events, **rows)
        used, took = time.process_time() - used, time.perf_counter() - began
        return {
            "CPU ms a minibatch": 1e3 * used / minibatches,
            "CPU ns an event": 1e9 * used / minibatches / events,
            "ms a minibatch": 1e3 * took / minibatches,
            "commits a minibatch": (self.client.used.figures.commits - commits) / minibatches,
        }

    def megabytes(self) -> float:
        """Weigh the ledger: keys and payloads of every table."""
        found = (row for table in TABLES for row in self.store.scan(table, ""))
        return sum(len(key.key) + len(payload) for key, payload in found) / 1e6

    # -- rows: their entities and amounts are made once, their ids go on where they were

    def _batch(self, part: int, events: int, entities: int, first: int) -> pa.RecordBatch:
        if self.identity.uses_source_partitions:
            return self._by_position(part, events // self.partitions)
        key = (events, entities + first)
        if key not in self._rows:
            self._rows[key] = self._by_entity(events, entities, first)
        made = self._rows[key][part]
        ids = pa.array(made["rank"] + self.number * (events // entities + 1))
        return pa.RecordBatch.from_pydict(
            {"customer": made["customer"], "id": ids, "amount": made["amount"]}
        )

    def _by_position(self, part: int, count: int) -> pa.RecordBatch:
        key = (count, -1)
        if key not in self._rows:
            self._rows[key] = [
                {
                    "topic": pa.array(["payments"] * count),
                    "amount": pa.array(np.arange(count) * 0.5),
                }
            ]
        [made] = self._rows[key]
        start = self.number * count
        return pa.RecordBatch.from_pydict(
            {
                "topic": made["topic"],
                "partition": pa.array(np.full(count, part, np.int32)),
                "offset": pa.array(np.arange(start, start + count)),
                "amount": made["amount"],
            }
        )

    def _by_entity(self, events: int, entities: int, first: int) -> list[dict[str, Any]]:
        numbers = np.arange(events)
        customers = numbers % entities
        texts = pa.array([f"customer-{first + at}" for at in range(entities)])
        names = texts.take(pa.array(customers))
        buckets = bucket(names, self.partitions)
        made = []
        for part in range(self.partitions):
            chosen = buckets == part
            batch = pa.RecordBatch.from_pydict(
                {
                    "customer": names.filter(pa.array(chosen)),
                    "id": pa.array((numbers // entities)[chosen]),
                    "amount": pa.array(numbers[chosen] * 0.5),
                }
            )
            batch = sort(batch, self.identity)
            made.append(
                {
                    "customer": batch.column("customer"),
                    "rank": batch.column("id").to_numpy(),
                    "amount": batch.column("amount"),
                }
            )
        return made


@contextmanager
def pipeline(
    place: Path,
    name: str,
    identity: Identity,
    partitions: int = PARTITIONS,
    window: int = WINDOW,
) -> Iterator[MeasuredPipeline]:
    """A pipeline whose ledger is closed and removed afterwards."""
    made = MeasuredPipeline(place, name, identity, partitions, window)
    try:
        yield made
    finally:
        made.store.close()
        for file in place.glob(f"{name}.db*"):
            file.unlink()


# -- size


def size(place: Path, identity: Identity, events: int) -> dict[str, Any]:
    """Deliver so many events, and weigh the ledger while it goes on."""
    minibatches = max(WEIGHED, events // MINIBATCH)
    each = events // minibatches
    weights = []
    with pipeline(place, f"size-{identity.kind}", identity) as measured:
        began, used = time.perf_counter(), 0.0
        for number in range(1, minibatches + 1):
            before = time.process_time()
            measured.run(each)
            used += time.process_time() - before
            if number % (minibatches // WEIGHED) == 0:
                weights.append(measured.megabytes())
        took = time.perf_counter() - began
        commits = measured.client.used.figures.commits
        kept = sum(file.stat().st_size for file in place.glob(f"{measured.name}.db*"))
    return {
        "what": f"{identity.kind} identity",
        "events": each * minibatches,
        "minibatches": minibatches,
        "commits": commits,
        "s": took,
        "CPU ns an event": 1e9 * used / each / minibatches,
        "MB at a tenth": weights[len(weights) // 10],
        "MB at half": weights[len(weights) // 2],
        "MB at most": max(weights),
        "MB at the end": weights[-1],
        "MB of its files": kept / 1e6,
    }


# -- curves


def _median(points: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in points) for name in points[0]}


def _point(
    measured: MeasuredPipeline, repetitions: int, events: int, minibatches: int, **rows: int
) -> dict[str, float]:
    """Measure one point of a curve, after a minibatch that warms it up."""
    measured.run(events, **rows)
    return _median([measured.cost(events, minibatches, **rows) for _ in range(repetitions)])


def by_events(place: Path, repetitions: int) -> Rows:
    """What a minibatch costs against its events, of as many entities at most, in one partition."""
    rows = []
    for events in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        minibatches = max(1, min(50, 200_000 // events))
        with pipeline(place, f"events-{events}", GIVEN, partitions=1, window=100_000) as measured:
            entities = min(events, ENTITIES)
            point = _point(measured, repetitions, events, minibatches, entities=entities)
            rows.append({"what": f"{events:,}", "x": events, **point})
    return rows


def by_entities(place: Path, repetitions: int) -> Rows:
    """What an event costs against the entities that the events of a minibatch belong to."""
    rows = []
    for entities in (1, 100, 10_000, 100_000, 250_000):
        with pipeline(place, f"entities-{entities}", GIVEN) as measured:
            point = _point(measured, repetitions, MINIBATCH, 2, entities=entities)
            weight = {"ledger MB": measured.megabytes()}
            rows.append({"what": f"{entities:,}", "x": entities, **point, **weight})
    return rows


def by_partitions(place: Path, repetitions: int) -> Rows:
    """What a minibatch of 100,000 events costs against the partitions that it is spread over."""
    rows = []
    for partitions in (1, 4, 16, 64, 256):
        name = f"partitions-{partitions}"
        with pipeline(place, name, GIVEN, partitions=partitions, window=100_000) as measured:
            point = _point(measured, repetitions, 100_000, 2)
            rows.append({"what": f"{partitions:,}", "x": partitions, **point})
    return rows


def by_parked(place: Path, repetitions: int) -> Rows:
    """What a minibatch of 10,000 events costs while others, each of its own entity, are parked."""
    rows = []
    for parked in (0, 100, 1_000, 10_000):
        with pipeline(place, f"parked-{parked}", GIVEN, window=25_000) as measured:
            if parked:
                measured.lost = True
                measured.run(parked, entities=parked, first=ENTITIES)
                measured.lost = False
                if measured.unanswered != parked:
                    raise AssertionError(f"{parked} were to be parked, {measured.unanswered} were")
            point = _point(measured, repetitions, 10_000, 3)
            weight = {"ledger MB": measured.megabytes()}
            rows.append({"what": f"{parked:,}", "x": parked, **point, **weight})
    return rows


def by_age(place: Path, repetitions: int) -> Rows:
    """What a minibatch of 1,000 events costs against how many the ledger has seen, and its size."""
    rows = []
    with pipeline(place, "age", GIVEN) as measured:
        for age in (10, 100, 1_000, 3_000):
            while measured.number < age - 5 * repetitions:
                measured.run(1_000)
            point = _median([measured.cost(1_000, 5) for _ in range(repetitions)])
            weight = {"ledger MB": measured.megabytes()}
            rows.append({"what": f"{age:,} minibatches", "x": age, **point, **weight})
    return rows
