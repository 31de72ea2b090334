"""Measures what semel adds on Spark: the same query, the same work, with and without the promise.

Always true: both sides do the same work on the same rows in the same session, interleaved; the
peer is `foreachBatch` as a careful person writes it, with Arrow batches, and at-least-once.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds, session
from benchmarks.rows import Comparison, compared
from benchmarks.writes import counted_writes
from semel.events import Given
from semel.runtime import SystemClock
from semel.sinks import sink
from semel.spark.deliver import deliver
from semel.spark.frames.repartition import arranged
from semel.verify.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from benchmarks.progress import BenchmarkProgress

ROWS = 1_000_000
BATCHES = 4
REPETITIONS = 5
LENGTH = Length(sides=10, run_s=9.0)
WINDOW = 50_000
PARTITIONS = 2
SETTINGS = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "1000"}


def work(batch: pa.RecordBatch) -> None:
    """A cheap destination: it looks at every row once."""
    pc.sum(pc.binary_length(batch.column("payload")))


@sink(batches=True, window=WINDOW, name="cheap")
def cheap(batch: pa.RecordBatch) -> None:
    """The same as a sink."""
    work(batch)


def plain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same as a task of the peer."""
    for batch in batches:
        work(batch)
    yield from ()


@dataclass
class SparkBenchmark:
    """One session in which both sides alternate."""

    spark: Any
    folder: Path
    say: BenchmarkProgress
    repetitions: int = REPETITIONS
    rows: int = ROWS
    batches: int = BATCHES
    _number: int = field(default=0, init=False)

    def source(self, rows: int) -> Any:
        """Payments in two source partitions, the same in every run."""
        made = (
            self.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", rows)
            .option("numPartitions", PARTITIONS)
            .load()
        )
        return made.selectExpr(
            "'payments' as topic",
            "cast(value % 2 as int) as partition",
            "cast(floor(value / 2) as bigint) as offset",
            "cast(value % 10000 as string) as customer",
            "value as payment_id",
            "concat('payment-', cast(value as string), repeat('x', 60)) as payload",
        )

    def semel(self, rows: int, **words: Any) -> float:
        """Median milliseconds of a micro-batch with semel."""
        ledger = f"sqlite:///{self.folder}/ledger-{self._number}.db"
        writer = deliver(self.source(rows), to=cheap, name="bench", ledger=ledger, **words)
        return self._run(writer)

    def peer(self, rows: int, arrange: Callable[[Any], Any]) -> float:
        """Median milliseconds of a micro-batch without it."""

        def batch(frame: Any, number: int) -> None:
            if (
                number < self.batches
            ):  # Spark does not bear to be stopped while Python runs an action
                arrange(frame).mapInArrow(plain, "nothing int").collect()

        return self._run(self.source(rows).writeStream.foreachBatch(batch))

    def _run(self, writer: Any) -> float:
        self._number += 1
        checkpoint = self.folder / f"checkpoint-{self._number}"
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            took = _durations(query, self.batches)
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        return statistics.median(took[1:])

    def pairs(
        self, what: str, ours: Callable[[], float], theirs: Callable[[], float]
    ) -> list[tuple[float, float]]:
        """Let both sides alternate; the first pair warms up and does not count."""
        sides = {"semel": ours, "a plain foreachBatch": theirs}
        found = rounds(self.say, what, self.repetitions, sides, "ms")
        return list(zip(*found.values(), strict=True))[1:]


def _durations(query: Any, batches: int) -> list[float]:
    """How long each of the first micro-batches took in Spark's own account, in milliseconds."""
    clock, ends = SystemClock(), perf_counter() + 300
    while perf_counter() < ends:
        progress = query.recentProgress
        if len(progress) >= batches:
            return [each["durationMs"]["addBatch"] for each in progress[:batches]]
        error = query.exception()
        if error is not None:
            raise error
        clock.sleep(0.05)
    raise TimeoutError(f"{batches} micro-batches took more than five minutes")


def measure(
    say: BenchmarkProgress,
    repetitions: int = REPETITIONS,
    rows: int = ROWS,
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    with folder() as place, session("overhead", SETTINGS) as spark:
        bench = SparkBenchmark(spark, place, say, repetitions, rows)
        return [*throughput(bench), *latency(bench), *writes(bench)]


def throughput(bench: SparkBenchmark) -> list[Comparison]:
    """Rows 1 and 2 of the goals, in rows per second."""
    ids = Given("customer", ("payment_id",))
    given = {"entity": "customer", "event": "payment_id", "partitions": PARTITIONS}
    rows = bench.rows
    cases: Sequence[tuple[str, dict[str, Any], Callable[[Any], Any]]] = [
        ("position, no shuffle", {"identity": "position"}, lambda frame: frame),
        (
            "entity buckets and order, increasing ids; peer sorts too",
            {**given, "increasing": True},
            lambda frame: arranged(frame, ids, PARTITIONS),
        ),
        (
            "entity buckets and order, any ids; peer sorts too",
            given,
            lambda frame: arranged(frame, ids, PARTITIONS),
        ),
        (
            "entity buckets and order, increasing ids; peer only shuffles",
            {**given, "increasing": True},
            lambda frame: frame.repartition(PARTITIONS, "customer"),
        ),
    ]
    made = []
    for what, words, arrange in cases:
        pairs = bench.pairs(
            what,
            lambda words=words: bench.semel(rows, **words),  # type: ignore[misc]
            lambda arrange=arrange: bench.peer(rows, arrange),  # type: ignore[misc]
        )
        made.append(compared(what, [(_rate(rows, a), _rate(rows, b)) for a, b in pairs], "rows/s"))
    return made


def latency(bench: SparkBenchmark) -> list[Comparison]:
    """What a micro-batch of ten rows gains, in milliseconds."""
    pairs = bench.pairs(
        "latency",
        lambda: bench.semel(10, identity="position"),
        lambda: bench.peer(10, lambda frame: frame),
    )
    return [compared("a micro-batch of 10 rows, position", pairs, "ms")]


def writes(bench: SparkBenchmark) -> list[Comparison]:
    """Count the commits that change the ledger, as PostgreSQL itself saw them."""
    bench.say("the ledger's commits are counted")
    server = PostgresServer(durable=False)
    try:
        url = server.url()
        with counted_writes(url) as count:
            writer = deliver(
                bench.source(1_000), to=cheap, name="writes", identity="position", ledger=url
            )
            checkpoint = bench.folder / "checkpoint-writes"
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            try:
                _durations(query, 12)
            finally:
                query.stop()
            total, batches = count()
    finally:
        server.close()
    per = total / batches
    promised = 2.0 + 2 * PARTITIONS  # open, complete; a window and its end for each partition
    what = f"ledger writes per micro-batch, {PARTITIONS} partitions of one window; peer: promised"
    return [Comparison(what, per, promised, per / promised, (per / promised,) * 2, "commits")]


def _rate(rows: int, milliseconds: float) -> float:
    return rows / (milliseconds / 1000)
