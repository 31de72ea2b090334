"""Clicks from Kafka in micro-batches that end at markers, each counted once.

`python examples/kafka_markers.py HOST:PORT [FOLDER]` reads a topic with `semel.kafka`, adds
partitions to it, deletes the checkpoint and reads it all again; each click is counted once.
A broker to try it with: `docker run -d -p 9092:9092 apache/kafka:4.0.0`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

import semel
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Count:
    """Writes a line for each click, with the marker that ends its micro-batch."""

    __name__ = "count"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clicks.jsonl"

    def __call__(self, event: semel.Event) -> None:
        """Count one click."""
        click = {"page": event.value["key"].decode(), "marker": event.value["marker"]}
        with self.file.open("a") as clicks:
            clicks.write(json.dumps(click) + "\n")

    def lines(self) -> list[dict[str, object]]:
        """Return what was counted."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def run(spark: SparkSession, folder: Path, servers: str, topic: str) -> None:
    """Count what has arrived, at most 10 clicks in a micro-batch."""
    clicks = (
        spark.readStream.format("semel.kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 10)
        .load()
    )
    query = (
        semel.deliver(
            clicks.select("topic", "partition", "offset", "key", "marker"),
            to=Count(folder),
            name="clicks",
            identity="position",
            ledger=f"sqlite:///{folder}/ledger.db",
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def send(servers: str, topic: str, clicks: int) -> None:
    """Produce clicks on three pages."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(clicks):
        producer.produce(topic, b"click", b"page-%d" % (number % 3))
    producer.flush(30)


def main(servers: str, folder: Path) -> None:
    """Read a topic to its end three times: as it is, with more partitions, and from the start."""
    topic = f"clicks-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    spark = make_session("clicks")
    count = Count(folder)
    send(servers, topic, 30)
    run(spark, folder, servers, topic)
    markers = Counter(line["marker"] for line in count.lines())
    print(f"{len(count.lines())} clicks, markers: {dict(markers)}")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    send(servers, topic, 30)
    run(spark, folder, servers, topic)
    print(f"two partitions added: {len(count.lines())} clicks")
    shutil.rmtree(folder / "checkpoint")
    run(spark, folder, servers, topic)
    pages = Counter(line["page"] for line in count.lines())
    print(f"checkpoint lost, read again: {dict(sorted(pages.items()))}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/kafka_markers.py HOST:PORT [FOLDER]")
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()))
