"""The writer that `semel.deliver` returns: Spark's own, with the promise kept in `start()`.

Always true: whatever would make the promise false is refused here, before an event moves.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from semel.delivery.start_guard import refuse_while_looking
from semel.errors import ConfigurationError
from semel.spark import checks
from semel.spark.failures import last_sentence
from semel.spark.foreach_batch import MicroBatches
from semel.spark.plan import is_classic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.delivery import PipelineSpec
    from semel.spark.kafka_topics import KafkaSource

CHECKPOINT = "checkpointlocation"


def make_writer(
    frame: DataFrame, agreement: PipelineSpec, ledger: str | None, source: KafkaSource | None
) -> DataStreamWriter:
    """Give the session's own writer of the frame, as one that delivers."""
    plain: Any = frame.writeStream
    writer: Any = object.__new__(_derived(type(plain), Delivering))
    writer.__dict__.update(plain.__dict__)
    writer.agreement = agreement
    writer._semel = _WriterState(frame, ledger, source)  # noqa: SLF001 - its own
    made: DataStreamWriter = writer
    return made


class _WriterState:
    """What was said to a writer, and what it needs to check it."""

    def __init__(self, frame: DataFrame, ledger: str | None, source: KafkaSource | None) -> None:
        self.spark: SparkSession = frame.sparkSession
        self.classic = is_classic(frame)
        self.ledger = ledger
        self.source = source
        self.options: dict[str, str] = {}
        self.mode = "append"
        self.name: str | None = None
        self.trigger: dict[str, Any] = {}


class Delivering:
    """What a delivering writer does otherwise than Spark's; mixed into the session's own class."""

    agreement: PipelineSpec
    _semel: _WriterState

    def option(self, key: str, value: Any) -> Any:
        """As Spark's; semel reads `checkpointLocation`."""
        self._semel.options[key.lower()] = str(value)
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        """As Spark's."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> Any:  # noqa: N802, N803 - Spark's names
        """As Spark's."""
        self._semel.mode = outputMode.lower()
        return super().outputMode(outputMode)  # type: ignore[misc]

    def queryName(self, queryName: str) -> Any:  # noqa: N802, N803 - Spark's names
        """As Spark's."""
        self._semel.name = queryName
        return super().queryName(queryName)  # type: ignore[misc]

    def trigger(self, **trigger: Any) -> Any:
        """As Spark's, but for the triggers that have no micro-batches."""
        self._semel.trigger = trigger
        if any(trigger.get(word) is not None for word in checks.NO_MICRO_BATCHES):
            return self  # refused by `start`, in words that every version has
        return super().trigger(**trigger)  # type: ignore[misc]

    def format(self, source: str) -> NoReturn:
        """Refused: the sinks are named in `semel.deliver`."""
        self._refuse(f".format({source!r})")

    def foreach(self, f: Any) -> NoReturn:
        """Refused: the sinks are named in `semel.deliver`."""
        del f
        self._refuse(".foreach(...)")

    def foreachBatch(self, func: Any) -> NoReturn:  # noqa: N802 - Spark's name
        """Refused: the sinks are named in `semel.deliver`."""
        del func
        self._refuse(".foreachBatch(...)")

    def partitionBy(self, *cols: Any) -> NoReturn:  # noqa: N802 - Spark's name
        """Refused: the sinks are named in `semel.deliver`."""
        self._refuse(f".partitionBy{cols!r}")

    def clusterBy(self, *cols: Any) -> NoReturn:  # noqa: N802 - Spark's name
        """Refused: the sinks are named in `semel.deliver`."""
        self._refuse(f".clusterBy{cols!r}")

    def toTable(self, tableName: str, *_: Any, **__: Any) -> NoReturn:  # noqa: N802, N803
        """Refused: the sinks are named in `semel.deliver`."""
        self._refuse(f".toTable({tableName!r})")

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,  # noqa: N803
        partitionBy: Any = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, as Spark's. Raises `ConfigurationError` for what cannot keep the
        promise.
        """
        refuse_while_looking(self.agreement.name, "start()")
        for word, value in (("path", path), ("format", format), ("partitionBy", partitionBy)):
            if value is not None:
                self._refuse(f"start({word}={value!r})")
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        self._refuse_said()
        said = self._semel
        batches = MicroBatches(
            self.agreement, said.ledger, self._checkpoint(), uuid4().hex, said.source
        )
        if said.classic:
            batches.look_first(said.spark)
        super().foreachBatch(batches)  # type: ignore[misc]
        query: StreamingQuery = super().start()  # type: ignore[misc]
        query.__class__ = _derived(type(query), Waiting)
        _tell_of_any(type(said.spark.streams))
        if said.classic:
            batches.query = query
        return query

    # -- what is refused

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"pipeline {self.agreement.name!r}: {what} would make Spark write somewhere else, and "
            "semel deliver nothing. Leave it away: to= of semel.deliver says where it goes"
        )

    def _refuse_said(self) -> None:
        """Refuse what was said to this writer, or to its session, and cannot keep the promise."""
        said = self._semel
        checks.refuse_session(said.spark, self.agreement)
        checks.refuse_trigger(self.agreement, said.trigger)
        checks.refuse_options(self.agreement, said.options)
        checks.refuse_mode(self.agreement, said.mode)

    def _checkpoint(self) -> str:
        """Where Spark keeps the checkpoint of this query."""
        said = self._semel
        location = said.options.get(CHECKPOINT)
        if location:
            return location
        root = said.spark.conf.get("spark.sql.streaming.checkpointLocation", "") or ""
        if root and said.name:
            return f"{root.rstrip('/')}/{said.name}"
        raise ConfigurationError(
            f"pipeline {self.agreement.name!r}: there is no checkpoint location, so Spark could "
            'not replay anything. Say .option("checkpointLocation", "checkpoints/'
            f'{self.agreement.name}")'
        )


class Waiting:
    """What the query of a delivering writer does otherwise than Spark's; mixed into its class."""

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """As Spark's; the text of an error ends with the sentence that semel stopped with."""
        with _sentence_last():
            ended: bool | None = super().awaitTermination(timeout)  # type: ignore[misc]
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802
        """As Spark's; the text of an error ends with the sentence that semel stopped with."""
        with _sentence_last():
            super().processAllAvailable()  # type: ignore[misc]


@contextmanager
def _sentence_last() -> Iterator[None]:
    """Let the text of an error end with the sentence of semel's that stands in it."""
    try:
        yield
    except Exception as error:
        sentence = last_sentence(str(error))
        if sentence:
            error.add_note(sentence)
        raise


def _tell_of_any(manager: type[Any]) -> None:
    """Let `spark.streams.awaitAnyTermination` end an error in the same way. A session makes its
    manager anew each time it is asked for it, so this is said to the class, once.
    """
    plain = manager.awaitAnyTermination
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def await_any(self: Any, timeout: int | None = None) -> bool | None:
        with _sentence_last():
            ended: bool | None = plain(self, timeout)
        return ended

    manager.awaitAnyTermination = await_any


_classes: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _derived(plain: type[Any], own: type[Any]) -> type[Any]:
    """Give the subclass of a session's own class that does what `own` says; one for each."""
    if (plain, own) not in _classes:
        name = f"{own.__name__}{plain.__name__}"
        _classes[plain, own] = type(name, (own, plain), {"__module__": __name__})
    return _classes[plain, own]
