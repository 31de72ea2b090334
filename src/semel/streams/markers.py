"""The record of markers in table `markers`: a row for each, and one for the stream.

The row of the stream has the number of the newest marker and what the marker clock has learned.

Always true:
- numbers are 1, 2, 3, ...; a marker is written only together with the row of the stream, which has
  to be as it was read, so that two writers cannot both write number n;
- a marker is never changed; the oldest ones are removed, and a range that was removed is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, LedgerError
from semel.ledger import MARKERS_TABLE, MarkerHead, MarkerRow, key_number, make_key, make_prefix
from semel.ledger.store import Absent, Conflict, Delete, Equals, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.ledger import LedgerClient
    from semel.ledger.store import Key, Requirement, Update

PRUNED_AT_ONCE = 500
"""How many markers one commit removes."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The row of a stream as it was read: the marker that comes next follows it."""

    head: MarkerHead
    text: str | None

    @property
    def number(self) -> int:
        """The number of the newest marker; 0 if the stream has none."""
        return self.head.number


class MarkerTaken(LedgerError):
    """Another writer wrote the next marker of the stream first; nothing was written."""


class Markers:
    """The markers of one stream."""

    def __init__(self, client: LedgerClient, stream: str) -> None:
        self._client = client
        self.stream = stream
        self._head = make_key(MARKERS_TABLE, stream)

    def newest(self) -> Newest:
        """Read the row of the stream."""
        text = self._client.read_one(self._head)
        head = MarkerHead(0) if text is None else MarkerHead.load(text, self._head)
        return Newest(head, text)

    def plan(
        self, after: Newest, marker: MarkerRow, head: MarkerHead, keep: int | None = None
    ) -> tuple[Newest, list[Requirement], list[Update]]:
        """Return the commit that writes the marker after `after`, and the stream as it is then;
        with `keep`, only so many of the newest markers stay. For a commit that happens anyway.
        """
        then = replace(head, number=after.number + 1)
        text = then.dump()
        required: Requirement = (
            Absent(self._head) if after.text is None else Equals(self._head, after.text)
        )
        updates: list[Update] = [
            Put(self._head, text),
            Put(self._key(then.number), marker.dump()),
        ]
        if keep is not None and then.number > keep:
            updates.append(Delete(self._key(then.number - keep)))
        return Newest(then, text), [required], updates

    def append(self, after: Newest, marker: MarkerRow, head: MarkerHead | None = None) -> Newest:
        """Write the marker that follows `after`, in one commit. Raises `MarkerTaken` if another
        writer was first, or this one before its connection was lost: read `newest` again.
        """
        then, requirements, updates = self.plan(after, marker, head or after.head)
        try:
            self._client.commit(requirements, updates)
        except Conflict:
            raise MarkerTaken(
                f"stream {self.stream!r}: another writer set marker {then.number} first; nothing "
                "was written"
            ) from None
        return then

    def read(self, number: int) -> MarkerRow | None:
        """Return one marker; None if it was not written yet. Raises `ConfigurationError` if it
        was removed.
        """
        at = self._key(number)
        text = self._client.read_one(at)
        if text is not None:
            return MarkerRow.load(text, at)
        if number < 1 or number <= self.newest().number:
            raise self._removed(number)
        return None

    def between(self, after: int, upto: int) -> list[tuple[int, MarkerRow]]:
        """Return the markers after `after` up to `upto`, with their numbers. Raises
        `ConfigurationError` if one of them was removed or does not exist yet.
        """
        if upto <= after:
            return []
        found = self._scan(after, upto - after)
        if [number for number, _ in found] == list(range(after + 1, upto + 1)):
            return found
        newest = self.newest().number
        if upto > newest:
            raise ConfigurationError(
                f"stream {self.stream!r} has no marker {upto} yet: the newest one is {newest}"
            )
        raise self._removed(after + 1)

    def prune(self, below: int) -> int:
        """Remove the markers with smaller numbers than `below`; return how many. The newest one
        stays. May be repeated.
        """
        below = min(below, self.newest().number)
        removed = 0
        while True:
            found = [number for number, _ in self._scan(0, PRUNED_AT_ONCE) if number < below]
            if not found:
                return removed
            self._client.commit([], [Delete(self._key(number)) for number in found])
            removed += len(found)

    def _scan(self, after: int, limit: int) -> list[tuple[int, MarkerRow]]:
        """Return the first markers after a number."""
        start = make_prefix(self.stream)
        rows: Sequence[tuple[Key, str]] = self._client.scan(
            MARKERS_TABLE, start, after=self._key(after).key, limit=limit
        )
        return [(_number_of(at), MarkerRow.load(text, at)) for at, text in rows]

    def _key(self, number: int) -> Key:
        return make_key(MARKERS_TABLE, self.stream, number)

    def _removed(self, number: int) -> ConfigurationError:
        return ConfigurationError(
            f"stream {self.stream!r} has no marker {number} any more: it was removed, or never "
            "set; start from a newer one"
        )


def _number_of(at: Key) -> int:
    return key_number(at.key.rpartition("/")[2])


def stream_of_pipeline(pipeline: str) -> str:
    """Return the name under which the markers of a paced pipeline are kept, beside the streams
    that have markers of their own.
    """
    return f"pipeline:{pipeline}"
