"""The Spark session of semel's own commands and examples: small, local, with retries."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from semel.errors import MissingExtra
from semel.spark.sources import register
from semel.spark.versions import has_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.python.task.killTimeout": "0ms",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def make_session(
    name: str, *, master: str = "local[2,4]", settings: dict[str, str] | None = None
) -> SparkSession:
    """Start a session that has semel's sources. Workers run this Python; a task that fails is tried
    four times.

    Raises `MissingExtra` without pyspark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("PySpark is not installed: pip install 'semel[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if has_sources(spark):
        register(spark)
    return spark
