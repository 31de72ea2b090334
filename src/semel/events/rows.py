"""Events as columns: a run of rows in their partition's order, and the chunks it is cut into.

- Every row has a scope and an id; the scope is the text within which the id is unique. An id is an
  integer, a text, or a tuple of those; all ids of a pipeline have one shape.
- `positions` are places in the partition's order: contiguous as stamped, with gaps after `take`.
- A slice copies nothing. A row becomes a Python object only when its value is requested.
- A chunk is a range [start, stop) of its partition's order, without the parked rows: the events of
  one call, one transaction or one window. The OSN of the event at position p is `osn_base + p`, in
  every chunk and whatever is missing.
- An event's key is its prefix, scope and id: the same on every replay, and never another event's.
- Attempts are totally ordered: a later run fences an earlier one; within a run, Spark's own task
  attempt id decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.events import columns
from semel.events.encoding.python_values import CANNOT, value_error
from semel.events.event import Event
from semel.events.ids import membership
from semel.events.ids.id_columns import Labels
from semel.events.ids.id_set import INTEGER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.events.event import EntityID, EventID
    from semel.events.ids.ids_by_entity import EntityIds

_UNSAFE = re.compile("[%/,\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Events of one partition: the user's columns, and the identity of each row.

    `ids` is one array per part of the id, int64 or string. `order` is the partition's sort key, one
    array per part; if it is empty, the key is (scope, id).
    """

    batch: pa.RecordBatch
    positions: NDArray[np.int64]
    scopes: Labels
    entities: Labels | None
    ids: tuple[pa.Array, ...]
    order: tuple[pa.Array, ...] = ()
    _sets: EntityIds | None = field(default=None, init=False, repr=False)

    @classmethod
    def concat(cls, runs: Sequence[Rows]) -> Rows:
        """Concatenate runs, which come from one stamper."""
        if not runs:
            raise ValueError("there are no rows to put together")
        if len(runs) == 1:
            return runs[0]
        scopes = Labels.concat([run.scopes for run in runs])
        entities: Labels | None = scopes
        if any(run.entities is not run.scopes for run in runs):
            named = [run.entities for run in runs if run.entities is not None]
            entities = Labels.concat(named) if named else None
        return cls(
            columns.put_together([run.batch for run in runs]),
            np.concatenate([run.positions for run in runs]),
            scopes,
            entities,
            _concat_parts([run.ids for run in runs]),
            _concat_parts([run.order for run in runs]),
        )

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def ordered(self) -> bool:
        """Whether there is an entity to order by."""
        return self.entities is not None

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows [start, stop), counted from the first of these; nothing is copied."""
        stop = min(stop, len(self))
        if start == 0 and stop == len(self):
            return self
        count = max(stop - start, 0)
        scopes = self.scopes.slice(start, start + count)
        return Rows(
            self.batch.slice(start, count),
            self.positions[start : start + count],
            scopes,
            self._entities(scopes, lambda labels: labels.slice(start, start + count)),
            tuple(part.slice(start, count) for part in self.ids),
            tuple(part.slice(start, count) for part in self.order),
        )

    def take(self, mask: NDArray[np.bool_]) -> Rows:
        """Return the rows where the mask is true; they keep their positions."""
        if mask.all():
            return self
        chosen = pa.array(mask)
        scopes = self.scopes.take(mask)
        return Rows(
            self.batch.filter(chosen),
            self.positions[mask],
            scopes,
            self._entities(scopes, lambda labels: labels.take(mask)),
            tuple(part.filter(chosen) for part in self.ids),
            tuple(part.filter(chosen) for part in self.order),
        )

    def ranges(self, size: int) -> list[tuple[int, int]]:
        """Return the ranges of positions of the chunks of `size` into which the rows are cut."""
        start = int(self.positions[0])
        return cuts(start, start + len(self), size)

    def renumber(self, start: int) -> Rows:
        """Return the same rows at the positions start, start + 1, ..."""
        made = replace(self, positions=np.arange(start, start + len(self), dtype=np.int64))
        object.__setattr__(made, "_sets", self._sets)
        return made

    def scope(self, row: int) -> str:
        """Return the text within which the row's id is unique."""
        return self.scopes[row]

    def entity(self, row: int) -> EntityID:
        """Return the row's entity, or its scope if no entity is named."""
        return (self.scopes if self.entities is None else self.entities)[row]

    def id(self, row: int) -> EventID:
        """Return the row's event id."""
        parts = tuple(part[row].as_py() for part in self.ids)
        return cast("EventID", parts[0] if len(parts) == 1 else parts)

    def sort_key(self, row: int) -> list[Any]:
        """Return the row's sort key in its partition, as JSON that compares like the order."""
        if self.order:
            return [_plain(part[row].as_py()) for part in self.order]
        return [self.scope(row), *(part[row].as_py() for part in self.ids)]

    def ends(self, after: Sequence[list[Any]] = ()) -> list[list[Any]]:
        """Return the sort keys of the first and of the last row; `after` are those of the rows
        before, which end with these.
        """
        first = after[0] if after else self.sort_key(0)
        return [first, self.sort_key(len(self) - 1)]

    def id_sets(self) -> EntityIds:
        """Return the ids of these rows by scope."""
        found = self._sets
        if found is None:
            found = membership.id_sets(self.scopes, self.ids)
            object.__setattr__(self, "_sets", found)  # the span and the watermark both use it
        return found

    def id_sets_of(self, ranges: Sequence[tuple[int, int]]) -> tuple[EntityIds, ...]:
        """Return the ids of each range of positions by scope; the rows must be contiguous."""
        first = int(self.positions[0])
        return tuple(self.slice(start - first, stop - first).id_sets() for start, stop in ranges)

    def last_ids(self) -> dict[str, EventID]:
        """Return the greatest id of each scope among these rows."""
        return membership.last_ids(self.scopes, self.ids)

    def last_id_sets(self) -> EntityIds:
        """Return the greatest id of each scope among these rows, as sets of one id."""
        return membership.last_id_sets(self.scopes, self.ids)

    def contained_in(self, ids: EntityIds) -> NDArray[np.bool_]:
        """Return a mask of the rows whose id is in `ids`."""
        return membership.contained_in(self.scopes, self.ids, ids)

    def at_most(self, last: Mapping[str, EventID]) -> NDArray[np.bool_]:
        """Return a mask of the rows whose id is not greater than that of their scope in `last`."""
        return membership.at_most(self.scopes, self.ids, last)

    def all_after(self, id: int) -> bool:  # noqa: A002 - the term of the design
        """Return whether the ids are integers and each is greater than `id`; so they are never
        compared with an id of another shape.
        """
        return membership.shape(self.ids) == INTEGER and bool((self.ids[0].to_numpy() > id).all())

    def of_entities(self, entities: AbstractSet[str]) -> NDArray[np.bool_]:
        """Return a mask of the rows of these entities."""
        return (self.scopes if self.entities is None else self.entities).where(
            entities.__contains__
        )

    def value(self, row: int) -> dict[str, Any]:
        """Return the user's columns of one row as Python values; see `values`."""
        return self.slice(row, row + 1).values()[0]

    def values(self) -> list[dict[str, Any]]:
        """Return the user's columns of every row as Python values.

        Raises `ConfigurationError` for a value that Python cannot hold.
        """
        try:
            return cast("list[dict[str, Any]]", self.batch.to_pylist())
        except CANNOT as error:
            raise value_error(self) from error

    def require_python_values(self) -> None:
        """Raise `ConfigurationError` for the first value that Python cannot hold."""
        if not all(map(_is_python, self.batch.columns)):
            try:
                self.batch.to_pylist()
            except CANNOT as error:
                raise value_error(self, "; nothing of these rows was sent") from error

    def all_ids(self) -> list[EventID]:
        """Return the event id of every row."""
        parts = [part.to_pylist() for part in self.ids]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))

    def id_texts(self) -> pa.Array:
        """Return every row's event id as one column: a single part unchanged, several as `7,a`.

        Within a text part of several, `,` is `\\,` and `\\` is `\\\\`, so that no two ids have the
        same text.
        """
        return columns.joined(self.ids)

    def _entities(self, scopes: Labels, cut: Any) -> Labels | None:
        if self.entities is self.scopes:
            return scopes
        return None if self.entities is None else cast("Labels", cut(self.entities))


