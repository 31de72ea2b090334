"""Groups of events as the inbox keeps them: Arrow columns in one text, and back into tables.

Always true:
- `unpack` returns what `pack` was given, or raises: a group carries a CRC-32;
- the columns of a group are those of `INBOX_SCHEMA` without topic, partition, offset and timestamp,
  which follow from where it is kept and when.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from semel.ledger import InboxGroupRow, group_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.streams.new_event import Prepared

_TIME = pa.timestamp("us", tz="UTC")
_ATTRIBUTES = pa.map_(pa.string(), pa.string())

_FIELDS: list[Any] = [
    pa.field("entity", pa.string(), nullable=False),
    pa.field("event", pa.int64(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("id", pa.string()),
    pa.field("type", pa.string(), nullable=False),
    pa.field("subject", pa.string()),
    pa.field("time", _TIME),
    pa.field("content_type", pa.string(), nullable=False),
    pa.field("value", pa.binary(), nullable=False),
    pa.field("attributes", _ATTRIBUTES, nullable=False),
]
_GROUP_SCHEMA = pa.schema(_FIELDS)
_IDS_SCHEMA = pa.schema(
    [pa.field("source", pa.string(), nullable=False), pa.field("id", pa.string())]
)

INBOX_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        *_FIELDS,
        pa.field("timestamp", _TIME, nullable=False),
    ]
)
"""The columns of `Inbox.read`: those of Spark's Kafka source, and those of CloudEvents."""

GROUP_EVENTS_MAX = 10_000
GROUP_BYTES_MAX = 4 * 1024 * 1024
"""The most events of a group, and the most bytes of their data (if there are several)."""

COMPRESSED_BYTES_MIN = 2048
_CODEC = "lz4_raw"


class Numbered(NamedTuple):
    """An event with the id that this commit gives it."""

    event: Prepared
    number: int


def pack(events: Sequence[Numbered], time_us: int, token: str) -> str:
    """Return the payload of a group."""
    news = [each.event.new for each in events]
    count = len(news)
    times = [each.event.time_us for each in events]
    columns = [
        pa.array([each.event.entity for each in events], pa.string()),
        pa.array([each.number for each in events], pa.int64()),
        pa.array([new.source for new in news], pa.string()),
        pa.array([new.id for new in news], pa.string()),
        pa.array([new.type for new in news], pa.string()),
        pa.array([new.subject for new in news], pa.string()),
        pa.array(times, pa.int64()).cast(_TIME)
        if any(each is not None for each in times)
        else pa.nulls(count, _TIME),
        pa.array([new.content_type for new in news], pa.string()),
        pa.array([new.value for new in news], pa.binary()),
        _attributes([new.attributes for new in news]),
    ]
    content, size, crc = _packed(pa.record_batch(columns, schema=_GROUP_SCHEMA))
    return group_text(content, count, crc, size, time_us, token)


def _attributes(maps: list[Any]) -> Any:
    if any(maps):
        return pa.array([sorted(each.items()) for each in maps], _ATTRIBUTES)
    offsets = pa.array(np.zeros(len(maps) + 1, np.int32))
    return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))


def _packed(batch: Any) -> tuple[str, int, int]:
    """Return the text of columns, their size if they are compressed, and a checksum."""
    content = batch.serialize()
    size = 0
    if len(content) >= COMPRESSED_BYTES_MIN:
        size = len(content)
        content = pa.compress(content, codec=_CODEC)
    return base64.b64encode(content).decode("ascii"), size, crc32(content)


def unpack(row: InboxGroupRow) -> Any:
    """Return the columns of a group, as a record batch. Raises ValueError or an error of Arrow."""
    content: Any = base64.b64decode(row.content)
    if crc32(content) != row.crc:
        raise ValueError("the checksum does not agree with the content")
    if row.bytes:
        content = pa.decompress(content, row.bytes, codec=_CODEC)
    schema = _IDS_SCHEMA if row.pruned else _GROUP_SCHEMA
    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    if batch.num_rows != row.count:
        raise ValueError("the number of events does not agree with the field 'count'")
    return batch


def ids_of(row: InboxGroupRow) -> list[tuple[str, str]]:
    """Return source and id of the events of a group that have one."""
    batch = unpack(row)
    pairs = zip(batch["source"].to_pylist(), batch["id"].to_pylist(), strict=True)
    return [(source, id_) for source, id_ in pairs if id_ is not None]


def without_events(row: InboxGroupRow) -> InboxGroupRow:
    """Return a group with nothing left but the ids of its events."""
    content, size, crc = _packed(unpack(row).select(_IDS_SCHEMA.names))
    return replace(row, content=content, bytes=size, crc=crc, pruned=True)


def table(stream: str, partition: int, first: int, groups: list[tuple[Any, int]]) -> Any:
    """Return events from the offset `first` on, from batches and the times of their storing."""
    batches = [batch for batch, _ in groups]
    made = pa.Table.from_batches(batches, _GROUP_SCHEMA)
    count = made.num_rows
    times = np.repeat(
        np.array([time_us for _, time_us in groups], np.int64),
        np.array([batch.num_rows for batch in batches], np.int64),
    )
    return pa.table(
        [
            pa.repeat(pa.scalar(stream, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(np.arange(first, first + count, dtype=np.int64)),
            *made.columns,
            pa.array(times).cast(_TIME),
        ],
        schema=INBOX_SCHEMA,
    )
