"""A column of texts that repeat, kept as one code per row and each text once.

- `texts` holds no text twice; it may hold texts that no row has any more, after a slice.
- The work on a slice is proportional to the slice, not to the texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semel.events import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """One text per row: the scopes or the entities of a run of events."""

    codes: NDArray[np.int32]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, array: pa.Array, path: str) -> Labels:
        """The text forms of a column without nulls."""
        columns.texts(
            array.slice(0, 0), path
        )  # a type that is no entity is refused before encoding
        encoded = array.dictionary_encode()
        distinct = columns.texts(encoded.dictionary, path)
        return cls(encoded.indices.to_numpy(), tuple(distinct.to_pylist()))

    @classmethod
    def one(cls, text: str, count: int) -> Labels:
        """The same text for every row."""
        return cls(np.zeros(count, np.int32), (text,))

    @classmethod
    def concat(cls, runs: Sequence[Labels]) -> Labels:
        """One run after the other."""
        first = runs[0].texts
        if all(run.texts is first for run in runs):
            return cls(np.concatenate([run.codes for run in runs]), first)
        known: dict[str, int] = {}
        codes = []
        for run in runs:
            present, places = run.distinct()
            moved = [known.setdefault(run.texts[code], len(known)) for code in present.tolist()]
            codes.append(np.array(moved, np.int32)[places] if moved else run.codes)
        return cls(np.concatenate(codes), tuple(known))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.codes[row])]

    def slice(self, start: int, stop: int) -> Labels:
        """The rows [start, stop), without a copy."""
        return Labels(self.codes[start:stop], self.texts)

    def take(self, mask: NDArray[np.bool_]) -> Labels:
        """The rows where the mask is true."""
        return Labels(self.codes[mask], self.texts)

    def distinct(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """The codes that rows have, and for each row its place among them."""
        if len(self.texts) <= len(self.codes):
            used = np.zeros(len(self.texts), np.bool_)
            used[self.codes] = True
            present = np.flatnonzero(used).astype(np.int32)
            place = np.cumsum(used) - 1
            return present, place[self.codes]
        present, places = np.unique(self.codes, return_inverse=True)
        return present, places

    def where(self, holds: Callable[[str], bool]) -> NDArray[np.bool_]:
        """The rows whose text fulfils `holds`, which is asked once per distinct text."""
        present, places = self.distinct()
        answers = [holds(self.texts[code]) for code in present.tolist()]
        return np.array(answers, np.bool_)[places]
