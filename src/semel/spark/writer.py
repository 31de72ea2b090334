"""The writer that `semel.deliver` returns: Spark's own, with checks and delivery in `start()`.

Always true: a setting that would break the promise is refused here, before any event moves.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from semel.delivery import refuse_while_looking
from semel.errors import ConfigurationError
from semel.notebook import table
from semel.spark import checks
from semel.spark.failures import last_sentence
from semel.spark.foreach_batch import MicroBatches
from semel.spark.frames.backlog import trigger_seconds
from semel.spark.frames.plan import is_classic
from semel.spark.stopping import RUN, MicroBatchBorder, why_fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.delivery import Observer, PipelineSpec
    from semel.monitoring import Monitoring
    from semel.spark.frames.kafka_topics import KafkaSource
    from semel.spark.progress import BatchFigures

CHECKPOINT = "checkpointlocation"
SHOWN = 10
"""How many micro-batches a notebook shows of a query."""
_COUNTS = ("skipped", "suppressed", "parked", "in_doubt", "seconds", "per_s")
RECORDER = "_semel_figures"
"""The attribute of a query that keeps what its micro-batches delivered."""


def make_writer(
    frame: DataFrame,
    spec: PipelineSpec,
    ledger: str | None,
    source: KafkaSource | None,
    monitoring: Monitoring,
) -> DataStreamWriter:
    """Return the session's own writer of the DataFrame, extended to deliver."""
    plain: Any = frame.writeStream
    writer: Any = object.__new__(_derived(type(plain), Delivering))
    writer.__dict__.update(plain.__dict__)
    writer.spec = spec
    writer._semel = _WriterState(frame, ledger, source, monitoring)  # noqa: SLF001 - its own
    made: DataStreamWriter = writer
    return made


class _WriterState:
    """The settings of a writer, and what it needs to check them."""

    def __init__(
        self,
        frame: DataFrame,
        ledger: str | None,
        source: KafkaSource | None,
        monitoring: Monitoring,
    ) -> None:
        self.monitoring = monitoring
        self.spark: SparkSession = frame.sparkSession
        self.classic = is_classic(frame)
        self.ledger = ledger
        self.source = source
        self.options: dict[str, str] = {}
        self.mode = "append"
        self.name: str | None = None
        self.trigger: dict[str, Any] = {}
        self.observer: Observer | None = None
        self.standby = False
        self.ended: Callable[[], bool] | None = None


class Delivering:
    """The methods in which a delivering writer differs from Spark's; mixed into Spark's class."""

    spec: PipelineSpec
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
        """As Spark's, except for triggers without micro-batches."""
        self._semel.trigger = trigger
        if any(trigger.get(word) is not None for word in checks.NO_MICRO_BATCHES):
            return self  # `start` refuses it, with the same message in every Spark version
        return super().trigger(**trigger)  # type: ignore[misc]

    def observed_by(self, observer: Observer) -> Any:
        """Notify an observer of what the driver does; through Spark Connect it has no effect."""
        self._semel.observer = observer
        return self

    def hides(self, secrets: Iterable[str]) -> Any:
        """Let nothing that is recorded of a failure have one of these texts."""
        self.spec = replace(self.spec, hidden=tuple(sorted(secrets)))
        return self

    def stands_by(self) -> Any:
        """Let `start` wait while the pipeline is running. Raises `ConfigurationError` through Spark
        Connect.
        """
        if not self._semel.classic:
            raise ConfigurationError(
                f"pipeline {self.spec.name!r}: standby=True needs a session of this process, "
                "because with Spark Connect the run is beside the server; remove standby=True, and "
                "start the query again when the other one has ended"
            )
        self._semel.standby = True
        return self

    def unless_ended(self, ended: Callable[[], bool]) -> Any:
        """Let `start` raise `StandbyEnded` once `ended()`, before the query runs; through Spark
        Connect it has no effect.
        """
        self._semel.ended = ended
        return self

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
        """Start the query, as Spark's. Raises `ConfigurationError` for a pipeline that cannot keep
        the promise.
        """
        refuse_while_looking(self.spec.name, "start()")
        for word, value in (("path", path), ("format", format), ("partitionBy", partitionBy)):
            if value is not None:
                self._refuse(f"start({word}={value!r})")
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)
        self._check_settings()
        state = self._semel
        batches = MicroBatches(
            self.spec, state.ledger, self._checkpoint(), uuid4().hex, state.source
        )
        batches.trigger_s = trigger_seconds(state.trigger)
        batches.monitoring = state.monitoring
        if state.classic:
            batches.border, batches.observer = MicroBatchBorder(), state.observer
            batches.standby, batches.ended = state.standby, state.ended
        with batches.ending_if_refused():
            if state.classic:
                batches.look_first(state.spark)
            super().foreachBatch(batches)  # type: ignore[misc]
            query: StreamingQuery = super().start()  # type: ignore[misc]
        query.__class__ = _derived(type(query), Waiting)
        _extend_await_any(type(state.spark.streams))
        setattr(query, RUN, batches)
        if state.classic:
            batches.started(query)
            setattr(query, RECORDER, batches.figures)
            batches.figures.serve(query.id)
        return query

    # -- checks

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"pipeline {self.spec.name!r}: {what} would make Spark write somewhere else, and "
            "semel deliver nothing. Remove it: to= of semel.deliver names the sinks"
        )

    def _check_settings(self) -> None:
        """Refuse settings of this writer or its session that would break the promise."""
        state = self._semel
        checks.refuse_session(state.spark, self.spec)
        checks.refuse_trigger(self.spec, state.trigger)
        checks.refuse_options(self.spec, state.options)
        checks.refuse_mode(self.spec, state.mode)

    def _checkpoint(self) -> str:
        """Return where Spark keeps the checkpoint of this query."""
        state = self._semel
        location = state.options.get(CHECKPOINT)
        if location:
            return location
        root = state.spark.conf.get("spark.sql.streaming.checkpointLocation", "") or ""
        if root and state.name:
            return f"{root.rstrip('/')}/{state.name}"
        raise ConfigurationError(
            f"pipeline {self.spec.name!r}: there is no checkpoint location, so Spark could "
            'not replay anything. Add .option("checkpointLocation", "checkpoints/'
            f'{self.spec.name}")'
        )


