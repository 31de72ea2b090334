"""A column of repeating texts, stored as one code per row and each text once.

- `names` holds no text twice; after a slice it may hold texts that no row has any more.
- The work on a slice is proportional to the slice; the texts are sorted, and converted to Python
  objects, at most once for all slices together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.events import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


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
        columns.texts(array.slice(0, 0), path)  # refuse an unsupported type before encoding
        encoded = array.dictionary_encode()
        return cls(encoded.indices.to_numpy(), Names(columns.texts(encoded.dictionary, path)))

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

    def where(self, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return a mask of the rows whose text fulfils `holds`, called once per distinct text."""
        present, places = self.distinct()
        answers = np.fromiter(map(holds, self.texts_of(present)), np.bool_, len(present))
        return cast("NDArray[np.bool_]", answers[places])
