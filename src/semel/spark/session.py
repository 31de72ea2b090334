"""The Spark session of semel's own commands and examples: small, local, with retries."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from semel.errors import MissingExtra

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


MASTER = "local[2,4]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it for the Python that it starts."""


def make_session(
    name: str, *, master: str = MASTER, settings: dict[str, str] | None = None
) -> SparkSession:
    """Start a session. Workers run this Python; a task that fails is tried four times.

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
    return spark


def pipeline_session(
    name: str, *, master: str | None, settings: dict[str, str], log_level: str
) -> SparkSession:
    """Return the session of a pipeline file: that of spark-submit, otherwise one of its own.

    What the command line of spark-submit says goes before `settings`, and `master` is its own.
    """
    if os.environ.get(SUBMITTED) is None:
        spark = make_session(name, master=master or MASTER, settings=settings)
    else:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        known = SparkConf()
        builder = SparkSession.builder
        if not known.contains("spark.app.name"):
            builder = builder.appName(name)
        for key, value in settings.items():
            if not known.contains(key):
                builder = builder.config(key, value)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    return spark
