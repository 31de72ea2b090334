"""All differences between the versions of PySpark, and nothing else.

Always true:
- a version older than the oldest is refused; a version newer than the newest is treated as it;
- a feature that a version lacks is replaced here, or refused by `semel.deliver` with the version
  it needs: no other file asks for the version.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

OLDEST = (3, 5)
NEWEST = (4, 3)
"""The newest that semel is tested on."""

PYTHON_SOURCES = (4, 0)
"""The first that has sources written in Python."""

BINARY = "UTF8_BINARY"
"""The collation that compares text by its bytes."""

_SEED = 42
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\]|Job \d+ cancelled ")


@dataclass(frozen=True)
class Feature:
    """A feature that older versions lack, and what semel or the user does there."""

    name: str
    since: tuple[int, int]
    before: str


CONNECT = Feature("Spark Connect", (4, 0), "refused: use a classic session")
FEATURES = (
    CONNECT,
    Feature("strings with a collation", (4, 0), "Spark has none: compared by their bytes"),
    Feature("columns of type VARIANT", (4, 0), "Spark has none"),
    Feature("sources written in Python", (4, 0), "Spark has none"),
    Feature("the sources semel.inbox and semel.kafka", (4, 0), "refused: use Spark's own sources"),
    Feature(
        "limits for each micro-batch of semel.inbox and semel.kafka",
        (4, 2),
        "left out: a micro-batch takes all that has arrived at its marker",
    ),
    Feature("columns of type TIME", (4, 1), "Spark has none: use a timestamp, string or number"),
    Feature(
        "repartitionById", (4, 1), "replaced by a salt: no action needed (docs/spark-versions.md)"
    ),
)
"""Features and the versions they need, as docs/spark-versions.md and `semel doctor` list them."""


def installed() -> str:
    """Return the version of PySpark in this process, even if pip did not install it."""
    import pyspark

    return str(pyspark.__version__)


def numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version: (4, 3) for `4.3.0.dev1`."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def absent(version: str) -> list[Feature]:
    """Return the features that a version lacks."""
    return [each for each in FEATURES if numbers(version) < each.since]


def refuse_version(pipeline: str) -> None:
    """Refuse a PySpark that is too old. Raises `ConfigurationError`."""
    refuse_old(installed(), "PySpark", pipeline)
    if lacks_distutils(installed()):
        raise ConfigurationError(
            f"pipeline {pipeline!r}: PySpark {installed()} needs the module distutils, which "
            "Python 3.12 removed. Install it (pip install setuptools), or install PySpark 4.0 or "
            "later"
        )


def refuse_server(frame: DataFrame, pipeline: str) -> None:
    """Refuse a Spark Connect DataFrame if the client or the server is too old."""
    if not hasattr(frame, "_jdf"):
        refuse_connect(installed(), "PySpark", pipeline)
        refuse_connect(frame.sparkSession.version, "the Spark Connect server", pipeline)


def lacks_distutils(version: str) -> bool:
    """Whether distutils, which PySpark before 4.0 needs, is absent."""
    return numbers(version) < (4, 0) and find_spec("distutils") is None


def refuse_old(version: str, what: str, pipeline: str) -> None:
    """Refuse a version older than the oldest that semel supports."""
    if numbers(version) < OLDEST:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {what} has version {version or 'unknown'}, but semel needs "
            f"{_text(OLDEST)} or later. Install a later one: pip install 'pyspark>={_text(OLDEST)}'"
        )


def refuse_connect(version: str, what: str, pipeline: str) -> None:
    """Refuse a version of Spark Connect that is too old for a delivery."""
    if numbers(version) < CONNECT.since:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the DataFrame uses Spark Connect, which semel supports "
            f"from version {_text(CONNECT.since)}, but {what} has version {version}. Use a "
            "classic session (SparkSession.builder.master), or a later version"
        )


def has_sources(spark: SparkSession) -> bool:
    """Whether PySpark and Spark have sources that are written in Python."""
    return min(numbers(installed()), numbers(spark.version)) >= PYTHON_SOURCES


def refuse_sources(spark: SparkSession) -> None:
    """Refuse semel's sources if Spark has no sources that are written in Python."""
    for each, what in ((installed(), "PySpark"), (spark.version, "Spark")):
        if numbers(each) < PYTHON_SOURCES:
            raise ConfigurationError(
                f"semel.inbox and semel.kafka need Spark {_text(PYTHON_SOURCES)} or later, and "
                f"{what} has version {each}. Use a later one, or Spark's own Kafka source"
            )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def scala() -> str:
    """Return the Scala version of Spark's own packages for this PySpark."""
    return "2.13" if numbers(installed()) >= (4, 0) else "2.12"


