"""What an inbox keeps: readers say what they have completed, and `prune` removes what is old.

Always true:
- an event that a registered reader has not completed is kept, whatever its age;
- `prune` requires that no reader was registered since it looked. So what is kept when `register`
  returns is kept until the new reader has completed it;
- ids are remembered for as long as they have to be, also when their events are gone: a group whose
  events were pruned keeps its ids until then.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, plain_text
from semel.ledger import (
    INBOX_READERS_TABLE,
    INBOX_TABLE,
    PRODUCERS_TABLE,
    DamagedRow,
    InboxEndRow,
    InboxReaderRow,
    InboxRegisteredRow,
    group_end,
    make_key,
    make_prefix,
    partition_key,
    read_row,
)
from semel.ledger.store import Conflict, Delete, Equals, Put
from semel.streams.groups import ids_of, without_events
from semel.streams.reading import groups_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from semel.ledger import InboxGroupRow, LedgerClient
    from semel.ledger.store import Key, Requirement, Update

KEEP_S = 7 * 24 * 3600.0
"""How long events are kept at least, if nothing else is said."""

UPDATES_MAX = 5_000
"""A commit of `prune` ends after so many updates; a group is never split."""
MISSES_MAX = 20
"""How often `prune` looks at a partition again in which others prune, or register, meanwhile."""
APPENDS_MAX = 100
"""How often it commits again what others append to meanwhile."""
READER_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class InboxReader:
    """A registered reader: it needs no event before `completed` of each partition; a partition
    that is not named it needs from its beginning.
    """

    reader: str
    completed: Mapping[int, int]
    time_us: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many events and remembered ids `prune` has removed."""

    events: int
    ids: int


@dataclass(frozen=True, slots=True)
class _Removal:
    """What one commit removes from a partition, which was as `text` when it was looked at."""

    registered: Requirement
    end_at: Key
    text: str
    begin: int
    remembered: int
    updates: list[Update]
    ids: int

    @property
    def events(self) -> int:
        return self.begin - InboxEndRow.load(self.text, self.end_at).begin

    def follows(self, row: InboxEndRow) -> bool:
        """Whether no other process has removed anything since."""
        looked = InboxEndRow.load(self.text, self.end_at)
        return (row.begin, row.remembered) == (looked.begin, looked.remembered)