def _plain(value: Any) -> Any:
    """Return a value of a sort key as JSON, ordered like the values of its column."""
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        return (-1 if sign else 1) * int("".join(map(str, digits)) or "0")
    if isinstance(value, bytes):
        return value.hex()
    return value


def _concat_parts(runs: list[tuple[pa.Array, ...]]) -> tuple[pa.Array, ...]:
    return tuple(pa.concat_arrays(list(parts)) for parts in zip(*runs, strict=True))


# -- values that Python can hold

DAY_S = 86_400
FIRST_S = -62_135_596_800 + 2 * DAY_S
LAST_S = 253_402_300_799 - 2 * DAY_S
"""Two days within the years 1 and 9999: inside them every zone has a Python value."""

UNITS = {"s": 1, "ms": 10**3, "us": 10**6}


def _is_python(array: pa.Array) -> bool:
    """Return whether Python can certainly hold every value of a column; only bounds are checked."""
    kind = array.type
    if _is_plain(kind):
        return True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _is_valid(array)
    if pa.types.is_date32(kind):
        return _is_within(array.cast(pa.int32()), FIRST_S // DAY_S, LAST_S // DAY_S)
    if pa.types.is_timestamp(kind) and kind.unit in UNITS:
        unit = UNITS[kind.unit]
        return _is_within(array.cast(pa.int64()), FIRST_S * unit, LAST_S * unit)
    inner = _inner(array)
    return inner is not None and all(map(_is_python, inner))


def _inner(array: pa.Array) -> list[pa.Array] | None:
    """Return the child arrays of a struct or a list; None for any other type."""
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return [array.flatten()]
    return None


def _is_plain(kind: pa.DataType) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_number or is_bytes or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_within(numbers: pa.Array, least: int, greatest: int) -> bool:
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (found["min"] >= least and found["max"] <= greatest)


# -- chunks


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows that are delivered together, with their keys and numbers."""

    rows: Rows
    start: int
    stop: int
    key: str
    osn_base: int
    prefix: str

    def __len__(self) -> int:
        return len(self.rows)

    def osns(self) -> NDArray[np.int64]:
        """Return the output sequence number of each row."""
        return self.rows.positions + self.osn_base

    def event_key(self, row: int) -> str:
        """Return the stable key of one row's event."""
        return f"{self.prefix}{key_part(self.rows.scope(row))}/{id_text(self.rows.id(row))}"

    def event(self, row: int) -> Event:
        """Return one row as a row-based sink receives it."""
        return Event(
            entity=self.rows.entity(row),
            id=self.rows.id(row),
            osn=self.osn_base + int(self.rows.positions[row]),
            key=self.event_key(row),
            value=self.rows.value(row),
        )

    def event_keys(self) -> list[str]:
        """Return the stable key of every row's event."""
        return self._keys(self.rows.scopes.to_list())

    def _keys(self, scopes: list[str]) -> list[str]:
        starts = {scope: f"{self.prefix}{key_part(scope)}/" for scope in set(scopes)}
        ids = self.rows.all_ids()
        return [starts[scope] + id_text(id_) for scope, id_ in zip(scopes, ids, strict=True)]

    def events(self) -> list[Event]:
        """Return every row as a row-based sink receives it."""
        rows, scopes = self.rows, self.rows.scopes.to_list()
        if rows.entities is None or rows.entities is rows.scopes:
            entities = scopes
        else:
            entities = rows.entities.to_list()
        osns, keys = self.osns().tolist(), self._keys(scopes)
        columns = zip(entities, rows.all_ids(), osns, keys, rows.values(), strict=True)
        return [Event(*each) for each in columns]


def cuts(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Split [start, stop) into contiguous ranges of `size`; the last may be shorter."""
    if size < 1:
        raise ValueError(f"a chunk must have at least 1 event, got {size}")
    return list(pairwise([*range(start, stop, size), stop])) if start < stop else []


def chunk_key(
    pipeline: str,
    sink: str,
    minibatch: str,
    partition: str,
    span: int,
    place: tuple[int, int],
) -> str:
    """Return the stable key of a chunk. The span is part of it: a range that is recorded again,
    because some of its events have been handled since, is another chunk.
    """
    names = f"{key_prefix(pipeline, sink)}{minibatch}/{key_part(partition)}"
    return f"{names}/{span}/{place[0]}-{place[1]}"


def key_prefix(pipeline: str, sink: str) -> str:
    """Return how the keys of a sink's events and chunks begin."""
    return f"{key_part(pipeline)}/{key_part(sink)}/"


def key_part(text: str) -> str:
    """Return the text with separators, `%` and control characters written as %XX."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def id_text(id: EventID) -> str:  # noqa: A002 - the term of the design
    """Return an id as part of a key: 7 for the integer, =7 for the text, 7,=a for the tuple."""
    if isinstance(id, int):
        return str(id)
    if isinstance(id, str):
        return "=" + key_part(id)
    return ",".join(map(id_text, id)) + ("," if len(id) == 1 else "")
