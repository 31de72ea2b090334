"""Deliver a log by position: topic, partition and offset are the identity, nothing is shuffled.

`python examples/positions.py [FOLDER]` delivers a small log with the columns of Kafka, deletes the
checkpoint, reads the log again and delivers only what is new. The log is a Python data source that
needs PySpark 4.2; a pipeline that reads Kafka does not need that version.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

import semel
from semel.spark import make_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class Meters(DataSource):
    """A log with two partitions; the option `length` says how many readings each of them has."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "meters"

    def schema(self) -> str:
        """Return the columns of Kafka's source that matter, and a value."""
        return "topic string, partition int, offset bigint, reading bigint"

    def streamReader(self, schema: Any) -> MetersReader:  # noqa: N802 - Spark's name
        """Return a reader for a stream."""
        del schema
        return MetersReader(int(self.options["length"]))


class MetersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Returns the whole log at once. Its offsets look like Kafka's: {topic: {partition: offset}}.

    With offsets of that form semel compares where Spark starts with where the ledger stands.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the log does not grow while it is read."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Start from the beginning."""
        return {"meters": {"0": 0, "1": 0}}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Read to the end."""
        del start, limit
        return {"meters": {"0": self.length, "1": self.length}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one task for each partition of the log."""
        begins, ends = start["meters"], end["meters"]
        return [InputPartition((each, begins[each], ends[each])) for each in sorted(ends)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int]]:
        """Return the readings of one range of offsets."""
        number, start, stop = partition.value
        for offset in range(start, stop):
            yield "meters", int(number), offset, 1000 * int(number) + offset


def run(spark: SparkSession, folder: Path, length: int) -> int:
    """Deliver the log; return how many readings the destination has."""
    destination = folder / "readings"
    destination.mkdir(exist_ok=True)

    @semel.sink(window=100, batches=True)  # an Arrow batch of up to 100 events per call
    def append(batch: Any) -> None:
        partition = batch.column("partition")[0].as_py()
        with (destination / f"{partition}.txt").open("a") as file:
            file.writelines(f"{reading}\n" for reading in batch.column("reading").to_pylist())

    readings = spark.readStream.format("meters").option("length", length).load()
    query = (
        semel.deliver(readings, to=append, name="readings", ledger=f"sqlite:///{folder}/ledger.db")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(len(file.read_text().splitlines()) for file in destination.iterdir())


def main(folder: Path) -> None:
    """Deliver, delete the checkpoint, deliver again."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    spark = make_session("positions")
    spark.dataSource.register(Meters)
    print(f"10 readings in each of 2 partitions: {run(spark, folder, 10)} delivered")
    shutil.rmtree(folder / "checkpoint")
    print(f"checkpoint lost, 15 in each by now: {run(spark, folder, 15)} delivered")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="semel-positions-")))
