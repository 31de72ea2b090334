"""Everything that is otherwise in one version of PySpark than in another, and nothing else.

Always true:
- a version before the oldest is refused by its name; one after the newest is taken as the newest;
- whatever a version has not is done otherwise here, or refused in `semel.deliver` with the version
  it needs: no other file asks which version this is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

OLDEST = (3, 5)
NEWEST = (4, 3)
"""The newest that semel is tested on."""

BINARY = "UTF8_BINARY"
"""The collation by which texts are the same when their bytes are."""

_SEED = 42
_CANCELLED = re.compile(r"\[SPARK_JOB_CANCELLED\]|Job \d+ cancelled ")


@dataclass(frozen=True)
class Feature:
    """What some versions have not, and what is done or to be done there."""

    name: str
    since: tuple[int, int]
    before: str


CONNECT = Feature("Spark Connect", (4, 0), "refused: use a classic session")
FEATURES = (
    CONNECT,
    Feature("text with a collation", (4, 0), "Spark has none: texts are compared by their bytes"),
    Feature("columns of type VARIANT", (4, 0), "Spark has none"),
    Feature("sources written in Python", (4, 0), "Spark has none"),
    Feature("columns of type TIME", (4, 1), "Spark has none: use a timestamp, a text or a number"),
    Feature("repartitionById", (4, 1), "done by a salt: nothing to do (docs/spark-versions.md)"),
)
"""Which features need which version; docs/spark-versions.md and `semel doctor` have the same."""


def installed() -> str:
    """The version of the PySpark of this process, also of one that pip did not install."""
    import pyspark

    return str(pyspark.__version__)


def numbers(version: str) -> tuple[int, int]:
    """The first two numbers of a version: (4, 3) for `4.3.0.dev1`."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def absent(version: str) -> list[Feature]:
    """The features that a version has not."""
    return [each for each in FEATURES if numbers(version) < each.since]


def refuse_version(pipeline: str) -> None:
    """Refuse a PySpark that is too old. Raises `ConfigurationError`."""
    refuse_old(installed(), "PySpark", pipeline)
    if lacks_distutils(installed()):
        raise ConfigurationError(
            f"pipeline {pipeline!r}: PySpark {installed()} needs the module distutils, which is "
            "not in Python since 3.12. Install what brings it (pip install setuptools), or PySpark "
            "4.0 or later"
        )


def refuse_server(frame: DataFrame, pipeline: str) -> None:
    """Refuse a frame through Spark Connect where this end or the other is too old for it."""
    if not hasattr(frame, "_jdf"):
        refuse_connect(installed(), "PySpark", pipeline)
        refuse_connect(frame.sparkSession.version, "the Spark Connect server", pipeline)


def lacks_distutils(version: str) -> bool:
    """Whether a module is absent by which PySpark before 4.0 compares versions."""
    return numbers(version) < (4, 0) and find_spec("distutils") is None


def refuse_old(version: str, what: str, pipeline: str) -> None:
    """Refuse what is older than the oldest that semel runs on."""
    if numbers(version) < OLDEST:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {what} has version {version or 'unknown'}, and semel needs "
            f"{_text(OLDEST)} or later. Install a later one: pip install 'pyspark>={_text(OLDEST)}'"
        )


def refuse_connect(version: str, what: str, pipeline: str) -> None:
    """Refuse Spark Connect where it is too old for what a delivery asks of it."""
    if numbers(version) < CONNECT.since:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the frame comes through Spark Connect, which semel can use "
            f"from version {_text(CONNECT.since)} on, and {what} has version {version}. Use a "
            "classic session (SparkSession.builder.master), or a later version"
        )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def scala() -> str:
    """The version of Scala that Spark's own packages of this version are made with."""
    return "2.13" if numbers(installed()) >= (4, 0) else "2.12"


def kafka_connector() -> str:
    """The profile of .ci/kafka/pom.xml with Spark's Kafka connector for this version."""
    version = numbers(installed())
    return "spark" if version >= (4, 2) else f"spark-{_text(version)}"


# -- what is done otherwise


def in_buckets(frame: DataFrame, count: int, bucket: str) -> DataFrame:
    """Give the frame with one task for each bucket that its integer column `bucket` names.

    Before 4.1 rows go to the task that Spark's hash of a column says: each bucket gets a number
    whose hash is that bucket's own. A number of tasks that was asked for is kept by adaptive
    execution (decision 0025).
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, bucket)
    from pyspark.sql import functions as sql

    salt = sql.expr(f"array({','.join(map(str, salts(count)))})[{bucket}]")
    return frame.repartition(count, salt)


@lru_cache(maxsize=64)
def salts(count: int) -> tuple[int, ...]:
    """For each of `count` buckets the least number that Spark's `hash` puts into it:
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
    """Spark's `hash` of columns of type INT: Murmur3 of four bytes, seed 42, as signed numbers."""
    word = values.astype(np.int32).view(np.uint32)
    word = _turned(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    state = _turned(np.uint32(_SEED) ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(4)  # as many bytes
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return (state ^ (state >> np.uint32(16))).view(np.int32).astype(np.int64)


def _turned(word: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    left: np.ndarray[Any, Any] = (word << np.uint32(by)) | (word >> np.uint32(32 - by))
    return left


def is_cancelled(said: str) -> bool:
    """Whether Spark says by it that a job was cancelled, as it does when a query is stopped.

    The name in brackets is there from 4.0 on.
    """
    return bool(_CANCELLED.match(said))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the columns as tasks get them. Raises `ConfigurationError` where one cannot travel."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas import types

    convert: Any = types.to_arrow_schema
    # Until 4.1 an instant is in UTC unless told otherwise; since then the zone has to be told.
    words = {"timezone": "UTC"} if numbers(installed()) >= (4, 2) else {}
    try:
        return convert(schema, **words)
    except PySparkException as error:
        raise ConfigurationError(
            f"a column cannot travel as Arrow with PySpark {installed()} ({error}); leave it out "
            "or cast it"
        ) from None


def by_bytes(column: Column, kind: DataType) -> Column:
    """Give a column that is compared by its bytes, if it is text with another collation."""
    if getattr(kind, "collation", BINARY) == BINARY:
        return column
    from pyspark.sql import functions as sql

    return sql.collate(column, BINARY)
