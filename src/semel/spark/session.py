"""The Spark session of semel's own commands and examples: small, local, with retries."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, MissingExtra
from semel.spark.progress import CHANGELOG, PROVIDER, ROCKSDB

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
STATES = {
    "changelog": {PROVIDER: ROCKSDB, CHANGELOG: "true"},
    "snapshots": {PROVIDER: ROCKSDB, CHANGELOG: "false"},
}
"""The Spark settings for each way to keep the state of a query."""


def make_session(
    name: str,
    *,
    master: str = "local[2,4]",
    settings: dict[str, str] | None = None,
    state: str = "changelog",
) -> SparkSession:
    """Start a session. Workers run this Python; a task that fails is tried four times.

    The state of queries is kept in RocksDB. With `state="changelog"` a micro-batch writes what
    changed, and Spark adds full snapshots in the background; with `state="snapshots"` each
    micro-batch writes a full snapshot. `settings` come last. Raises `MissingExtra` without pyspark.
    """
    if state not in STATES:
        raise ConfigurationError(f"state must be 'changelog' or 'snapshots', got {state!r}")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("PySpark is not installed: pip install 'semel[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **STATES[state], **(settings or {})}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
