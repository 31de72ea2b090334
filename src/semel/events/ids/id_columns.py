"""Texts and ids of many rows as columns: their number costs arithmetic, not Python objects.

Always true of `Labels`, a column of repeating texts, stored as one code per row and each text once:
- `names` holds no text twice; after a slice it may hold texts that no row has any more;
- the work on a slice is proportional to the slice; the texts are sorted, and converted to Python
  objects, at most once for all slices together.

Always true of `IdColumns`, sets of event ids by scope:
- scopes are distinct and sorted by code point, which is the same as by bytes;
- the ids of scope n are the rows [borders[n], borders[n + 1]): at least one, and sorted;
- integers are merged intervals [first, last]; for a text, first and last are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.events import columns
from semel.events.encoding.canonical_json import PreEncoded, json_text
from semel.events.ids.id_set import INTEGER, TEXT, IdSet
from semel.events.ids.packing import PACKED_MIN, is_packed, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Names:
    """Distinct texts in the order of their codes, as an Arrow array and as Python strings."""

    __slots__ = ("_array", "_ranks", "_texts")

    def __init__(self, array: pa.Array | None, texts: tuple[str, ...] | None = None) -> None:
        """Assumes that one of the two is given, and that no text occurs twice."""
        self._array = array
        self._texts = texts
        self._ranks: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def array(self) -> pa.Array:
        """The texts as an Arrow array."""
        if self._array is None:
            self._array = pa.array(self._texts, pa.string())
        return self._array

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts as Python strings."""
        if self._texts is None:
            self._texts = tuple(self.array.to_pylist())
        return self._texts

    def __len__(self) -> int:
        return len(self.array if self._texts is None else self._texts)

    def ranks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes in the order of their texts, and for each code its rank."""
        if self._ranks is None:
            order = pc.sort_indices(self.array).to_numpy().astype(np.int64)
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            self._ranks = order, rank
        return self._ranks


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """One text per row: the scopes or the entities of a run of events."""

    codes: NDArray[np.int32]
    names: Names

    @classmethod
    def of(cls, array: pa.Array, path: str) -> Labels:
        """Return the text forms of a column without nulls."""
        codes, names = columns.encoded_texts(array, path)
        return cls(codes.to_numpy(), Names(names))

    @classmethod
    def one(cls, text: str, count: int) -> Labels:
        """Return the same text for every row."""
        return cls(np.zeros(count, np.int32), Names(None, (text,)))

    @classmethod
    def concat(cls, runs: Sequence[Labels]) -> Labels:
        """Concatenate runs."""
        first = runs[0].names
        if all(run.names is first for run in runs):
            return cls(np.concatenate([run.codes for run in runs]), first)
        distinct = [run.distinct() for run in runs]
        texts = [
            run.names.array.take(pa.array(present))
            for run, (present, _) in zip(runs, distinct, strict=True)
        ]
        encoded = pa.concat_arrays(texts).dictionary_encode()
        borders = np.cumsum([len(present) for present, _ in distinct])[:-1]
        moved = np.split(encoded.indices.to_numpy(), borders)
        codes = [code[places] for code, (_, places) in zip(moved, distinct, strict=True)]
        return cls(np.concatenate(codes), Names(encoded.dictionary))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.codes[row])]

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each code."""
        return self.names.texts

    def slice(self, start: int, stop: int) -> Labels:
        """Return the rows [start, stop), without a copy."""
        return Labels(self.codes[start:stop], self.names)

    def take(self, mask: NDArray[np.bool_]) -> Labels:
        """Return the rows where the mask is true."""
        return Labels(self.codes[mask], self.names)

    def distinct(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Return the codes that occur, and for each row the index of its code among them."""
        if len(self.names) <= len(self.codes):
            used = np.zeros(len(self.names), np.bool_)
            used[self.codes] = True
            present = np.flatnonzero(used).astype(np.int32)
            place = np.cumsum(used) - 1
            return present, place[self.codes]
        present, places = np.unique(self.codes, return_inverse=True)
        return present, places

    def texts_of(self, codes: NDArray[np.integer]) -> list[str]:
        """Return the texts of these codes."""
        return list(map(self.texts.__getitem__, codes.tolist()))

    def to_list(self) -> list[str]:
        """Return the text of every row."""
        return self.texts_of(self.codes)

    def where(self, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return a mask of the rows whose text fulfils `holds`, called once per distinct text."""
        present, places = self.distinct()
        answers = np.fromiter(map(holds, self.texts_of(present)), np.bool_, len(present))
        return cast("NDArray[np.bool_]", answers[places])


# -- sets of ids


@dataclass(frozen=True, slots=True, eq=False)
class IdColumns:
    """Ids of one shape, integers or texts, by scope."""

    names: pa.Array
    borders: Integers
    firsts: pa.Array
    lasts: pa.Array

    @classmethod
    def of(cls, names: Names, codes: NDArray[Any], ids: pa.Array) -> IdColumns:
        """Return the ids of rows, at least one; a row's code is the index of its scope's name."""
        order, ranks = names.ranks()
        return _united(names.array.take, order, ranks[codes], ids, ids)

    @classmethod
    def union(cls, parts: Sequence[IdColumns]) -> IdColumns:
        """Return every id that is in any part; all parts are of one shape."""
        if len(parts) == 1:
            return parts[0]
        encoded = pa.concat_arrays([part.names for part in parts]).dictionary_encode()
        counts = np.concatenate([np.diff(part.borders) for part in parts])
        order, ranks = Names(encoded.dictionary).ranks()
        owners = np.repeat(ranks[encoded.indices.to_numpy()], counts)
        firsts = pa.concat_arrays([part.firsts for part in parts])
        single = all(part.firsts is part.lasts for part in parts)
        lasts = firsts if single else pa.concat_arrays([part.lasts for part in parts])
        return _united(encoded.dictionary.take, order, owners, firsts, lasts)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IdColumns | None:
        """Return the sets of a JSON object in a form of `written`; None if it has another form."""
        if is_packed(value):
            parts = [cls(*columns) for columns in unpack(value)]
            if len({part.shape for part in parts}) > 1:
                raise ValueError("a packed set of ids is damaged (ids of several shapes)")
            try:
                return cls.union(parts)
            except pa.ArrowException as error:
                why = type(error).__name__
                raise ValueError(f"a packed set of ids is damaged ({why})") from None
        names = sorted(value)
        rows = [value[name] for name in names]
        if set(map(type, rows)) != {list} or not all(rows):
            return None
        flat = list(chain.from_iterable(rows))
        kinds = set(map(type, flat))
        borders = np.cumsum([0, *map(len, rows)])
        try:
            if kinds == {str}:
                texts = pa.array(flat, pa.string())
                made = cls(pa.array(names, pa.string()), borders, texts, texts)
            elif kinds == {list} and set(map(len, flat)) == {2}:
                numbers = list(chain.from_iterable(flat))
                if set(map(type, numbers)) != {int}:
                    return None
                ends = np.array(numbers, np.int64).reshape(-1, 2)
                firsts, lasts = pa.array(ends[:, 0].copy()), pa.array(ends[:, 1].copy())
                made = cls(pa.array(names, pa.string()), borders, firsts, lasts)
            else:
                return None
        except (UnicodeEncodeError, OverflowError):
            return None
        return made if made._is_canonical() else None

    @property
    def shape(self) -> str:
        """`integer` or `text`."""
        return INTEGER if pa.types.is_int64(self.firsts.type) else TEXT

    def __len__(self) -> int:
        if self.shape == TEXT:
            return len(self.firsts)
        # Modulo 2**64 a difference is correct even if the ends are more than 2**63 apart.
        spans = self.lasts.to_numpy().view(np.uint64) - self.firsts.to_numpy().view(np.uint64)
        high, low = spans >> np.uint64(32), spans & np.uint64(2**32 - 1)
        return (int(high.sum()) << 32) + int(low.sum()) + len(spans)

    def equals(self, other: IdColumns) -> bool:
        """Return whether both hold the same ids."""
        return bool(
            self.shape == other.shape
            and self.names.equals(other.names)
            and np.array_equal(self.borders, other.borders)
            and self.firsts.equals(other.firsts)
            and self.lasts.equals(other.lasts)
        )

    def sets(self) -> dict[str, IdSet]:
        """Return a set for each scope."""
        items: list[Any] = self.firsts.to_pylist()
        if self.shape == INTEGER:
            items = list(zip(items, self.lasts.to_pylist(), strict=True))
        edges = zip(self.names.to_pylist(), pairwise(self.borders.tolist()), strict=True)
        return {name: IdSet(self.shape, tuple(items[start:stop])) for name, (start, stop) in edges}

    def rows_of(self, places: Integers) -> tuple[Integers, Integers]:
        """Return the rows of the scopes at these places, and for each row which place it is of."""
        starts, counts = self.borders[places], self.borders[places + 1] - self.borders[places]
        owners = np.repeat(np.arange(len(places)), counts)
        before = np.cumsum(counts) - counts
        return np.arange(len(owners)) + np.repeat(starts - before, counts), owners

    def written(self) -> PreEncoded:
        """Return the canonical JSON of {scope: ids}, where ids are [[first, last], ...] or texts;
        packed if there are many.
        """
        if len(self.firsts) >= PACKED_MIN:
            packed = pack(self.names, self.borders, self.firsts, self.lasts)
            return PreEncoded(packed, dense=True)
        names, firsts = json_inner(self.names), self.firsts
        if self.shape == TEXT:
            opened, pieces, closed = '"', [json_inner(firsts)], '"'
        else:
            numbers = firsts.cast(pa.string())
            lasts = numbers if self.lasts is firsts else self.lasts.cast(pa.string())
            opened, pieces, closed = "[", [numbers, ",", lasts], "]"
        if len(names) == len(firsts):
            head, tail = '":[' + opened, closed + "]"
            scopes = pc.binary_join_element_wise('"', names, head, *pieces, tail, "")
        else:
            ids = pc.binary_join_element_wise(opened, *pieces, closed, "")
            lists = pc.binary_join(_listed(self.borders, ids), ",")
            scopes = pc.binary_join_element_wise('"', names, '":[', lists, "]", "")
        [whole] = pc.binary_join(_listed(np.array([0, len(scopes)]), scopes), ",")
        return PreEncoded(b"{" + cast("bytes", whole.as_buffer().to_pybytes()) + b"}")

    def _is_canonical(self) -> bool:
        """Return whether the ids of every scope are sorted, distinct and merged."""
        inner = np.ones(len(self.firsts), np.bool_)
        inner[self.borders[:-1]] = False
        if self.shape == TEXT:
            rises = pc.less(self.firsts[:-1], self.firsts[1:]).to_numpy(zero_copy_only=False)
            return bool(rises[inner[1:]].all())
        firsts, lasts = self.firsts.to_numpy(), self.lasts.to_numpy()
        apart = (firsts[1:] > lasts[:-1]) & (firsts[1:] - 1 != lasts[:-1])
        return bool((firsts <= lasts).all() and apart[inner[1:]].all())


def _united(
    take: Any, order: Integers, owners: Integers, firsts: pa.Array, lasts: pa.Array
) -> IdColumns:
    """Sort ids by their scope's rank and their own value, and merge those that touch or overlap."""
    if pa.types.is_int64(firsts.type):
        owners, left, right = _merged(owners, firsts.to_numpy(), lasts.to_numpy())
        firsts = pa.array(left)
        lasts = firsts if right is left else pa.array(right)
    else:
        owners, firsts = _distinct(owners, firsts)
        lasts = firsts
    edges = borders(owners)
    return IdColumns(take(pa.array(order[owners[edges[:-1]]])), edges, firsts, lasts)


def _merged(
    owners: Integers, firsts: Integers, lasts: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return merged intervals by owner and first; `lasts` is `firsts` if each is one number."""
    if firsts is lasts or np.array_equal(firsts, lasts):
        owners, firsts = sorted_pairs(owners, firsts)
        lasts = firsts
    else:
        at = np.lexsort((firsts, owners))
        owners, firsts, lasts = owners[at], firsts[at], _reached(owners[at], lasts[at])
    fresh = np.ones(len(owners), np.bool_)
    apart = (firsts[1:] > lasts[:-1]) & (firsts[1:] - 1 != lasts[:-1])
    fresh[1:] = (owners[1:] != owners[:-1]) | apart
    if fresh.all():
        return owners, firsts, lasts
    starts = np.flatnonzero(fresh)
    ends = np.append(starts[1:], len(owners)) - 1
    return owners[starts], firsts[starts], lasts[ends]


def _reached(owners: Integers, lasts: Integers) -> Integers:
    """Return the running maximum of `lasts` within each owner."""
    if (lasts[1:] >= lasts[:-1])[owners[1:] == owners[:-1]].all():
        return lasts
    values, places = np.unique(lasts, return_inverse=True)
    so_far = np.maximum.accumulate(owners * len(values) + places)
    reached: Integers = values[so_far % len(values)]
    return reached


def _distinct(owners: Integers, texts: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the texts sorted by owner and text, each once."""
    order = sorted_texts(owners, [texts])
    owners, texts = owners[order], texts.take(pa.array(order))
    fresh = np.ones(len(owners), np.bool_)
    other = pc.not_equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    fresh[1:] = (owners[1:] != owners[:-1]) | other
    return (owners, texts) if fresh.all() else (owners[fresh], texts.filter(pa.array(fresh)))


def sorted_pairs(codes: NDArray[Any], numbers: Integers) -> tuple[Integers, Integers]:
    """Return codes and numbers sorted together.

    Ids mostly increase from row to row: then a stable sort by code, digit by digit, is enough.
    Otherwise a pair is sorted as one 64-bit integer if it fits, which is far faster than two keys.
    """
    if _is_sorted(codes, numbers):
        return codes.astype(np.int64), numbers.copy()  # a view would keep the whole batch alive
    order = _by_code(codes)
    by_code, theirs = codes[order], numbers[order]
    if ((by_code[1:] != by_code[:-1]) | (theirs[1:] >= theirs[:-1])).all():
        return by_code.astype(np.int64), theirs
    low, high = int(numbers.min()), int(numbers.max())
    bits = (high - low).bit_length()
    if bits + int(codes.max()).bit_length() <= 63:
        words = (codes.astype(np.int64) << bits) | (numbers - low)
        words.sort()
        return words >> bits, (words & ((1 << bits) - 1)) + low
    order = np.lexsort((numbers, codes))
    return codes[order].astype(np.int64), numbers[order]


def _by_code(codes: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order of rows by code, ties in row order. NumPy sorts by counting 16 bits at a
    time; there are fewer than 2**32 codes.
    """
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    if len(codes) and int(codes.max()) > 0xFFFF:
        order = order[np.argsort((codes[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def sorted_texts(codes: NDArray[Any], parts: Sequence[pa.Array]) -> NDArray[np.intp]:
    """Return the order of rows by code and id, for ids that are texts or have several parts."""
    if len(parts) == 1:
        by_text = pc.sort_indices(parts[0]).to_numpy()
    else:
        named = pa.table(list(parts), names=[str(at) for at in range(len(parts))])
        keys = [(name, "ascending") for name in named.column_names]
        by_text = pc.sort_indices(named, sort_keys=keys).to_numpy()
    order: NDArray[np.intp] = by_text[_by_code(codes[by_text])]
    return order


def borders(codes: NDArray[Any]) -> Integers:
    """Return where each run of equal codes begins, and the end."""
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return np.concatenate([[0], changes, [len(codes)]])


def _is_sorted(codes: NDArray[Any], numbers: Integers) -> bool:
    """Return whether there is nothing to sort: one scope and increasing ids, as positions have."""
    if codes[0] != codes[-1] or numbers[0] > numbers[-1]:
        return False
    return bool((codes == codes[0]).all() and (numbers[1:] >= numbers[:-1]).all())


def json_inner(texts: pa.Array) -> pa.Array:
    """Return the texts escaped for JSON, without the quotes; nearly always they are unchanged."""
    _, ends, content = texts.buffers()
    if content is None or not content.size:
        return texts
    edges = np.frombuffer(ends, np.int32, len(texts) + 1, texts.offset * 4)
    found = np.frombuffer(content, np.uint8)[edges[0] : edges[-1]]
    if not ((found < 0x20) | (found == ord('"')) | (found == ord("\\"))).any():
        return texts
    return pa.array([json_text(text)[1:-1] for text in texts.to_pylist()])


def _listed(edges: Integers, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(edges.astype(np.int32)), values)
