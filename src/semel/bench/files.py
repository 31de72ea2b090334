"""Measures part files against Spark's own Parquet sink: the same rows, the same session, in turns.

Always true: both sides write snappy-compressed Parquet of the same columns to the same disk, and
both leave a list of what is committed: Spark its metadata log, semel its manifests.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.bench.overhead import PARTITIONS, REPETITIONS, ROWS, SETTINGS, Bench
from semel.bench.rows import Row, compared
from semel.sinks.files import Files, committed
from semel.spark.deliver import deliver
from semel.spark.session import make_session

if TYPE_CHECKING:
    from collections.abc import Callable

GIVEN = {
    "entity": "customer",
    "event": "payment_id",
    "increasing": True,
    "partitions": PARTITIONS,
}


class FilesBench(Bench):
    """One session in which part files and Spark's own take turns."""

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
    say: Callable[[str], None] = lambda _: None,
    repetitions: int = REPETITIONS,
    rows: int = ROWS,
) -> list[Row]:
    """Run everything; give the rows of the table."""
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    spark = make_session("semel bench files", settings=SETTINGS)
    try:
        bench = FilesBench(spark, folder, say, repetitions, rows)
        cases: dict[str, dict[str, Any]] = {
            "Parquet, position, no shuffle; peer: Spark's Parquet sink": {"identity": "position"},
            "Parquet, entity buckets and order; peer: Spark's Parquet sink, no order": GIVEN,
        }
        made = []
        for what, words in cases.items():
            pairs = bench.pairs(
                what,
                lambda words=words: bench.part_files(rows, **words),  # type: ignore[misc]
                lambda: bench.spark_files(rows),
            )
            rates = [(rows * 1000 / ours, rows * 1000 / theirs) for ours, theirs in pairs]
            made.append(compared(what, rates, "rows/s"))
        small = bench.pairs(
            "latency",
            lambda: bench.part_files(10, identity="position"),
            lambda: bench.spark_files(10),
        )
        return [*made, compared("a micro-batch of 10 rows as Parquet, position", small, "ms")]
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
