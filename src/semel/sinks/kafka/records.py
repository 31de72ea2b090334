"""A chunk as Kafka records: topics, keys, values and headers made of columns, not row by row.

Always true: what Kafka would refuse for its form - a size, a name, a number of a partition - is
found here, before anything is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError, Rejected
from semel.events import is_text
from semel.events.encoding import CANNOT, ascii_json, json_column, json_text, value_error
from semel.sinks.validation import no_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from semel.events import Chunk, Rows

STAMPS = ("osn", "entity", "event", "pipeline")
"""The headers that semel can write: `semel-osn`, ..."""

BYTES_MAX = 1_000_000
"""librdkafka's own limit of a record, if neither the topic nor `message.max.bytes` sets another."""

OVERHEAD_MAX = 100
"""The most bytes of a record besides its key, its value and its headers."""

RUN_ROWS = 1_000
"""So many records are Python's at a time."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows become records: which column is what. None: the entity is the key, JSON of all
    columns is the value, the topic is the sink's, the key decides on the partition.
    """

    key: str | None = None
    value: str | None = None
    topic: str | None = None
    partition: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    stamps: tuple[str, ...] = STAMPS


@dataclass(slots=True)
class Records:
    """The records of a chunk, as columns of equal length; None where all are alike.

    Headers are columns too: those that all records have, those with a value for each, and those
    that only the last one has.
    """

    keys: pa.Array | None
    values: pa.Array
    topics: list[str] | None
    partitions: list[int] | None
    constant: list[tuple[str, bytes | None]]
    named: list[tuple[str, pa.Array]]
    weights: Any
    last: list[tuple[str, bytes | None]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def runs(self) -> Iterator[Records]:
        """The same records, some at a time: few enough that what Python makes of them is gone
        before more is made.
        """
        count = len(self)
        for start in range(0, count, RUN_ROWS):
            stop = start + RUN_ROWS
            yield Records(
                keys=None if self.keys is None else self.keys[start:stop],
                values=self.values[start:stop],
                topics=None if self.topics is None else self.topics[start:stop],
                partitions=None if self.partitions is None else self.partitions[start:stop],
                constant=self.constant,
                named=[(name, array[start:stop]) for name, array in self.named],
                weights=self.weights[start:stop],
                last=self.last if stop >= count else [],
            )

    @property
    def bare(self) -> bool:
        """Whether no record has a header."""
        return not (self.constant or self.named or self.last)

    def headers(self) -> Iterator[list[tuple[str, bytes | None]]]:
        """The headers of each record; made one by one, because so many small objects that live on
        keep Python's garbage collector busy.
        """
        count = len(self)
        same = [repeat(each, count) for each in self.constant]
        columns = [
            zip(repeat(name, count), found.to_pylist(), strict=True) for name, found in self.named
        ]
        made = map(list, zip(*same, *columns, strict=True)) if same or columns else _empty(count)
        if not self.last:
            return made
        return chain(islice(made, count - 1), ([*each, *self.last] for each in made))

    def heaviest(self) -> int:
        """How many bytes the largest record may weigh."""
        return int(self.weights.max()) + OVERHEAD_MAX if len(self.weights) else 0


def records_of(chunk: Chunk, shape: Shape, pipeline: str) -> Records:
    """Make the records. Raises `ConfigurationError` for columns that cannot be used so, `Rejected`
    for a chunk in which an event has no place to go.
    """
    rows = chunk.rows
    keys = _keys(rows, shape)
    bodies = _json(rows) if shape.value is None else _bytes(rows, shape.value, "value")
    named = [*_stamped(chunk, shape.stamps), *_chosen(rows, shape.headers)]
    weights = np.zeros(len(rows), np.int64)
    for name, array in [("", keys), ("", bodies), *named]:
        if array is not None:
            weights += _lengths(array) + 2 * len(name)
    constant: list[tuple[str, bytes | None]] = []
    if "pipeline" in shape.stamps:
        constant.append(("semel-pipeline", pipeline.encode()))
    return Records(
        keys=keys,
        values=bodies,
        topics=_topics(rows, shape.topic),
        partitions=_partitions(rows, shape.partition),
        constant=constant,
        named=named,
        weights=weights + sum(len(name) + len(text or b"") for name, text in constant),
    )


def refuse_columns(schema: pa.Schema, shape: Shape) -> None:
    """Raise `ConfigurationError` for a column that is not there, or cannot be what it is to be."""
    roles = [("key", shape.key), ("value", shape.value)]
    roles += [(f"header {name!r}", column) for name, column in shape.headers]
    for role, name in [*roles, ("topic", shape.topic), ("partition", shape.partition)]:
        if name is None:
            continue
        if name not in schema.names:
            raise no_column(f"the {role}", name, schema.names)
        kind = schema.field(name).type
        if role == "topic":
            _require_topic(kind, name)
        elif role == "partition":
            _require_partition(kind, name)
        else:
            _require_writable(kind, name, role)


def _keys(rows: Rows, shape: Shape) -> pa.Array | None:
    if shape.key is not None:
        return _bytes(rows, shape.key, "key")
    return None if rows.entities is None else _entities(rows)


def _entities(rows: Rows) -> pa.Array:
    labels = rows.scopes if rows.entities is None else rows.entities
    return labels.names.array.take(pa.array(labels.codes)).cast(pa.binary())


def _empty(count: int) -> Iterator[list[tuple[str, bytes | None]]]:
    return ([] for _ in range(count))


def _stamped(chunk: Chunk, stamps: Iterable[str]) -> list[tuple[str, pa.Array]]:
    made: list[tuple[str, pa.Array]] = []
    for stamp in stamps:
        if stamp == "osn":
            made.append(("semel-osn", _texts(pa.array(chunk.osns()))))
        elif stamp == "entity":
            made.append(("semel-entity", _entities(chunk.rows)))
        elif stamp == "event":
            made.append(("semel-event", _ids(chunk.rows)))
    return made


def _ids(rows: Rows) -> pa.Array:
    """The ids as JSON: 7, "a" or [7, "a"]; so 7 is not the text "7"."""
    if len(rows.ids) == 1 and pa.types.is_integer(rows.ids[0].type):
        return _texts(rows.ids[0])
    return pa.array([ascii_json(each).encode() for each in rows.all_ids()], pa.binary())


def _chosen(rows: Rows, headers: Iterable[tuple[str, str]]) -> list[tuple[str, pa.Array]]:
    return [(name, _bytes(rows, column, f"header {name!r}")) for name, column in headers]


def _column(rows: Rows, name: str, role: str) -> pa.Array:
    if name not in rows.batch.schema.names:
        raise ConfigurationError(
            f"the column {name!r} for the {role} does not exist; there are "
            f"{', '.join(rows.batch.schema.names)}"
        )
    return rows.batch.column(name)


def _bytes(rows: Rows, name: str, role: str) -> pa.Array:
    """A column as bytes: text as UTF-8, integers and booleans as text."""
    array = _column(rows, name, role)
    _require_writable(array.type, name, role)
    kind = array.type
    return array if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else _texts(array)


def _require_writable(kind: pa.DataType, name: str, role: str) -> None:
    types = pa.types
    writable = (is_text, types.is_binary, types.is_large_binary, types.is_integer, types.is_boolean)
    if not any(fits(kind) for fits in writable):
        raise ConfigurationError(
            f"column {name!r} is {kind}; the {role} must be text, binary, an integer or a boolean: "
            f"cast({name} as string)"
        )


def _texts(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()).cast(pa.binary())


def _lengths(array: pa.Array) -> Any:
    return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)


