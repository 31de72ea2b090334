"""A driver script about Spark's Kafka source: `python -m support.spark.kafka_sources_job SETTINGS`.

It says what is refused before anything is read, then lets a topic come in a run's last micro-batch
and creates it again.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from semel.errors import ConfigurationError
from semel.spark.deliver import deliver, deliver_batch
from support.spark.query_job import say, session
from support.spark.settings import Settings

COLUMNS = ("topic", "partition", "offset", "value")
V1_SOURCES = "spark.sql.sources.useV1SourceList"
"""Whose sources a batch reads by the older of Spark's two interfaces; Kafka is among them."""


def main() -> None:
    settings = Settings.load(Path(sys.argv[1]))
    spark = session(settings)
    refusals(spark, settings)
    second = f"{settings.input}-second"
    produce(settings, settings.input, 3)
    run(spark, settings)
    create(settings, second)
    produce(settings, second, 5)
    run(spark, settings)  # the second topic comes in the only micro-batch of this run
    recreate(settings, second)
    produce(settings, second, 2)
    shutil.rmtree(settings.checkpoint)
    try:
        run(spark, settings)
    except Exception as error:
        say(f"stopped: {error}")
    say("finished")


def refusals(spark: SparkSession, settings: Settings) -> None:
    reading = frame(spark, settings)
    spread = frame(spark, settings, minPartitions="4")
    spread.createOrReplaceTempView("spread")
    frames: dict[str, DataFrame] = {
        "minPartitions": spread,
        "maxRecordsPerPartition": frame(spark, settings, MaxRecordsPerPartition="100"),
        "behind a view": spark.sql("select * from spread where offset > 7"),
        "two sources": reading.union(frame(spark, settings)),
        "twice": reading.where("offset > 7").union(reading.where("offset <= 7")),
    }
    for case, each in frames.items():
        refused(case, lambda each=each: deliver(each, identity="position", **words(settings)))
    batch = spark.read.format("kafka").options(**options(settings), minPartitions="4").load()
    asked = {"identity": "position", "batch": "b", **words(settings)}
    refused("a batch", lambda: deliver_batch(batch.select(*COLUMNS), **asked))
    spark.conf.set(V1_SOURCES, "")
    other = spark.read.format("kafka").options(**options(settings), minPartitions="4").load()
    spark.conf.unset(V1_SOURCES)
    refused("a batch by V2", lambda: deliver_batch(other.select(*COLUMNS), **asked))
    named: Any = {"identity": "given", "entity": "topic", "event": "offset"}
    deliver(spread, **named, **words(settings))
    say("given ids may be spread")


def refused(case: str, act: Any) -> None:
    try:
        act()
    except ConfigurationError as error:
        say(f"refused {case}: {error}")


def options(settings: Settings) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": settings.sink_settings["servers"],
        "subscribePattern": f"{settings.input}.*",
        "kafka.metadata.max.age.ms": "100",
        "startingOffsets": "earliest",
    }


def frame(spark: SparkSession, settings: Settings, **more: str) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**options(settings), **more)
    return reader.load().select(*COLUMNS)


def words(settings: Settings) -> dict[str, Any]:
    return {
        "to": Noted(settings.sink_settings["notes"]),
        "name": "sources",
        "ledger": settings.ledger,
    }


def run(spark: SparkSession, settings: Settings) -> None:
    writer = deliver(frame(spark, settings), identity="position", **words(settings))
    writer = writer.option("checkpointLocation", settings.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    say(f"delivered {len(Path(settings.sink_settings['notes']).read_text().splitlines())}")


class Noted:
    """A function that writes down each event it was called with."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.__name__ = "noted"

    def __call__(self, event: Any) -> None:
        with Path(self.path).open("a") as notes:
            notes.write(f"{event.value['topic']}/{event.value['offset']}\n")


def admin(settings: Settings) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": settings.sink_settings["servers"]})


def create(settings: Settings, topic: str) -> None:
    from confluent_kafka.cimpl import NewTopic

    client = admin(settings)  # it has to live until the answer is there
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def recreate(settings: Settings, topic: str) -> None:
    client = admin(settings)
    client.delete_topics([topic])[topic].result(30)
    for left in reversed(range(100)):
        try:
            create(settings, topic)
        except Exception:  # the old one is not gone yet
            if not left:
                raise
            time.sleep(0.1)
        else:
            return


def produce(settings: Settings, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": settings.sink_settings["servers"]})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(30) == 0


if __name__ == "__main__":
    main()
