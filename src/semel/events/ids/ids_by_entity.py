"""Sets of event ids by scope: the events that a span, a watermark or a destination has handled.

- If the ids of all scopes are integers, or all texts, they are stored as columns, and single sets
  are made only on request.
- Sets are immutable, and equal ones have one JSON text, however they were made.
- Arrow and NumPy are loaded with the first set that has columns, and not with this module.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

from semel.events.encoding.canonical_json import PreEncoded, canonical
from semel.events.ids.id_set import IdSet

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from semel.events.event import EventID
    from semel.events.ids.id_columns import IdColumns

GATHERED_MAX = 32
"""So many parts of a growing union are kept side by side before they become one."""


class EntityIds:
    """An immutable {scope: set of event ids}; a scope without ids is not in it."""

    __slots__ = ("_columns", "_made", "_places", "_written")

    EMPTY: ClassVar[EntityIds]

    def __init__(self, sets: dict[str, IdSet] | None, columns: IdColumns | None = None) -> None:
        """Assumes that one of the two is given, that no set is empty and that the dictionary is not
        shared; `of` does not.
        """
        self._made = sets
        self._columns = columns
        self._places: dict[str, int] | None = None
        self._written: PreEncoded | None = None

    @classmethod
    def of(cls, sets: Mapping[str, Iterable[EventID]]) -> EntityIds:
        """Return these sets by scope; any iterable of ids is accepted as a set."""
        return cls({scope: kept for scope, ids in sets.items() if (kept := IdSet.of(ids))})

    @classmethod
    def union(cls, parts: Iterable[EntityIds]) -> EntityIds:
        """Return every id that is in any part. Collect the parts first and call this once."""
        some = [part for part in parts if part]
        if len(some) < 2:
            return some[0] if some else cls.EMPTY
        columns = [part.columns for part in some if part.columns is not None]
        if len(columns) == len(some) and len({each.shape for each in columns}) == 1:
            return cls(None, type(columns[0]).union(columns))
        united: dict[str, IdSet] = {}
        for part in some:
            for scope, ids in part.items():
                mine = united.get(scope)
                united[scope] = ids if mine is None else mine | ids
        return cls(united)

    @property
    def _sets(self) -> dict[str, IdSet]:
        if self._made is None:
            self._made = {} if self._columns is None else self._columns.sets()
        return self._made

    @property
    def columns(self) -> IdColumns | None:
        """The sets as columns, if they are stored as columns."""
        return self._columns

    def places_of(self, scopes: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each scope in the columns, -1 for one that is not there."""
        import numpy as np

        if self._places is None:
            names = [] if self._columns is None else self._columns.names.to_pylist()
            self._places = dict(zip(names, range(len(names)), strict=True))
        return np.fromiter(map(self._places.get, scopes, repeat(-1)), np.int64, len(scopes))

    def contains(self, scope: str, id: EventID) -> bool:  # noqa: A002 - the term of the design
        """Return whether this id of this scope is in the set."""
        return id in self._sets.get(scope, IdSet.EMPTY)

    def get(self, scope: str) -> IdSet:
        """Return the ids of this scope, possibly none."""
        return self._sets.get(scope, IdSet.EMPTY)

    def items(self) -> ItemsView[str, IdSet]:
        """Return the scopes that have ids, with their ids."""
        return self._sets.items()

    def scopes(self) -> KeysView[str]:
        """Return the scopes that have ids."""
        return self._sets.keys()

    def __len__(self) -> int:
        return sum(map(len, self._sets.values())) if self._columns is None else len(self._columns)

    def __bool__(self) -> bool:
        return self._columns is not None or bool(self._made)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntityIds):
            return NotImplemented
        if self._columns is not None and other._columns is not None:
            return self._columns.equals(other._columns)
        return self._sets == other._sets

    def __hash__(self) -> int:
        return hash(frozenset(self._sets.items()))

    def __repr__(self) -> str:
        return f"EntityIds({self.to_json()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return EntityIds, (self._made if self._columns is None else None, self._columns)

    def __or__(self, other: EntityIds) -> EntityIds:
        return EntityIds.union((self, other))

    def __sub__(self, other: EntityIds) -> EntityIds:
        return EntityIds.of(
            {
                scope: ids - other._sets[scope] if scope in other._sets else ids
                for scope, ids in self._sets.items()
            }
        )

    def __and__(self, other: EntityIds) -> EntityIds:
        both = self._sets.keys() & other._sets.keys()
        return EntityIds.of({scope: self._sets[scope] & other._sets[scope] for scope in both})

    def isdisjoint(self, other: EntityIds) -> bool:
        """Return whether no id of any scope is in both."""
        both = self._sets.keys() & other._sets.keys()
        return all(self._sets[scope].isdisjoint(other._sets[scope]) for scope in both)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of every set, sorted by scope."""
        return {scope: self._sets[scope].to_json() for scope in sorted(self._sets)}

    def written(self) -> PreEncoded:
        """Return the canonical text of `to_json`, packed if there are many ids."""
        if self._written is None:
            if self._columns is None:
                self._written = PreEncoded(canonical(self.to_json()).encode())
            else:
                self._written = self._columns.written()
        return self._written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EntityIds:
        """Read the output of `to_json` or `written`. Raises ValueError for anything else."""
        from semel.events.ids.id_columns import IdColumns

        columns = IdColumns.from_json(value)
        if columns is not None:
            return cls(None, columns)
        return cls.of({scope: IdSet.from_json(ids) for scope, ids in value.items()})


EntityIds.EMPTY = EntityIds.of({})


def unpacked(value: Any) -> Any:
    """Return the same JSON with every packed set in it written out, for display."""
    if isinstance(value, list):
        return [unpacked(each) for each in value]
    if not isinstance(value, dict):
        return value
    from semel.events.ids.packing import is_packed

    if is_packed(value):
        return EntityIds.from_json(value).to_json()
    return {name: unpacked(each) for name, each in value.items()}


class Gathered:
    """A growing union: parts are collected, and united many at a time."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[list[EntityIds]] = []

    def add(self, ids: EntityIds) -> None:
        """Add these ids; with n parts, each part is united O(log n) times."""
        for level in self._levels:
            level.append(ids)
            if len(level) < GATHERED_MAX:
                return
            ids = EntityIds.union(level)
            level.clear()
        self._levels.append([ids])

    def __bool__(self) -> bool:
        return any(self._parts())

    def ids(self) -> EntityIds:
        """Return every id that was added."""
        return EntityIds.union(self._parts())

    def written(self) -> PreEncoded:
        """Return the JSON of every id that was added; packed parts are joined, not united."""
        from semel.events.ids.packing import joined

        some = [part for part in self._parts() if part]
        if len(some) < 2:
            return self.ids().written()
        parts = [part.written() for part in some]
        shapes = {part.columns.shape for part in some if part.columns is not None}
        if len(shapes) > 1 or not all(part.dense for part in parts):
            return self.ids().written()
        return PreEncoded(joined(part.content for part in parts), dense=True)

    def _parts(self) -> Iterator[EntityIds]:
        return (part for level in self._levels for part in level)
