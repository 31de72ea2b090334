"""A driver script whose sink is Kafka; arguments: SETTINGS..., which it runs one after the other.

With the source `kafka` the input is a topic of the same broker, through Spark's own connector.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from support.spark import query_job
from support.spark.kafka_sink import kafka_sink
from support.spark.sequential_job import main
from support.spark.settings import Settings


def in_turn(spark: SparkSession, every: list[Settings]) -> None:
    for settings in every:
        query_job.say(f"begin {settings.name}")
        sink = kafka_sink(settings.house, **settings.sink_settings)
        frame = source(settings, spark)
        query_job.delivering(settings, frame, [sink]).start().awaitTermination()
        query_job.say(f"end {settings.name}")


def source(settings: Settings, spark: SparkSession) -> DataFrame:
    if settings.source != "kafka":
        return query_job.source(settings, spark)
    reader = spark.readStream.format("kafka").option("subscribe", settings.input)
    reader = reader.option("kafka.bootstrap.servers", settings.sink_settings["servers"])
    reader = reader.option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", settings.max_files)
    return reader.load().select("topic", "partition", "offset", "key", "value")


if __name__ == "__main__":
    main(in_turn)
