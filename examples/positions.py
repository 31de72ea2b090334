"""Deliver a log by position: topic, partition and offset are the identity, nothing is shuffled.

`python examples/positions.py [FOLDER]` reads a small log of Kafka's shape, delivers it, throws the
checkpoint away, reads all of it again and delivers only what is new. The log is a source written in
Python, with what PySpark has for it since 4.2; Kafka's own positions need no such version.
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
from semel.spark.session import make_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class Meters(DataSource):
    """A log with two partitions; the option `length` says how many readings each of them has."""

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "meters"

    def schema(self) -> str:
        """The columns of Kafka's source that matter, and a value."""
        return "topic string, partition int, offset bigint, reading bigint"

    def streamReader(self, schema: Any) -> MetersReader:  # noqa: N802 - Spark's name
        """Read it as a stream."""
        del schema
        return MetersReader(int(self.options["length"]))


class MetersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives everything that there is at once. Its offsets look as Kafka's do: {topic: {partition}}.

    With offsets of that shape semel compares where Spark begins with where the ledger stands.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Nothing moves meanwhile."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """From the beginning."""
        return {"meters": {"0": 0, "1": 0}}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """To the end."""
        del start, limit
        return {"meters": {"0": self.length, "1": self.length}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task for each partition of the log."""
        begins, ends = start["meters"], end["meters"]
        return [InputPartition((each, begins[each], ends[each])) for each in sorted(ends)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int]]:
        """Give the readings of one stretch."""
        number, start, stop = partition.value
        for offset in range(start, stop):
            yield "meters", int(number), offset, 1000 * int(number) + offset


def run(spark: SparkSession, folder: Path, length: int) -> int:
    """Deliver the log; give how many readings the destination has by now."""
    destination = folder / "readings"
    destination.mkdir(exist_ok=True)

    @semel.sink(window=100, batches=True)  # an Arrow batch of up to 100 events at a call
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
    """Deliver, lose the checkpoint, deliver again."""
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
