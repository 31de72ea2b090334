"""The set of events seen, for the one case where a repeat need not be next to its original.

- 16 bytes per event: two independent 64-bit hashes; a false alarm needs both to collide.
- Runs are merged as they double, so adding n events costs O(n log n) in total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semel.events.rows import Rows


class Seen:
    """A growing set of events, checked one batch at a time."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def add(self, rows: Rows) -> int | None:
        """Add these rows; return the index of one that was there before or is repeated, or None."""
        if not len(rows):
            return None
        left, right = _hash(rows, 0), _hash(rows, 1)
        order = np.argsort(left, kind="stable")
        left, right = left[order], right[order]
        twice = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
        if twice.any():
            return int(order[int(np.argmax(twice)) + 1])
        for known_left, known_right in self._runs:
            # Two entries with the same first hash may be adjacent: check both.
            at = np.searchsorted(known_left, left)
            for step in (0, 1):
                near = np.minimum(at + step, len(known_left) - 1)
                hit = (known_left[near] == left) & (known_right[near] == right)
                if hit.any():
                    return int(order[int(np.argmax(hit))])
        self._keep(left, right)
        return None

    def _keep(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> None:
        while self._runs and len(self._runs[-1][0]) <= len(left):
            other_left, other_right = self._runs.pop()
            left, right = np.concatenate([other_left, left]), np.concatenate([other_right, right])
            order = np.argsort(left, kind="stable")
            left, right = left[order], right[order]
        self._runs.append((left, right))


def _hash(rows: Rows, seed: int) -> NDArray[np.uint64]:
    texts = rows.scopes.texts
    present, places = rows.scopes.distinct()
    hashed = [xxhash.xxh3_64_intdigest(texts[code].encode(), seed) for code in present.tolist()]
    words = np.array(hashed, np.uint64)[places]
    for part in rows.ids:
        if pa.types.is_int64(part.type):
            value = part.to_numpy().view(np.uint64)
        else:
            encoded = part.dictionary_encode()
            distinct = [
                xxhash.xxh3_64_intdigest(text.encode(), seed)
                for text in encoded.dictionary.to_pylist()
            ]
            value = np.array(distinct, np.uint64)[encoded.indices.to_numpy()]
        words = _mixed(words * np.uint64(0x9E3779B97F4A7C15) ^ _mixed(value + np.uint64(seed + 1)))
    return words


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64: a bijection that spreads every bit over all bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
