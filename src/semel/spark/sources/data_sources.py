"""The data sources as Spark calls them.

Spark has one Python process for the reader of each query: it asks there where a micro-batch ends,
and pickles a copy of the reader for the tasks, which only call `read`.

Always true:
- what a micro-batch reads follows from its two offsets alone, so a replay reads the same;
- connections are made where they are used, and never pickled.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from semel.errors import SemelError
from semel.runtime import SystemClock
from semel.spark.sources.inbox_stream import InboxStream, read_events
from semel.spark.sources.kafka_reader import read_piece
from semel.spark.sources.kafka_stream import KafkaStream
from semel.spark.sources.marking import Marking
from semel.spark.sources.options import (
    EARLIEST,
    INBOX,
    KAFKA,
    LATEST,
    SourceOptions,
    read_options,
    require_streaming,
)
from semel.spark.sources.positions import Offset, Piece, begins_of, pieces, pieces_from
from semel.spark.versions import arrow_schema, available_now, read_limit, unlimited
from semel.streams import Application, MarkerClock

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    from semel.spark.sources.marking import Stream
else:
    SupportsTriggerAvailableNow = available_now()

CLOCK = SystemClock()

WAIT_S = 0.1
"""How long one question of Spark's waits for a marker; a stopped query waits for it."""
STEP_S = 0.01
APPLICATION = "payments"

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key: string, value: binary>>"
INBOX_COLUMNS = (
    "topic string, partition int, offset bigint, entity string, event bigint, source string, "
    "id string, type string, subject string, time timestamp, content_type string, value binary, "
    "attributes map<string, string>, timestamp timestamp"
)
MARKER = "marker bigint"


class MarkedSource(DataSource):
    """What both sources have in common."""

    SOURCE = ""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options. Raises `ConfigurationError`."""
        super().__init__(options)
        self.checked = read_options(self.SOURCE, dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return cls.SOURCE

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch."""
        return BatchReader(self.checked, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        require_streaming(self.checked)
        return StreamReader(self.checked, schema)


class InboxSource(MarkedSource):
    """`format("semel.inbox")`: the events of an inbox."""

    SOURCE = INBOX

    def schema(self) -> str:
        """Return the columns: those of `semel.INBOX_SCHEMA`, and the number of the marker."""
        return f"{INBOX_COLUMNS}, {MARKER}"


class MarkedKafka(MarkedSource):
    """`format("semel.kafka")`: the records of topics."""

    SOURCE = KAFKA

    def schema(self) -> str:
        """Return the columns: those of Spark's own source, and the number of the marker."""
        headers = f", {HEADERS}" if self.checked.headers else ""
        return f"{KAFKA_SCHEMA}{headers}, {MARKER}"


SOURCES = (InboxSource, MarkedKafka)


class Range(InputPartition):
    """What one task reads."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


@dataclass
class Ranges:
    """Reads ranges, on the executors."""

    options: SourceOptions
    columns: StructType

    def read_range(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one range."""
        if not isinstance(partition, Range):  # Spark's own, for a batch without any
            return
        options, piece, schema = self.options, partition.piece, arrow_schema(self.columns)
        if options.source == INBOX:
            yield from read_events(options, piece, schema)
        else:
            yield from read_piece(
                options.kafka,
                piece,
                schema,
                headers=options.headers,
                fail_on_data_loss=options.fail_on_data_loss,
            )


def open_stream(options: SourceOptions) -> Stream:
    """Connect to the stream that the options name."""
    return InboxStream(options) if options.source == INBOX else KafkaStream(options)


class BatchReader(DataSourceReader):
    """Reads what lies between two positions, once."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._ranges = Ranges(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return a range for each partition. Raises `ConfigurationError` if a position is gone."""
        stream = open_stream(self._options)
        start = stream.start(self._options.start, default=EARLIEST)
        stop = stream.start(self._options.stop, default=LATEST)
        found = pieces(start, stream.borders(start, stop.positions))
        return [Range(each) for each in stream.kept(found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one range."""
        yield from self._ranges.read_range(partition)


@dataclass
class LiveReader:
    """What lives in the reader's process."""

    stream: Stream
    marking: Marking
    at: Offset | None = None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says where micro-batches end, and what they read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._ranges = Ranges(options, schema)
        self._opened: LiveReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        options = self._options
        default = EARLIEST if options.source == INBOX else LATEST
        return self._live().stream.start(options.start, default=default).to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch, for Spark's own display."""
        limits = self._options.limits
        return read_limit(limits.events, limits.bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the query end at what has arrived by now."""
        live = self._live()
        live.marking.target = live.stream.ends()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends: at a marker that is due, or at `start`. Before
        Spark 4.2 there is neither `start` nor a limit: what was returned last is taken for it.
        """
        live = self._live()
        given = self._given(live, start)
        limited = limit is not None and not unlimited(limit)
        ends = CLOCK.monotonic() + WAIT_S
        while True:
            end = live.marking.next(given, limited=limited)
            if end is not given or live.marking.target is not None or CLOCK.monotonic() >= ends:
                break
            CLOCK.sleep(STEP_S)
        if start is None and live.at is None and end.begin is None:
            end = replace(end, begin=given.begin)
        live.at = end
        return start if start is not None and end is given else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return what has arrived, for Spark's own progress."""
        live = self._live()
        known = live.marking.known or live.stream.ends()
        return Offset(0 if live.at is None else live.at.marker, known).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a range for each partition that moved. Raises `SemelError` if some are gone."""
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        stream = self._live().stream
        begins = begins_of(begin, stop)
        added = sorted(stop.positions.keys() - begins.keys())
        if added:  # before Spark 4.2, after a restart
            begins = {**begins, **stream.begins(added)}
        return [Range(each) for each in stream.kept(pieces_from(begins, stop))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one range. Runs in a task."""
        yield from self._ranges.read_range(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Learn that a micro-batch is complete."""
        self._live().stream.completed(Offset.from_json(end).positions)

    def _given(self, live: LiveReader, start: dict[str, Any] | None) -> Offset:
        if start is not None:
            return Offset.from_json(start)
        if live.at is not None:
            return live.at
        newest = live.stream.newest()
        if newest is None:
            return Offset.from_json(self.initialOffset())
        # Whether the query is new is not known. If it is, it begins where the options say.
        with suppress(SemelError):
            first = Offset.from_json(self.initialOffset()).positions
            return Offset(newest.number, newest.positions, begin=first)
        return Offset(newest.number, newest.positions)

    def _live(self) -> LiveReader:
        if self._opened is None:
            options = self._options
            stream = open_stream(options)
            stream.register()
            clock = MarkerClock(
                Application.of(options.application or APPLICATION, options.latency_s)
            )
            clock.load(stream.learned())
            paced = options.application is not None or options.latency_s is not None
            marking = Marking(
                stream, clock, options.limits, CLOCK, paced=paced, delay_s=options.delay_s
            )
            self._opened = LiveReader(stream, marking)
        return self._opened
