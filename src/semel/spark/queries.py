"""A query from outside: its sources, and why it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.spark.failures import last_sentence
from semel.spark.stopping import why_fenced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CALLED = "An error occurred while calling"
_HEADLINE_MAX = 600


def why_failed(query: StreamingQuery) -> str | None:
    """Return in one sentence why a query ended; None if it ended in order."""
    error = query.exception() or why_fenced(query)
    return None if error is None else headline(error)


def jvm_is_gone(error: BaseException) -> bool:
    """Return whether an error is that of a JVM that ended under the session."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    return isinstance(error, (ConnectionError, Py4JNetworkError))


def headline(error: BaseException) -> str:
    """Return semel's own sentence in an error, otherwise its first line."""
    text = str(error)
    found = last_sentence(text)
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].startswith(_CALLED):
            found = lines[1].removeprefix(": ")  # the first line names py4j's call and no cause
        else:
            found = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return found[:_HEADLINE_MAX]


def read_source(
    spark: SparkSession,
    format: Any,  # noqa: A002 - Spark's name
    schema: str | None,
    options: Mapping[str, str],
    *,
    static: bool = False,
) -> DataFrame:
    """Read a source as a stream, or once. `format` is a name, or the class of a data source."""
    if isinstance(format, type):
        source: Any = format
        spark.dataSource.register(source)
        format = source.name()  # noqa: A001
    reader: Any = spark.read if static else spark.readStream
    reader = reader.format(format)
    if schema is not None:
        reader = reader.schema(schema)
    frame: DataFrame = reader.options(**options).load()
    return frame


def run_sql(
    spark: SparkSession,
    sources: Mapping[str, DataFrame],
    views: Mapping[str, str],
    statements: tuple[str, ...],
) -> DataFrame:
    """Run statements over sources and views, each by its name; return the rows of the last one."""
    for name, frame in sources.items():
        frame.createOrReplaceTempView(name)
    for name, text in views.items():
        spark.sql(text).createOrReplaceTempView(name)
    for text in statements[:-1]:
        spark.sql(text)
    return spark.sql(statements[-1])
