"""A query from outside: its sources, its stop between two micro-batches, and why it failed.

Always true: a query that is drained begins no micro-batch after `drain` was called, and the one
that runs is not interrupted unless the caller says so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from semel.spark.failures import Stopped, last_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.05
BORDER = "_semel_border"
_HEADLINE_MAX = 600


class MicroBatchBorder:
    """The border between two micro-batches of one query. The micro-batches enter and leave on a
    thread of Spark's, another thread closes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = False
        self.closed = self.inside = self.reached = False

    def __enter__(self) -> None:
        """Let a micro-batch begin. At a closed border it waits for the stop, then raises."""
        with self._changed:
            if not self.closed:
                self.inside = True
                return
            self.reached = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released)
        raise Stopped("the query was drained")

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.inside = False
            self._changed.notify_all()

    def close(self) -> None:
        """Let no further micro-batch begin."""
        with self._changed:
            self.closed = True

    def release(self) -> None:
        """Let a micro-batch that waits at the border end: the query is being stopped."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a micro-batch leaves or reaches the border, for this time at most."""
        with self._changed:
            self._changed.wait(seconds)


def drain(query: StreamingQuery, at_once: threading.Event) -> None:
    """Stop a query at the end of its micro-batch, or as soon as `at_once` is set.

    Through Spark Connect the micro-batches run beside the server: there the query is stopped as
    Spark stops it.
    """
    border: MicroBatchBorder | None = getattr(query, BORDER, None)
    if border is None:
        query.stop()
        return
    border.close()
    while query.isActive and not at_once.is_set() and not border.reached:
        if not border.inside and not query.status["isTriggerActive"]:
            break
        border.wait(POLL_S)
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    while stopping.is_alive() and query.isActive:
        stopping.join(POLL_S)
    border.release()  # Spark takes what is raised now for the end of a stopped query
    stopping.join()


def why_failed(query: StreamingQuery) -> str | None:
    """Return in one sentence why a query ended; None if it ended in order."""
    error = query.exception()
    return None if error is None else headline(error)


def headline(error: BaseException) -> str:
    """Return semel's own sentence in an error, otherwise its first line."""
    text = str(error)
    found = last_sentence(text)
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
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