def _topics(rows: Rows, name: str | None) -> list[str] | None:
    """The topic of each row. A name that no topic can have rejects the chunk."""
    if name is None:
        return None
    array = _column(rows, name, "topic")
    _require_topic(array.type, name)
    topics: list[str | None] = array.to_pylist()
    for topic in set(topics):
        if topic is None or not _TOPIC.fullmatch(topic) or topic.startswith(("__", ".")):
            raise Rejected(f"{topic!r} in column {name!r} is not a valid topic name")
    return [topic for topic in topics if topic is not None]


def _require_topic(kind: pa.DataType, name: str) -> None:
    if not is_text(kind):
        raise ConfigurationError(f"column {name!r} is {kind}; a topic name must be text")


def _require_partition(kind: pa.DataType, name: str) -> None:
    if not pa.types.is_integer(kind):
        raise ConfigurationError(f"column {name!r} is {kind}; a partition must be an integer")


def _partitions(rows: Rows, name: str | None) -> list[int] | None:
    """The partition of each row. A null or a negative number rejects the chunk."""
    if name is None:
        return None
    array = _column(rows, name, "partition")
    _require_partition(array.type, name)
    if array.null_count or (len(array) and pc.min(array).as_py() < 0):
        raise Rejected(
            f"column {name!r} is null or negative; a partition is a number of at least 0"
        )
    found: list[int] = array.to_pylist()
    return found


# -- JSON


def _json(rows: Rows) -> pa.Array:
    """All columns of each row as one JSON object, in UTF-8."""
    names = rows.batch.schema.names
    if not names:
        return pa.array([b"{}"] * len(rows), pa.binary())
    parts: list[Any] = []
    for at, name in enumerate(names):
        head = ("{" if at == 0 else ",") + json_text(name) + ":"
        try:
            text = json_column(rows.batch.column(at))
        except CANNOT as error:
            raise value_error(rows) from error
        parts += [head, pc.fill_null(text, "null")]
    return pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def mapping_of(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The user's headers in one order. Raises `ConfigurationError` for names that are semel's."""
    for name, column in headers.items():
        if not isinstance(name, str) or not isinstance(column, str):
            raise ConfigurationError("each header names a column: headers={'trace': 'trace_id'}")
        if name.lower().startswith("semel-"):
            raise ConfigurationError(
                f"header {name!r}: names that begin with semel- are reserved for semel"
            )
    return tuple(sorted(headers.items()))
