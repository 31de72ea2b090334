"""The Spark session of semel's own commands and examples: small, local, with retries.

It keeps the state of queries in RocksDB; what other sessions have is for `semel doctor`.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, MissingExtra
from semel.spark.progress import CHANGELOG, PROVIDER, ROCKSDB
from semel.spark.sources import register
from semel.spark.versions import has_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["CHANGELOG", "PROVIDER", "ROCKSDB", "make_session", "state_settings"]

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


MASTER = "local[2,4]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets it for the Python that it starts."""


def make_session(
    name: str,
    *,
    master: str = MASTER,
    settings: dict[str, str] | None = None,
    state: str = "changelog",
) -> SparkSession:
    """Start a session that has semel's sources. Workers run this Python; a task that fails is tried
    four times.

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
    if has_sources(spark):
        register(spark)
    return spark


def state_settings() -> tuple[str, Mapping[str, str]]:
    """Return where the settings of a session of the user's own come from, and those of them that
    say how state is kept: of the active session of this process, else of spark-defaults.conf.

    Starts nothing. Raises `OSError` or `UnicodeDecodeError` if the file cannot be read.
    """
    session = _active_session()
    if session is not None:
        found = {name: session.conf.get(name, None) for name in (PROVIDER, CHANGELOG)}
        return "the active session", {name: str(value) for name, value in found.items() if value}
    file = _defaults_file()
    if file is None:
        return "no spark-defaults.conf", {}
    lines = (line.strip() for line in file.read_text().splitlines())
    pairs = (_pair(line) for line in lines if line and not line.startswith("#"))
    return str(file), {name: value for name, value in pairs if name in (PROVIDER, CHANGELOG)}


def _active_session() -> Any:
    """Return the active session of this process, without importing Spark for it."""
    loaded = sys.modules.get("pyspark.sql")
    return None if loaded is None else loaded.SparkSession.getActiveSession()


def _defaults_file() -> Path | None:
    """Return the spark-defaults.conf that Spark would read, if there is one."""
    folders = [os.environ.get("SPARK_CONF_DIR", "")]
    if home := os.environ.get("SPARK_HOME"):
        folders.append(str(Path(home) / "conf"))
    elif (package := find_spec("pyspark")) is not None and package.origin:
        folders.append(str(Path(package.origin).parent / "conf"))
    first = next(filter(None, folders), None)
    file = None if first is None else Path(first) / "spark-defaults.conf"
    return file if file is not None and file.exists() else None


def _pair(line: str) -> tuple[str, str]:
    """Split a line of spark-defaults.conf, as Java's properties: at the first =, : or blank."""
    at = min((line.index(each) for each in "=: \t" if each in line), default=len(line))
    return line[:at], line[at:].strip(" \t=:")


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
    if find_spec("pyspark.logger") is not None:  # since Spark 4.0
        from pyspark.logger import PySparkLogger

        # It writes each wrong statement as JSON, with every frame of the JVM, before it is raised.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return spark
