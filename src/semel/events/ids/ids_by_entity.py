"""Sets of event ids by scope: the events that a span, a watermark or a destination has handled.

- If the ids of all scopes are integers, or all texts, they are stored as columns, and single sets
  are made only on request.
- Sets are immutable, and equal ones have one JSON text, however they were made.
- A run's ids are one array per part, int64 or string, without nulls; several parts are a tuple.
  Python objects are made per scope, and per row only if ids are tuples.
"""

from __future__ import annotations

from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.events.encoding.json_text import PreEncoded, canonical
from semel.events.ids.id_columns import IdColumns, Labels, borders, sorted_texts
from semel.events.ids.id_set import INTEGER, TEXT, IdSet, Shape, shape_of
from semel.events.ids.packing import is_packed, joined

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence

    from numpy.typing import NDArray

    from semel.events.rows import EventID

LEAST = -(2**63)
GREATEST = 2**63 - 1

Parts = tuple[pa.Array, ...]

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
            return cls(None, IdColumns.union(columns))
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


# -- a run of events and sets of ids


def shape(parts: Parts) -> Shape:
    """Return the shape of the ids that these arrays hold."""
    shapes = tuple(INTEGER if pa.types.is_int64(part.type) else TEXT for part in parts)
    return shapes[0] if len(shapes) == 1 else shapes


def id_sets(scopes: Labels, parts: Parts) -> EntityIds:
    """Return the ids of a run by scope."""
    if not len(scopes.codes):
        return EntityIds.EMPTY
    if len(parts) == 1:
        return EntityIds(None, IdColumns.of(scopes.names, scopes.codes, parts[0]))
    order = sorted_texts(scopes.codes, parts)
    codes, ids = scopes.codes[order], _ids([part.take(pa.array(order)) for part in parts])
    edges = borders(codes)
    names = scopes.texts_of(codes[edges[:-1]])
    return EntityIds(
        {
            name: IdSet(shape(parts), tuple(dict.fromkeys(ids[start:stop])))
            for name, (start, stop) in zip(names, pairwise(edges.tolist()), strict=True)
        }
    )


def last_rows(scopes: Labels, parts: Parts) -> NDArray[np.int64]:
    """Return for each scope of a run the row that has its greatest id."""
    if shape(parts) == INTEGER:
        numbers = parts[0].to_numpy()
        if (numbers[1:] >= numbers[:-1]).all():
            ends = np.full(len(scopes.names), -1, np.int64)
            ends[scopes.codes] = np.arange(len(scopes))  # the last of several rows remains
            return ends[ends >= 0]
        order = np.lexsort((numbers, scopes.codes))
    else:
        order = sorted_texts(scopes.codes, parts)
    return order[borders(scopes.codes[order])[1:] - 1].astype(np.int64)


def last_ids(scopes: Labels, parts: Parts) -> dict[str, EventID]:
    """Return the greatest id of each scope in a run."""
    if not len(scopes):
        return {}
    rows = last_rows(scopes, parts)
    latest = _ids([part.take(pa.array(rows)) for part in parts])
    return dict(zip(scopes.texts_of(scopes.codes[rows]), latest, strict=True))


def last_id_sets(scopes: Labels, parts: Parts) -> EntityIds:
    """Return the greatest id of each scope in a run, as sets of one id."""
    if not len(scopes):
        return EntityIds.EMPTY
    rows = last_rows(scopes, parts)
    last = tuple(part.take(pa.array(rows)) for part in parts)
    return id_sets(Labels(scopes.codes[rows], scopes.names), last)


def contained_in(scopes: Labels, parts: Parts, ids: EntityIds) -> NDArray[np.bool_]:
    """Return a mask of the rows whose id is in the set of their scope."""
    found = np.zeros(len(scopes), np.bool_)
    if not ids or not len(scopes):
        return found
    if ids.columns is not None:
        return _in_columns(scopes, parts, ids, ids.columns)
    asked = np.flatnonzero(scopes.where(ids.scopes().__contains__))
    if not len(asked):
        return found
    codes = scopes.codes[asked]
    known = {code: ids.get(scopes.texts[code]) for code in np.unique(codes).tolist()}
    _require_shape(shape(parts), (each.shape for each in known.values()))
    taken = [part.take(pa.array(asked)) for part in parts]
    if shape(parts) == INTEGER:
        found[asked] = _in_intervals(codes, taken[0].to_numpy(), *_clipped(known))
        return found
    wanted = {(code, each) for code, kept in known.items() for each in kept}
    pairs = zip(codes.tolist(), _ids(taken), strict=True)
    found[asked] = np.fromiter(map(wanted.__contains__, pairs), np.bool_, len(asked))
    return found


