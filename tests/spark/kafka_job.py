"""A driver script whose sink is Kafka: `python -m spark.kafka_job SETTINGS...` runs them in turn.

With the source `kafka` the input is a topic of the same broker, through Spark's own connector.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from semel.spark.deliver import deliver
from spark import job
from spark.kafka_destination import kafka_sink
from spark.rounds import main
from spark.settings import Settings


def in_turn(spark: SparkSession, every: list[Settings]) -> None:
    for settings in every:
        job.say(f"begin {settings.name}")
        writer(settings, source(settings, spark)).start().awaitTermination()
        job.say(f"end {settings.name}")


def source(settings: Settings, spark: SparkSession) -> DataFrame:
    if settings.source != "kafka":
        return job.source(settings, spark)
    reader = spark.readStream.format("kafka").option("subscribe", settings.input)
    reader = reader.option("kafka.bootstrap.servers", settings.sink_settings["servers"])
    reader = reader.option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", settings.max_files)
    return reader.load().select("topic", "partition", "offset", "key", "value")


def writer(settings: Settings, frame: DataFrame) -> Any:
    made = deliver(
        frame,
        to=kafka_sink(settings.house, **settings.sink_settings),
        name=settings.name,
        ledger=settings.ledger,
        **settings.identity,
        **settings.words,
    )
    job.around(settings, made)
    return made.option("checkpointLocation", settings.checkpoint).trigger(availableNow=True)


if __name__ == "__main__":
    main(in_turn)
