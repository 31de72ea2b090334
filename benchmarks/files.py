"""Measures part files against Spark's own Parquet sink: same rows, same session, interleaved.

Always true: both sides write snappy-compressed Parquet of the same columns to the same disk, and
both leave a list of what is committed: Spark its metadata log, semel its manifests.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from benchmarks.overhead import PARTITIONS, SETTINGS, SparkBenchmark
from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds, session
from benchmarks.rows import Comparison, compared
from semel.sinks.files import Files, committed
from semel.spark.deliver import deliver

if TYPE_CHECKING:
    from benchmarks.progress import BenchmarkProgress

ROWS = 500_000
REPETITIONS = 3
LENGTH = Length(sides=5, run_s=10.0)
BATCHES = 3
GIVEN = {
    "entity": "customer",
    "event": "payment_id",
    "increasing": True,
    "partitions": PARTITIONS,
}


class FilesBenchmark(SparkBenchmark):
    """One session in which part files and Spark's own alternate."""

    def part_files(self, rows: int, **words: Any) -> float:
        """Median milliseconds of a micro-batch with semel."""
        out = self.folder / f"semel-{self._number}"
        ledger = f"sqlite:///{self.folder}/ledger-{self._number}.db"
        sink = Files(url=str(out))
        writer = deliver(self.source(rows), to=sink, name="bench", ledger=ledger, **words)
        took = self._run(writer)
        found = {manifest.rows for manifest in committed(f"{out}/bench/files")}
        if found != {rows}:
            raise AssertionError(f"manifests name {found} rows, and a micro-batch has {rows}")
        shutil.rmtree(out, ignore_errors=True)  # a task of the next micro-batch may still write
        return took

    def spark_files(self, rows: int) -> float:
        """Median milliseconds of a micro-batch of Spark's own sink."""
        out = self.folder / f"spark-{self._number}"
        took = self._run(self.source(rows).writeStream.format("parquet").option("path", str(out)))
        shutil.rmtree(out, ignore_errors=True)  # a task of the next micro-batch may still write
        return took


def measure(
    say: BenchmarkProgress,
    repetitions: int = REPETITIONS,
    rows: int = ROWS,
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    say("starting Spark")
    with folder() as place, session("files", SETTINGS) as spark:
        bench = FilesBenchmark(spark, place, say, repetitions, rows, BATCHES)
        return [*throughput(bench), *latency(bench)]


def throughput(bench: FilesBenchmark) -> list[Comparison]:
    """Rows per second, with position identity, and in the order of entities."""
    rows = bench.rows
    found = rounds(
        bench.say,
        "Parquet",
        bench.repetitions,
        {
            "position": lambda: bench.part_files(rows, identity="position"),
            "entities": lambda: bench.part_files(rows, **GIVEN),
            "Spark": lambda: bench.spark_files(rows),
        },
        "ms",
    )
    named = {
        "position": "Parquet, position, no shuffle; peer: Spark's Parquet sink",
        "entities": "Parquet, entity buckets and order; peer: Spark's Parquet sink, no order",
    }
    return [
        compared(
            what,
            [(rows * 1000 / a, rows * 1000 / b) for a, b in _pairs(found[name], found["Spark"])],
            "rows/s",
        )
        for name, what in named.items()
    ]


def latency(bench: FilesBenchmark) -> list[Comparison]:
    """What a small micro-batch takes, in milliseconds."""
    found = rounds(
        bench.say,
        "a small micro-batch",
        bench.repetitions,
        {
            "semel": lambda: bench.part_files(10, identity="position"),
            "Spark": lambda: bench.spark_files(10),
        },
        "ms",
    )
    what = "a micro-batch of 10 rows as Parquet, position; peer: Spark's Parquet sink"
    return [compared(what, _pairs(found["semel"], found["Spark"]), "ms")]


def _pairs(ours: list[float], theirs: list[float]) -> list[tuple[float, float]]:
    """Those that count: round 0 warmed up."""
    return list(zip(ours, theirs, strict=True))[1:]