class Waiting:
    """The methods in which the query of a delivering writer differs from Spark's."""

    def _repr_html_(self) -> str:
        """Return the newest micro-batches as a table, for a notebook."""
        recorder: BatchFigures | None = getattr(self, RECORDER, None)
        kept = [] if recorder is None else recorder.newest(SHOWN)
        rows = [
            (
                each["minibatch"],
                ", ".join(f"{name}: {count}" for name, count in each["delivered_by_sink"].items()),
                *(each[name] for name in _COUNTS),
            )
            for each in kept
        ]
        notes = [] if rows else ["no micro-batch was completed yet"]
        if recorder is None:
            notes = ["with Spark Connect the figures are in the ledger: semel.Ledger(...)"]
        query: Any = self
        state = "running" if query.isActive else "ended"
        name = kept[0]["pipeline"] if kept else query.name or query.id
        return table(f"Query {name}: {state}", ("minibatch", "delivered", *_COUNTS), rows, notes)

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        """As Spark's; `["semel"]` is what the micro-batch delivered."""
        found = super().lastProgress  # type: ignore[misc]
        recorder: BatchFigures | None = getattr(self, RECORDER, None)
        return found if recorder is None else recorder.add_to(found)

    @property
    def recentProgress(self) -> Any:  # noqa: N802 - Spark's name
        """As Spark's; `["semel"]` of each is what its micro-batch delivered."""
        found = super().recentProgress  # type: ignore[misc]
        recorder: BatchFigures | None = getattr(self, RECORDER, None)
        return found if recorder is None else [recorder.add_to(each) for each in found]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """As Spark's; the text of an error ends with the sentence that semel stopped with."""
        with _sentence_last():
            ended: bool | None = super().awaitTermination(timeout)  # type: ignore[misc]
        fenced = why_fenced(self)
        if fenced is not None:
            raise fenced
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802
        """As Spark's; the text of an error ends with the sentence that semel stopped with."""
        with _sentence_last():
            super().processAllAvailable()  # type: ignore[misc]


@contextmanager
def _sentence_last() -> Iterator[None]:
    """Add semel's own message as the last line of an error that contains it."""
    try:
        yield
    except Exception as error:
        sentence = last_sentence(str(error))
        if sentence:
            error.add_note(sentence)
        raise


def _extend_await_any(manager: type[Any]) -> None:
    """Let `spark.streams.awaitAnyTermination` end errors in the same way. A session creates a new
    manager each time it is asked for one, so the class is changed, once.
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
    """Return the subclass of Spark's class that mixes in `own`; each is created once."""
    if (plain, own) not in _classes:
        name = f"{own.__name__}{plain.__name__}"
        _classes[plain, own] = type(name, (own, plain), {"__module__": __name__})
    return _classes[plain, own]
