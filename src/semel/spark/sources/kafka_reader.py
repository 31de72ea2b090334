"""Reads an exact range of one Kafka partition as Arrow batches, in Spark's Python workers.

Always true:
- a range ends by its position and not by a count: offsets of transactions, and of records that were
  compacted away, have no record;
- a consumer is kept between micro-batches and goes on where the last range ended; what it fetched
  beyond that is the beginning of the next one. At most `KEPT` are kept in a process;
- nothing is committed to Kafka: Spark's checkpoint has the positions.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.errors import SemelError, plain_text
from semel.runtime import SystemClock
from semel.sinks import ClientLog, client_library, no_such_config
from semel.spark.sources.positions import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semel.spark.sources.positions import Positions

CLOCK = SystemClock()
_LOG = logging.getLogger("semel")

KEPT = 8
MESSAGES_MAX = 10_000
POLL_S = 1.0
PATIENCE_S = 120.0
"""So long a range may bring nothing before it fails; Spark then tries the task again."""

CONFIG = {
    "group.id": "semel",
    "isolation.level": "read_committed",
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "32768",
    "fetch.queue.backoff.ms": "20",
    "fetch.wait.max.ms": "100",
    "max.poll.interval.ms": "86400000",
}
"""What the client does unless an option says otherwise; 32 MiB are fetched ahead."""

FIXED = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}

GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of a consumer that reads exact ranges."""
    return {**CONFIG, **kafka, **FIXED}


@dataclass
class Reader:
    """A consumer of one partition.

    Attributes:
        at: the position that it goes on from.
        end: an end of the log that it has reported; it reports one once, and has brought all
            records before it.
    """

    consumer: Any
    at: int = -1
    end: int = -1

    def seek(self, piece: Piece, at: int) -> None:
        """Go on from a position of a partition."""
        if self.at != at:
            partition = client_library().TopicPartition(piece.topic, piece.partition, at)
            self.consumer.assign([partition])
            self.at, self.end = at, -1


class Readers:
    """The consumers of this process that are not in use, by settings and partition."""

    def __init__(self) -> None:
        self._idle: OrderedDict[tuple[Any, ...], Reader] = OrderedDict()
        self._lock = threading.Lock()
        self._process = os.getpid()

    @contextmanager
    def use(
        self, kafka: tuple[tuple[str, str], ...], topic: str, partition: int
    ) -> Iterator[Reader]:
        """Give the consumer of a partition, and keep it afterwards if nothing failed."""
        key = (kafka, topic, partition)
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads, and so no consumers
                self._idle, self._process = OrderedDict(), os.getpid()
            reader = self._idle.pop(key, None)
        if reader is None:
            reader = Reader(_consumer(dict(kafka)))
        try:
            yield reader
        except BaseException:
            reader.consumer.close()
            raise
        left = []
        with self._lock:
            self._idle[key] = reader
            while len(self._idle) > KEPT:
                left.append(self._idle.popitem(last=False)[1])
        for each in left:
            each.consumer.close()


READERS = Readers()


def _consumer(kafka: Mapping[str, str]) -> Any:
    library = client_library()
    try:
        return library.Consumer({**client_config(kafka), "logger": ClientLog()})
    except (library.KafkaException, TypeError, ValueError) as error:
        raise no_such_config("semel.kafka", error) from None