def kafka_connector() -> str:
    """Return the profile of .ci/kafka/pom.xml with Spark's Kafka connector for this version."""
    version = numbers(installed())
    return "spark" if version >= (4, 2) else f"spark-{_text(version)}"


# -- replacements


def in_buckets(frame: DataFrame, count: int, bucket: str) -> DataFrame:
    """Return the DataFrame with one task for each bucket in its integer column `bucket`.

    Before 4.1 Spark chooses the task by the hash of a column, so each bucket gets a number that
    hashes to it. Adaptive execution keeps an explicit number of tasks (decision 0025).
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, bucket)
    from pyspark.sql import functions as sql

    salt = sql.expr(f"array({','.join(map(str, salts(count)))})[{bucket}]")
    return frame.repartition(count, salt)


@lru_cache(maxsize=64)
def salts(count: int) -> tuple[int, ...]:
    """Return for each of `count` buckets the least number that Spark's `hash` puts into it:
    `pmod(hash(salts[k]), count) = k`.
    """
    found = np.full(count, -1, np.int64)
    begin = 0
    while (found < 0).any():
        tried = np.arange(begin, begin + 4 * count + 64)
        places, first = np.unique(spark_hash(tried) % count, return_index=True)
        fresh = found[places] < 0
        found[places[fresh]] = tried[first[fresh]]
        begin = int(tried[-1]) + 1
    return tuple(found.tolist())


def spark_hash(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Compute Spark's `hash` of INT columns: Murmur3 of four bytes, seed 42, signed."""
    word = values.astype(np.int32).view(np.uint32)
    word = _turned(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    state = _turned(np.uint32(_SEED) ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(4)  # the number of bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return (state ^ (state >> np.uint32(16))).view(np.int32).astype(np.int64)


def _turned(word: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    left: np.ndarray[Any, Any] = (word << np.uint32(by)) | (word >> np.uint32(32 - by))
    return left


def is_cancelled(message: str) -> bool:
    """Whether a message of Spark reports a cancelled job, as it does when a query is stopped.

    The name in brackets exists from 4.0 on.
    """
    return bool(_CANCELLED.match(message))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema as tasks get it. Raises `ConfigurationError` for unsupported columns."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas import types

    convert: Any = types.to_arrow_schema
    # Until 4.1 the default time zone is UTC; from 4.2 on it must be passed.
    options = {"timezone": "UTC"} if numbers(installed()) >= (4, 2) else {}
    try:
        return convert(schema, **options)
    except PySparkException as error:
        raise ConfigurationError(
            f"PySpark {installed()} cannot convert a column to Arrow ({error}); remove it or cast "
            "it"
        ) from None


def by_bytes(column: Column, kind: DataType) -> Column:
    """Return the column with binary collation, if it is text with another collation."""
    if getattr(kind, "collation", BINARY) == BINARY:
        return column
    from pyspark.sql import functions as sql

    return sql.collate(column, BINARY)


def available_now() -> type[Any]:
    """Return the class of sources that know the trigger availableNow; an empty one before 4.2."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return type("SupportsTriggerAvailableNow", (), {})
    return SupportsTriggerAvailableNow


def read_limit(rows: int | None, size: int | None) -> Any:
    """Return Spark's description of a limit; Spark asks for it from 4.2 on."""
    from pyspark.sql.streaming import datasource

    if rows is not None:
        return datasource.ReadMaxRows(rows)
    return datasource.ReadAllAvailable() if size is None else datasource.ReadMaxBytes(size)


def unlimited(limit: Any) -> bool:
    """Whether Spark asks for all that there is, whatever the source's own limits are."""
    return type(limit).__name__ == "ReadAllAvailable"


def root_session() -> SparkSession | None:
    """Return the session that a query was started in, when its function is loaded in a process
    beside a Spark Connect server; None elsewhere. Micro-batches may come in a clone of it, which
    does not know the query (Spark 4.3).
    """
    if "SPARK_CONNECT_LOCAL_URL" not in os.environ:
        return None
    from pyspark.sql.connect.session import SparkSession as Session

    connected: Any = Session
    found: SparkSession | None = connected.getActiveSession()
    return found