def at_most(scopes: Labels, parts: Parts, last: Mapping[str, EventID]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose id is not greater than the last one of their scope."""
    if not last:
        return np.zeros(len(scopes), np.bool_)
    present, places = scopes.distinct()
    bounds: list[Any] = list(map(last.get, scopes.texts_of(present)))
    bounded = [bound for bound in bounds if bound is not None]
    if not bounded:
        return np.zeros(len(scopes), np.bool_)
    _require_shape(shape(parts), _shapes(bounded))
    below = np.zeros(len(scopes), np.bool_)
    same = np.ones(len(scopes), np.bool_)
    for at, part in enumerate(parts):
        whole = len(parts) == 1
        values = bounds if whole else [None if each is None else each[at] for each in bounds]
        try:
            bound = pa.array(values, part.type).take(pa.array(places))
            less, equal = _mask(pc.less(part, bound)), _mask(pc.equal(part, bound))
        except OverflowError:
            less, equal = _against_integers(part, values, places)
        below |= same & less
        same &= equal
    return below | same


def _against_integers(
    part: pa.Array, bounds: list[int | None], places: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where ids are less than, and where equal to, bounds that may not fit into 64 bits."""
    inside = [bound is not None and LEAST <= bound <= GREATEST for bound in bounds]
    fits = np.array(inside, np.bool_)[places]
    above = np.array([bound is not None and bound > GREATEST for bound in bounds], np.bool_)[places]
    limits = [bound if fit else 0 for bound, fit in zip(bounds, inside, strict=True)]
    limit = np.array(limits, np.int64)[places]
    numbers = part.to_numpy()
    return above | (fits & (numbers < limit)), fits & (numbers == limit)


def _in_columns(
    scopes: Labels, parts: Parts, ids: EntityIds, known: IdColumns
) -> NDArray[np.bool_]:
    """Return a mask of the rows whose id is in the columns of their scope."""
    present, places = scopes.distinct()
    found = ids.places_of(scopes.texts_of(present))
    shared = np.flatnonzero(found >= 0)
    if not len(shared):
        return np.zeros(len(scopes), np.bool_)
    _require_shape(shape(parts), [known.shape])
    rows, owners = known.rows_of(found[shared])
    owners = shared[owners]
    firsts = known.firsts.take(pa.array(rows))
    if known.shape == INTEGER:
        lasts = known.lasts.take(pa.array(rows)).to_numpy()
        return _in_intervals(places, parts[0].to_numpy(), owners, firsts.to_numpy(), lasts)
    return _mask(pc.is_in(_keys(places, parts[0]), value_set=_keys(owners, firsts)))


def _keys(owners: NDArray[Any], texts: pa.Array) -> pa.Array:
    """Return a text for each pair; different pairs have different texts."""
    return pc.binary_join_element_wise(pa.array(owners).cast(pa.string()), texts, "/")


def _in_intervals(
    codes: NDArray[Any],
    numbers: NDArray[np.int64],
    owners: NDArray[np.int64],
    firsts: NDArray[np.int64],
    lasts: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return whether each number lies in an interval of its code: sort both together, look left."""
    if not len(owners):
        return np.zeros(len(codes), np.bool_)
    every = np.concatenate([owners, codes])
    values = np.concatenate([firsts, numbers])
    is_row = np.arange(len(every)) >= len(owners)
    order = np.lexsort((is_row, values, every))
    starts = np.where(is_row[order], -1, order)
    nearest = np.empty(len(order), np.int64)
    # Intervals are sorted by code and first number, so the latest one has the greatest index.
    nearest[order] = np.maximum.accumulate(starts)
    nearest = nearest[len(owners) :]
    some = nearest >= 0
    inside: NDArray[np.bool_] = some & (owners[nearest] == codes) & (numbers <= lasts[nearest])
    return inside


def _clipped(
    known: Mapping[int, IdSet],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the intervals of the sets, clipped to 64-bit ids, sorted by code and first."""
    rows = [
        (code, max(first, LEAST), min(last, GREATEST))
        for code in sorted(known)
        for first, last in known[code].intervals
        if last >= LEAST and first <= GREATEST
    ]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _ids(parts: list[pa.Array]) -> list[Any]:
    lists = [part.to_pylist() for part in parts]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _shapes(ids: list[Any]) -> set[Shape]:
    """Return the shapes of ids; if all are integers or all texts, without checking each."""
    kinds = set(map(type, ids))
    if kinds in ({int}, {str}):
        return {INTEGER if kinds == {int} else TEXT}
    return set(map(shape_of, ids))


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    made: NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return made


def _require_shape(mine: Shape, others: Any) -> None:
    for other in others:
        if other not in (mine, None):
            raise ConfigurationError(
                f"these events have {_in_words(mine)} ids, and they are compared with "
                f"{_in_words(other)} ids, which the ledger has recorded: the type of an id column "
                "was changed, and ids of two types are never the same. Cast the column back to "
                "what it was, or start under a new name"
            )


def _in_words(each: Shape) -> str:
    return each if isinstance(each, str) else f"({', '.join(map(_in_words, each))})"
