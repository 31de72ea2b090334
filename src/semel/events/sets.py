"""Set arithmetic between a run of events and sets of event ids, on columns.

- A run's ids are one array per part, int64 or string, without nulls; several parts are a tuple.
- Python objects are made per scope or per interval, never per row, where ids are integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.events.intervals import INTEGER, TEXT, EntityIds, IdSet, Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from semel.events.ids import EventID
    from semel.events.labels import Labels

LEAST = -(2**63)
GREATEST = 2**63 - 1

Parts = tuple[pa.Array, ...]


def shape(parts: Parts) -> Shape:
    """The shape of the ids that these arrays hold."""
    shapes = tuple(INTEGER if pa.types.is_int64(part.type) else TEXT for part in parts)
    return shapes[0] if len(shapes) == 1 else shapes


def id_sets(scopes: Labels, parts: Parts) -> EntityIds:
    """The ids of a run by scope."""
    if not len(scopes):
        return EntityIds.EMPTY
    if shape(parts) == INTEGER:
        return _interval_sets(scopes, parts[0])
    codes, ids = _sorted(scopes, parts)
    borders = _borders(codes)
    return EntityIds(
        {
            scopes.texts[code]: IdSet(shape(parts), tuple(dict.fromkeys(ids[start:stop])))
            for code, start, stop in zip(
                codes[borders[:-1]].tolist(),
                borders[:-1].tolist(),
                borders[1:].tolist(),
                strict=True,
            )
        }
    )


def last_ids(scopes: Labels, parts: Parts) -> dict[str, EventID]:
    """The greatest id of each scope in a run."""
    if not len(scopes):
        return {}
    if shape(parts) == INTEGER:
        codes, numbers = _sorted_pairs(scopes.codes, parts[0].to_numpy())
        ends = _borders(codes)[1:] - 1
        latest: list[Any] = numbers[ends].tolist()
    else:
        codes, ids = _sorted(scopes, parts)
        ends = _borders(codes)[1:] - 1
        latest = [ids[end] for end in ends.tolist()]
    return dict(zip(map(scopes.texts.__getitem__, codes[ends].tolist()), latest, strict=True))


def contained_in(scopes: Labels, parts: Parts, ids: EntityIds) -> NDArray[np.bool_]:
    """The rows whose id is in the set of their scope."""
    found = np.zeros(len(scopes), np.bool_)
    asked = np.flatnonzero(scopes.where(ids.scopes().__contains__)) if ids else found[:0]
    if not len(asked):
        return found
    codes = scopes.codes[asked]
    known = {code: ids.get(scopes.texts[code]) for code in np.unique(codes).tolist()}
    _require_shape(shape(parts), (each.shape for each in known.values()))
    taken = [part.take(pa.array(asked)) for part in parts]
    if shape(parts) == INTEGER:
        found[asked] = _in_intervals(codes, taken[0].to_numpy(), known)
        return found
    wanted = {(code, each) for code, kept in known.items() for each in kept}
    pairs = zip(codes.tolist(), _ids(taken), strict=True)
    found[asked] = np.fromiter(map(wanted.__contains__, pairs), np.bool_, len(asked))
    return found


def at_most(scopes: Labels, parts: Parts, last: Mapping[str, EventID]) -> NDArray[np.bool_]:
    """The rows whose id is not greater than the last one of their scope."""
    present, places = scopes.distinct()
    bounds: list[Any] = [last.get(scopes.texts[code]) for code in present.tolist()]
    bounded = [bound for bound in bounds if bound is not None]
    if not bounded:
        return np.zeros(len(scopes), np.bool_)
    _require_shape(shape(parts), map(shape_of, bounded))
    below = np.zeros(len(scopes), np.bool_)
    same = np.ones(len(scopes), np.bool_)
    for at, part in enumerate(parts):
        whole = len(parts) == 1
        values = [None if each is None else each if whole else each[at] for each in bounds]
        if pa.types.is_int64(part.type):
            less, equal = _against_integers(part, values, places)
        else:
            bound = pa.array(values, pa.string()).take(pa.array(places))
            less, equal = _mask(pc.less(part, bound)), _mask(pc.equal(part, bound))
        below |= same & less
        same &= equal
    return below | same


def _against_integers(
    part: pa.Array, bounds: list[int | None], places: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where ids are less than and equal to bounds, which may be greater than 64 bits hold."""
    inside = [bound is not None and LEAST <= bound <= GREATEST for bound in bounds]
    fits = np.array(inside, np.bool_)[places]
    above = np.array([bound is not None and bound > GREATEST for bound in bounds], np.bool_)[places]
    limits = [bound if fit else 0 for bound, fit in zip(bounds, inside, strict=True)]
    limit = np.array(limits, np.int64)[places]
    numbers = part.to_numpy()
    return above | (fits & (numbers < limit)), fits & (numbers == limit)


