"""Set arithmetic between a run of events and sets of event ids, on columns.

- A run's ids are one array per part, int64 or string, without nulls; several parts are a tuple.
- Python objects are made per scope, and per row only if ids are tuples.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.events.ids.id_columns import IdColumns, Labels, borders, sorted_texts
from semel.events.ids.id_set import INTEGER, TEXT, IdSet, Shape, shape_of
from semel.events.ids.ids_by_entity import EntityIds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semel.events.event import EventID

LEAST = -(2**63)
GREATEST = 2**63 - 1

Parts = tuple[pa.Array, ...]


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
                f"{_in_words(other)} ids that the ledger has recorded: the type of an id column "
                "was changed, and ids of two types are never equal. Cast the column to its "
                "former type, or start with a new pipeline name"
            )


def _in_words(each: Shape) -> str:
    return each if isinstance(each, str) else f"({', '.join(map(_in_words, each))})"
