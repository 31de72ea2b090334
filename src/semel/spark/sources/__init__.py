"""The sources `semel.inbox` and `semel.kafka`: micro-batches that end at markers in the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.spark.versions import refuse_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("semel.inbox")` and `format("semel.kafka")` known to a session, also of Spark
    Connect. Raises `ConfigurationError` before Spark 4.0.
    """
    refuse_sources(spark)
    from semel.spark.sources.data_sources import SOURCES

    for source in SOURCES:
        spark.dataSource.register(source)
