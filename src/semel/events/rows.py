"""A run of events in their partition's order, as columns.

- Every row has a scope and an id; the scope is the text within which the id is unique.
- `positions` are places in the partition's order: contiguous as stamped, with gaps after `take`.
- A slice copies nothing. A row becomes a Python object only when its value is requested.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from semel.events import columns
from semel.events.encoding import python_values
from semel.events.encoding.dictionary_column import Labels
from semel.events.ids import membership
from semel.events.ids.id_set import INTEGER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.events.event import EntityID, EventID
    from semel.events.ids.ids_by_entity import EntityIds


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
            return [columns.plain(part[row].as_py()) for part in self.order]
        return [self.scope(row), *(part[row].as_py() for part in self.ids)]

    def id_sets(self) -> EntityIds:
        """Return the ids of these rows by scope."""
        found = self._sets
        if found is None:
            found = membership.id_sets(self.scopes, self.ids)
            object.__setattr__(self, "_sets", found)  # the span and the watermark both use it
        return found

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
        except python_values.CANNOT as error:
            raise python_values.refusal(self) from error

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


def _concat_parts(runs: list[tuple[pa.Array, ...]]) -> tuple[pa.Array, ...]:
    return tuple(pa.concat_arrays(list(parts)) for parts in zip(*runs, strict=True))
