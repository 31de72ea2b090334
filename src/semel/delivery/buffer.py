"""The buffer of one partition on its way to one sink: rows in, rows out, counted and digested.

Always true:
- rows enter and leave in the partition's order, each counted and digested once;
- only its own methods change it: a strategy reads the position and asks for digests.
"""

from __future__ import annotations

from typing import Any

from semel.events import Digest, Rows, column_types

COLUMNS_MAX = 4_000
"""How many characters of names and types of columns the row of a partition has."""


def recorded_columns(rows: Rows) -> dict[str, str] | None:
    """Return the types of the columns as the ledger keeps them; None if they are too many."""
    columns = column_types(rows.batch.schema)
    size = sum(len(name) + len(kind) for name, kind in columns.items())
    return columns if size <= COLUMNS_MAX and len(columns) == rows.batch.num_columns else None


class Buffer:
    """The rows that came and are not done yet. Runs on an executor.

    Attributes:
        count: how many rows came in all.
        waiting: how many of them are not done yet.
        position: how many of them are done, and so where the next one stands in the order.
        columns: the types of the columns of the first rows, as the ledger keeps them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0
        self.position = 0
        self.columns: dict[str, str] | None = None
        self._runs: list[Rows] = []
        self._digest: Digest | None = None
        self._ends: list[list[Any]] = []
        self._ahead: tuple[int, Digest] | None = None

    def push(self, rows: Rows) -> None:
        """Take the next rows, in the partition's order, and number them by it."""
        rows = rows.renumber(self.count)
        if self._digest is None:
            self._digest = Digest(rows.batch.schema)
            self.columns = recorded_columns(rows)
            self._ends.append(rows.sort_key(0))
        self._ends[1:] = [rows.sort_key(len(rows) - 1)]
        self.count += len(rows)
        self.waiting += len(rows)
        self._runs.append(rows)

    def next(self, wanted: int) -> Rows:
        """Return the next rows, as many as are `wanted` or all that wait; they stay."""
        if len(self._runs[0]) < min(wanted, self.waiting):
            self._runs = [Rows.concat(self._runs)]
        rows = self._runs[0]
        return rows.slice(0, wanted) if wanted < len(rows) else rows

    def drop(self, done: int) -> None:
        """Drop the first `done` of the rows that `next` returned, and digest them: often they were
        digested already, to be recorded.
        """
        if not done:
            return
        rows = self._runs[0]
        if self._ahead is not None and self._ahead[0] == self.position + done:
            self._digest = self._ahead[1]
        else:
            self._running.update(rows.batch.slice(0, done))
        self._ahead = None
        self.position += done
        self.waiting -= done
        if done < len(rows):
            self._runs[0] = rows.slice(done, len(rows))
        else:
            self._runs.pop(0)

    def digest_to(self, stop: int) -> str:
        """Return the digest of the partition up to the position `stop`, which is at most the end of
        the rows that `next` returned.
        """
        if stop == self.position:
            return self._running.hexdigest()
        ahead = self._running.copy()
        ahead.update(self._runs[0].batch.slice(0, stop - self.position))
        self._ahead = (stop, ahead)
        return ahead.hexdigest()

    @property
    def ends(self) -> tuple[list[Any], list[Any]]:
        """The sort keys of the first and of the last row that came."""
        return self._ends[0], self._ends[1]

    @property
    def _running(self) -> Digest:
        if self._digest is None:
            raise AssertionError("rows came, so there is a digest")
        return self._digest