def _interval_sets(scopes: Labels, part: pa.Array) -> EntityIds:
    codes, numbers = _sorted_pairs(scopes.codes, part.to_numpy())
    breaks = codes[1:] != codes[:-1]
    breaks |= (numbers[1:] != numbers[:-1]) & (numbers[1:] != numbers[:-1] + 1)
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    ends = np.concatenate([starts[1:], [len(codes)]]) - 1
    runs = list(zip(numbers[starts].tolist(), numbers[ends].tolist(), strict=True))
    owners = codes[starts]
    borders = _borders(owners)
    names = map(scopes.texts.__getitem__, owners[borders[:-1]].tolist())
    edges = zip(names, borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    return EntityIds({name: IdSet(INTEGER, tuple(runs[start:stop])) for name, start, stop in edges})


def _in_intervals(
    codes: NDArray[np.int32], numbers: NDArray[np.int64], known: Mapping[int, IdSet]
) -> NDArray[np.bool_]:
    """Whether each number lies in an interval of its code: sort both together, look left."""
    owners, firsts, lasts = _clipped(known)
    if not len(owners):
        return np.zeros(len(codes), np.bool_)
    every = np.concatenate([owners, codes])
    values = np.concatenate([firsts, numbers])
    is_row = np.arange(len(every)) >= len(owners)
    order = np.lexsort((is_row, values, every))
    starts = np.where(is_row[order], -1, order)
    nearest = np.empty(len(order), np.int64)
    # Intervals come sorted by code and first number, so the latest one seen is the greatest index.
    nearest[order] = np.maximum.accumulate(starts)
    nearest = nearest[len(owners) :]
    some = nearest >= 0
    inside: NDArray[np.bool_] = some & (owners[nearest] == codes) & (numbers <= lasts[nearest])
    return inside


def _clipped(
    known: Mapping[int, IdSet],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The intervals of the sets as far as 64-bit ids can be in them, sorted by code and first."""
    rows = [
        (code, max(first, LEAST), min(last, GREATEST))
        for code in sorted(known)
        for first, last in known[code].intervals
        if last >= LEAST and first <= GREATEST
    ]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _sorted_pairs(
    codes: NDArray[np.int32], numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Codes and numbers sorted together; as one 64-bit word each where they fit: far faster."""
    if _is_sorted(codes, numbers):
        return codes.astype(np.int64), numbers
    low, high = int(numbers.min()), int(numbers.max())
    bits = (high - low).bit_length()
    if bits + int(codes.max()).bit_length() <= 63:
        words = (codes.astype(np.int64) << bits) | (numbers - low)
        words.sort()
        return words >> bits, (words & ((1 << bits) - 1)) + low
    order = np.lexsort((numbers, codes))
    return codes[order].astype(np.int64), numbers[order]


def _is_sorted(codes: NDArray[np.int32], numbers: NDArray[np.int64]) -> bool:
    """Whether there is nothing to sort: one scope and increasing ids, as positions have them."""
    if codes[0] != codes[-1] or numbers[0] > numbers[-1]:
        return False
    return bool((codes == codes[0]).all() and (numbers[1:] >= numbers[:-1]).all())


def _sorted(scopes: Labels, parts: Parts) -> tuple[NDArray[np.int64], list[Any]]:
    """Codes and ids of any shape sorted together."""
    names = [f"part {at}" for at in range(len(parts))]
    table = pa.table([pa.array(scopes.codes), *parts], names=["code", *names])
    keys = [(name, "ascending") for name in table.column_names]
    order = pc.sort_indices(table, sort_keys=keys)
    taken = [part.take(order) for part in parts]
    return scopes.codes[order.to_numpy()].astype(np.int64), _ids(taken)


def _ids(parts: list[pa.Array]) -> list[Any]:
    lists = [part.to_pylist() for part in parts]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


def _borders(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Where each run of equal codes begins, and the end."""
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return np.concatenate([[0], changes, [len(codes)]])


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    made: NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return made


def _require_shape(mine: Shape, others: Any) -> None:
    for other in others:
        if other not in (mine, None):
            raise ValueError(
                f"these events have {mine} ids, and they are compared with {other} ids"
            )