def read_piece(
    kafka: tuple[tuple[str, str], ...],
    piece: Piece,
    schema: pa.Schema,
    *,
    headers: bool,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in their order. Raises `SemelError` if Kafka has lost some, or
    brings nothing.
    """
    with READERS.use(kafka, piece.topic, piece.partition) as reader:
        for messages in _messages(reader, piece, fail_on_data_loss=fail_on_data_loss):
            with without_gc():
                batch = to_batch(messages, piece, schema, headers=headers)
            yield batch


def _messages(reader: Reader, piece: Piece, *, fail_on_data_loss: bool) -> Iterator[list[Any]]:
    """Yield the messages of a range, many at a time."""
    where = f"semel.kafka: {piece.topic}/{piece.partition}"
    at, silent_since = piece.start, CLOCK.monotonic()
    while at < piece.stop:
        reader.seek(piece, at)
        if reader.end >= piece.stop:
            reader.at = piece.stop  # what is left are offsets without a record
            return
        with without_gc():
            got = reader.consumer.consume(min(MESSAGES_MAX, piece.stop - at), POLL_S)
            found = _Found.of(got)
        if found.lost is not None:
            at = _after_loss(reader, piece, at, found.lost, fail=fail_on_data_loss)
            continue
        if found.failure is not None:
            raise _failed(where, at, found.failure)
        got = found.messages
        if got:
            silent_since = CLOCK.monotonic()
            at = reader.at = got[-1].offset() + 1
            if at > piece.stop:
                got = [each for each in got if each.offset() < piece.stop]
        reader.end = max(reader.end, found.end)
        if got:
            yield got
        elif found.end < 0 and CLOCK.monotonic() - silent_since > PATIENCE_S:
            raise SemelError(
                f"{where}: Kafka brought nothing for {PATIENCE_S:g} s from offset {at:,}, and "
                f"{piece.stop:,} is not reached. Check the brokers; Spark tries the task again"
            )


@dataclass
class _Found:
    """What one call of the client brought: records, and what else it reported."""

    messages: list[Any]
    end: int = -1
    lost: Any = None
    failure: Any = None

    @classmethod
    def of(cls, got: list[Any]) -> _Found:
        errors = list(map(_message_type().error, got))
        if not any(errors):
            return cls(got)
        found = cls([each for each, error in zip(got, errors, strict=True) if error is None])
        for each, error in zip(got, errors, strict=True):
            if error is None:
                continue
            if error.name() == "_PARTITION_EOF":
                found.end = max(found.end, each.offset())
            elif error.name() in GONE:
                found.lost = error
            else:
                found.failure = error
        return found


def _after_loss(reader: Reader, piece: Piece, at: int, lost: Any, *, fail: bool) -> int:
    """Return where reading goes on after records that Kafka does not have any more."""
    partition = client_library().TopicPartition(piece.topic, piece.partition)
    low, high = reader.consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)
    text = data_loss(piece.topic, piece.partition, at, low, high)
    if fail:
        raise SemelError(f"{text} ({lost.name()})")
    _LOG.warning("%s", text)
    reader.at = -1
    return min(piece.stop, low) if low > at else piece.stop


def data_loss(topic: str, partition: int, at: int, low: int, high: int) -> str:
    """Return the message about records that are gone."""
    return (
        f"semel.kafka: {topic}/{partition} has no offset {at:,} any more: it has {low:,} to "
        f"{high:,}. Records were deleted before they were read (retention), or the topic was "
        "recreated. Restore them, or set failOnDataLoss=false to go on without them"
    )


def _failed(where: str, at: int, error: Any) -> SemelError:
    text = f"{where}: Kafka refused to be read at offset {at:,}: {plain_text(error.str())}"
    return SemelError(f"{text} ({error.name()})")


@contextmanager
def without_gc() -> Iterator[None]:
    """Keep Python from searching many new objects for cycles: they have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _message_type() -> Any:
    return client_library().Message


def to_batch(
    messages: list[Any], piece: Piece, schema: pa.Schema, *, headers: bool
) -> pa.RecordBatch:
    """Return messages as columns: no Python code runs for each of them."""
    kind, count = _message_type(), len(messages)
    offsets = np.fromiter(map(kind.offset, messages), np.int64, count)
    stamps = list(map(kind.timestamp, messages))
    millis = np.fromiter(map(itemgetter(1), stamps), np.int64, count)
    kinds = np.fromiter(map(itemgetter(0), stamps), np.int32, count)
    columns: dict[str, Any] = {
        "key": pa.array(list(map(kind.key, messages)), pa.binary()),
        "value": pa.array(list(map(kind.value, messages)), pa.binary()),
        "topic": pa.repeat(piece.topic, count),
        "partition": pa.array(np.full(count, piece.partition, np.int32)),
        "offset": pa.array(offsets),
        "timestamp": pa.array(millis * 1000).cast(schema.field("timestamp").type),
        "timestampType": pa.array(kinds - 1),
        "marker": marker_column(offsets, piece.cuts),
    }
    if headers:
        columns["headers"] = pa.array(list(map(_headers, messages)), schema.field("headers").type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _headers(message: Any) -> list[dict[str, Any]] | None:
    found = message.headers()
    return None if not found else [{"key": key, "value": value} for key, value in found]


def marker_column(
    offsets: np.ndarray[Any, Any], cuts: tuple[tuple[int, int | None], ...]
) -> pa.Array:
    """Return for each offset the number of the marker that ends it."""
    numbers = pa.array([number for _, number in cuts], pa.int64())
    if len(cuts) == 1:
        return pa.repeat(numbers[0], len(offsets))
    stops = np.array([stop for stop, _ in cuts], np.int64)
    return numbers.take(pa.array(np.searchsorted(stops, offsets, side="right")))


SAMPLE_RECORDS = 100
SAMPLE_PARTITIONS = 4


def sample_bytes(kafka: tuple[tuple[str, str], ...], start: Positions, end: Positions) -> float:
    """Return the mean size of key and value of the first records in a range; 0 if it has none."""
    size = records = 0
    for place in [place for place, stop in sorted(end.items()) if start.get(place, stop) < stop][
        :SAMPLE_PARTITIONS
    ]:
        stop = min(end[place], start[place] + SAMPLE_RECORDS)
        piece = Piece(*place, start[place], stop, ((stop, None),))
        with READERS.use(kafka, *place) as reader:
            for messages in _messages(reader, piece, fail_on_data_loss=True):
                kind = _message_type()
                parts = [*map(kind.key, messages), *map(kind.value, messages)]
                size += sum(len(each) for each in parts if each is not None)
                records += len(messages)
    return size / records if records else 0.0