class Retention:
    """The readers of one stream, and what may be removed."""

    def __init__(self, client: LedgerClient, stream: str) -> None:
        self._client = client
        self._stream = stream

    def readers(self) -> list[InboxReader]:
        """Return the readers, by name."""
        found = self._client.scan(INBOX_READERS_TABLE, make_prefix(self._stream))
        rows = [InboxReaderRow.load(text, at) for at, text in found]
        return [_reader(row) for row in sorted(rows, key=lambda row: row.reader)]

    def register(self, reader: str) -> InboxReader:
        """Register a reader that has completed nothing, or return it as it is registered."""
        at = self._key(reader)
        while True:
            found = self._client.read_one(at)
            if found is not None:
                return _reader(InboxReaderRow.load(found, at))
            count_at, count = self._registered()
            registered = InboxRegisteredRow.load(count, count_at).registered + 1
            row = InboxReaderRow({}, reader, self._now_us())
            updates = [
                Put(at, row.dump()),
                Put(count_at, InboxRegisteredRow(registered).dump()),
            ]
            with suppress(Conflict):  # another reader came first
                self._client.commit([Equals(count_at, count)], updates)

    def completed(self, reader: str, positions: Mapping[int, int]) -> None:
        """Note what a reader has completed; a position never goes back."""
        at = self._key(reader)
        for partition, offset in positions.items():
            if type(partition) is not int or type(offset) is not int or offset < 0:
                raise ConfigurationError(
                    f"positions must be offsets by partition, got {partition!r}: {offset!r}"
                )
        while True:
            text = self._client.read_one(at)
            if text is None:
                raise ConfigurationError(
                    f"the inbox {self._stream!r} has no reader {reader!r}; register it first "
                    "(Inbox.register_reader)"
                )
            row = InboxReaderRow.load(text, at)
            reached = {
                each: max(row.completed.get(each, 0), positions.get(each, 0))
                for each in sorted({*row.completed, *positions})
            }
            if reached == row.completed:
                return
            after = replace(row, completed=reached, time_us=max(self._now_us(), row.time_us + 1))
            with suppress(Conflict):
                self._client.commit([Equals(at, text)], [Put(at, after.dump())])

    def forget(self, reader: str) -> bool:
        """Remove a reader, and return whether it was registered: it holds no event back then."""
        at = self._key(reader)
        found = self._client.read_one(at) is not None
        if found:
            self._client.commit([], [Delete(at)])
        return found

    def prune(self, partitions: Iterable[int], keep_s: float, remember_s: float) -> Pruned:
        """Remove events that are older than `keep_s` and completed by every reader, and ids that
        are older than `remember_s`.
        """
        events = ids = 0
        for partition in partitions:
            misses = 0
            while misses < MISSES_MAX:
                now_us = self._now_us()
                removal = self._removal(
                    partition, now_us - int(keep_s * 1e6), now_us - int(remember_s * 1e6)
                )
                if removal is None:
                    break
                if not self._remove(removal):
                    misses += 1
                    continue
                events, ids = events + removal.events, ids + removal.ids
        return Pruned(events, ids)

    def _removal(self, partition: int, before_us: int, forget_us: int) -> _Removal | None:
        """Return what the next commit removes; None if nothing is left to remove."""
        # 1. Readers first: a reader that registers later changes the row `registered`.
        registered = Equals(*self._registered())
        end_at = partition_key(self._stream, partition)
        text = self._client.read_one(end_at)
        if text is None:
            return None
        row = InboxEndRow.load(text, end_at)
        limit = min((each.completed.get(partition, 0) for each in self.readers()), default=row.end)
        # 2. Ids that are old enough.
        updates: list[Update] = []
        remembered, begin, ids = row.remembered, row.begin, 0
        for at, group in self._groups(partition, remembered):
            if group.time_us > forget_us or (updates and len(updates) + group.count > UPDATES_MAX):
                break
            known = read_row(INBOX_TABLE, at, partial(ids_of, group))
            updates += [Delete(make_key(PRODUCERS_TABLE, self._stream, *each)) for each in known]
            if group.pruned:
                updates.append(Delete(at))
            remembered, ids = group_end(at), ids + len(known)
        # 3. Events that are old enough and completed. Ids that are not forgotten stay.
        for at, group in self._groups(partition, begin):
            end = group_end(at)
            if end > limit or group.time_us > before_us or len(updates) >= UPDATES_MAX:
                break
            if end <= remembered:
                updates.append(Delete(at))
            else:
                slim = read_row(INBOX_TABLE, at, partial(without_events, group))
                updates.append(Put(at, slim.dump()))
            begin = end
        if (begin, remembered) == (row.begin, row.remembered):
            return None
        return _Removal(registered, end_at, text, begin, remembered, updates, ids)

    def _remove(self, removal: _Removal) -> bool:
        """Commit a removal, and return whether it is done. Events that others append meanwhile
        change nothing about it: only their partition's row is read again, so that constant appends
        do not keep it from being pruned.
        """
        at, text = removal.end_at, removal.text
        for _ in range(APPENDS_MAX):
            row = InboxEndRow.load(text, at)
            if not removal.follows(row):
                return False  # another process has pruned
            after = replace(row, begin=removal.begin, remembered=removal.remembered)
            try:
                self._client.commit(
                    [Equals(at, text), removal.registered],
                    [*removal.updates, Put(at, after.dump())],
                )
            except Conflict as conflict:
                found = self._client.read_one(at)
                if conflict.key != at or found is None:
                    return False
                text = found
            else:
                return True
        return False

    def _groups(self, partition: int, start: int) -> Iterator[tuple[Key, InboxGroupRow]]:
        """Yield groups in order, from the one with the event at `start` on."""
        return groups_from(self._client, self._stream, partition, start)

    def _registered(self) -> tuple[Key, str]:
        """Return the row that changes with every registration."""
        at = make_key(INBOX_READERS_TABLE, self._stream)
        text = self._client.read_one(at)
        if text is None:
            raise DamagedRow(INBOX_READERS_TABLE, at.key, "it is missing")
        return at, text

    def _key(self, reader: str) -> Key:
        if not isinstance(reader, str) or not reader:
            raise ConfigurationError(f"reader must be a non-empty string, got {reader!r}")
        if not is_reader_name(reader):
            raise ConfigurationError(
                f"reader must have at most {READER_CHARACTERS_MAX} characters, all of them "
                f"printable, got {plain_text(reader, 100)!r}"
            )
        return make_key(INBOX_READERS_TABLE, self._stream, reader)

    def _now_us(self) -> int:
        return int(self._client.clock.wall() * 1_000_000)


def is_reader_name(text: str) -> bool:
    """Return whether a reader can be registered under this name."""
    return 0 < len(text) <= READER_CHARACTERS_MAX and text.isprintable()


def _reader(row: InboxReaderRow) -> InboxReader:
    return InboxReader(row.reader, row.completed, row.time_us)
