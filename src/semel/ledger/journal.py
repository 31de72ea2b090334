"""Log-based state: operators keep deltas per partition, and from time to time a full snapshot.

Always true:
- a row's number is the serial of the minibatch it was written with, so it is written once, with
  `complete`;
- the state as of a number is the newest full snapshot up to it with the later deltas up to it on
  top;
- compaction keeps every number from the newest full snapshot that is two minibatches old, so that
  at least two points can be restored, and every minibatch that is not swept can be replayed;
- a cache holds only rows that were read from the store, and newer rows are read on top of it: a
  stale one costs a longer read, never a wrong state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from semel.events import EntityIds
from semel.events.encoding import PreEncoded
from semel.ledger import keys
from semel.ledger.keys import make_key, make_prefix
from semel.ledger.payloads import DamagedRow, Row, Unfit, codec_of, decode_row, read_row
from semel.ledger.store.commit import Delete, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Update

    Check = Callable[[Mapping[str, Any], str], None]
    """Checks the state in a row, given its key. Raises `DamagedRow`."""

JOURNAL_TABLE = "journal"
FORGOTTEN = 0
"""The number of the row that records that older ones were pruned: below every minibatch."""
FORGOT = "forgot"
"""The field with the oldest generation of which a set was forgotten; version 0.1 wrote true."""
MET = "met"
"""The field with the generation in which a remembered id was last met. Version 0.1 wrote it, and
continued although something was forgotten; now a person's acceptance is in `open` instead.
"""
SMALLEST_FULL = 4_096
"""Deltas of fewer bytes than this are never folded into a full snapshot."""


@dataclass(frozen=True, slots=True)
class StateOperator:
    """A named part of the state. Journaled: deltas and from time to time a full snapshot; otherwise
    always full.
    """

    name: str
    journaled: bool = True


COUNTERS = StateOperator("counters")
_WATERMARK = "watermark:"
_UNSURE = "unsure:"


def watermark_of(sink: str) -> StateOperator:
    """Return the operator that keeps the watermarks of given ids of one sink."""
    return StateOperator(f"{_WATERMARK}{sink}")


def unsure_of(sink: str) -> StateOperator:
    """Return the operator for events of one sink that may have been sent when a generation ended,
    and are sent again under their own keys: if one is refused, its outcome is in doubt.
    """
    return StateOperator(f"{_UNSURE}{sink}")


def read_unsure(client: LedgerClient, sink: str) -> EntityIds:
    """Return those events, of all partitions."""
    rows = client.scan(JOURNAL_TABLE, keys.make_prefix(client.pipeline, unsure_of(sink).name))
    return EntityIds.union([sets_in(state, place) for place, state in states_of(rows).items()])


@dataclass(frozen=True, slots=True)
class JournalRow(Row):
    """One row: the changes of a state, or everything, as of a minibatch's serial."""

    TABLE = JOURNAL_TABLE

    number: int
    full: bool
    state: dict[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One snapshot of one operator in one partition, as it is written: its row's text has the
    changes, or everything; `drop` are the numbers of the rows that it replaces.
    """

    operator: str
    partition: str
    number: int
    full: bool
    text: str
    drop: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        operator: str,
        partition: str,
        number: int,
        state: dict[str, Any] | PreEncoded,
        at: float,
        *,
        full: bool = False,
        drop: tuple[int, ...] = (),
    ) -> JournalEntry:
        """Write a state as text, once for all that count or store it."""
        # Encoded JSON is written as it is.
        row = JournalRow(number, full, cast("dict[str, Any]", state), at)
        return cls(operator, partition, number, full, row.dump(), drop)


@dataclass(frozen=True, slots=True)
class JournalState:
    """The state of an operator in a partition as of a number.

    Attributes:
        number: of the newest row it was made from, 0 if there is none.
        numbers: of every row, with whether it is full and its length.
    """

    values: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    numbers: tuple[tuple[int, bool, int], ...] = ()

    def bytes_of_full(self) -> int:
        """Return the length of the newest full snapshot, 0 if there is none."""
        return next((size for _, full, size in reversed(self.numbers) if full), 0)

    def bytes_since_full(self) -> int:
        """Return the total length of the deltas since the newest full snapshot."""
        total = 0
        for _, full, size in reversed(self.numbers):
            if full:
                break
            total += size
        return total


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """Counts, bytes and seconds of snapshots created and loaded, full and journaled."""

    full_created: int = 0
    journal_created: int = 0
    full_loaded: int = 0
    journal_loaded: int = 0
    bytes_created: int = 0
    bytes_loaded: int = 0
    seconds_loading: float = 0.0

    def __add__(self, other: SnapshotFigures) -> SnapshotFigures:
        return SnapshotFigures(
            self.full_created + other.full_created,
            self.journal_created + other.journal_created,
            self.full_loaded + other.full_loaded,
            self.journal_loaded + other.journal_loaded,
            self.bytes_created + other.bytes_created,
            self.bytes_loaded + other.bytes_loaded,
            self.seconds_loading + other.seconds_loading,
        )


class Journal:
    """Reads and extends the journal of one pipeline: get, add, clean."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._cache: dict[tuple[str, str], JournalState] = {}
        self.figures = SnapshotFigures()

    def restore(
        self, operator: StateOperator, partition: str, *, before: int, check: Check | None = None
    ) -> JournalState:
        """Return the state as of the newest number below `before`, from which the minibatch
        `before` starts. `check` checks each row that is read; cached rows were checked.
        """
        began = self._client.clock.monotonic()
        cached = self._cache.get((operator.name, partition), JournalState())
        if cached.number >= before:
            cached = JournalState()
        rows = self._rows(operator.name, partition, cached.number, check)
        state = self._fold(cached, (each for each in rows if each[0].number < before))
        self.figures += SnapshotFigures(seconds_loading=self._client.clock.monotonic() - began)
        self._cache[operator.name, partition] = state
        return state

    def entry(
        self,
        operator: StateOperator,
        partition: str,
        number: int,
        base: JournalState,
        delta: dict[str, Any] | PreEncoded,
    ) -> JournalEntry:
        """Return the next row after `base`: a delta, or a full snapshot if the deltas have outgrown
        it.

        A value of None in `delta` removes the name; `delta` may be encoded JSON. Nothing is written
        here: the row is written with `complete`.
        """
        at = self._client.clock.wall()
        full = not operator.journaled
        if operator.journaled:
            full = base.bytes_since_full() > max(SMALLEST_FULL, base.bytes_of_full())
        drop = _droppable(base.numbers, number) if full else ()
        state = _whole(base.values, delta) if full else delta
        entry = JournalEntry.of(operator.name, partition, number, state, at, full=full, drop=drop)
        self._created(entry)
        return entry

    def append(
        self, operator: StateOperator, partition: str, number: int, delta: dict[str, Any]
    ) -> JournalEntry:
        """Return a row of an operator that is never folded, without reading its other rows: its
        deltas stay as they are until they are pruned by age.
        """
        entry = JournalEntry.of(operator.name, partition, number, delta, self._client.clock.wall())
        self._created(entry)
        return entry

    def _created(self, entry: JournalEntry) -> None:
        self.figures += SnapshotFigures(
            full_created=int(entry.full),
            journal_created=int(not entry.full),
            bytes_created=len(entry.text),
        )

    def take_figures(self) -> SnapshotFigures:
        """Return what was created and loaded since this was last called."""
        figures, self.figures = self.figures, SnapshotFigures()
        return figures

    def _rows(
        self, operator: str, partition: str, after: int, check: Check | None
    ) -> Iterator[tuple[JournalRow, int]]:
        """Return the rows after a number, and the length of each."""
        start = make_prefix(self._client.pipeline, operator, partition)
        since = (
            make_key(JOURNAL_TABLE, self._client.pipeline, operator, partition, after).key
            if after
            else ""
        )
        for at, text in self._client.scan(JOURNAL_TABLE, start, after=since):
            row = load_entry(text, at)
            if check is not None:
                check(row.state, at.key)
            yield row, len(text)

    def place(self, operator: StateOperator, partition: str) -> str:
        """Return the prefix of the keys of an operator's rows in a partition."""
        return make_prefix(self._client.pipeline, operator.name, partition)

    def _fold(self, base: JournalState, rows: Iterable[tuple[JournalRow, int]]) -> JournalState:
        values = base.values
        numbers = list(base.numbers)
        for row, size in rows:
            values = dict(row.state) if row.full else _applied(values, row.state)
            numbers.append((row.number, row.full, size))
        loaded = numbers[len(base.numbers) :]
        if loaded:
            fulls = sum(full for _, full, _ in loaded)
            self.figures += SnapshotFigures(
                full_loaded=fulls,
                journal_loaded=len(loaded) - fulls,
                bytes_loaded=sum(size for _, _, size in loaded),
            )
        return JournalState(_standing(values), numbers[-1][0] if numbers else 0, _recent(numbers))


def load_entry(text: str, at: Key) -> JournalRow:
    """Read a row, and check that its number is the one in its key. Raises `DamagedRow`."""

    def decode(payload: dict[str, Any]) -> JournalRow:
        row: JournalRow = codec_of(JournalRow).read(payload)
        if keys.key_number(keys.split_key(at.key)[-1]) != row.number:
            raise Unfit("the field 'number' differs from the number in its key")
        return row

    return decode_row(JOURNAL_TABLE, at, text, decode)


def number_in(at: Key) -> int:
    """Read the number in the key of a row. Raises `DamagedRow`."""
    return read_row(JOURNAL_TABLE, at, lambda: keys.key_number(keys.split_key(at.key)[-1]))


def require_counts(values: Mapping[str, Any], at: str) -> None:
    """Check that a state, or the change of one, has a count for each entity.

    Raises `DamagedRow` with the key, or the prefix of the keys of its rows. Here and below values
    are checked as columns: there may be a million of them.
    """
    counts = _there(values)
    if set(map(type, counts)) - {int} or min(counts, default=0) < 0:
        raise DamagedRow(JOURNAL_TABLE, at, "the field 'state' must have a count for each entity")


def require_reached(values: Mapping[str, Any], at: str) -> None:
    """Check that a state, or the change of one, has the last id of each entity and its generation,
    and perhaps ids above. Raises `DamagedRow`, as above.
    """
    reached = _there(values)
    if not reached:
        return
    fits = set(map(type, reached)) == {list} and set(map(len, reached)) <= {2, 3}
    if fits:
        lasts, generations = (set(map(type, map(itemgetter(at), reached))) for at in (0, 1))
        shapes = lasts - {type(None)}
        fits = shapes <= {int, str, list} and len(shapes) <= 1 and generations == {int}
        if fits and shapes == {list}:
            parts = [each[0] for each in reached if each[0] is not None]
            kinds = set(map(type, chain.from_iterable(parts)))
            fits = kinds <= {int, str} and len(set(map(len, parts))) == 1 and all(parts)
    if not fits:
        what = "the field 'state' must have an id and a generation for each entity"
        raise DamagedRow(JOURNAL_TABLE, at, what)


def _there(values: Mapping[str, Any]) -> Collection[Any]:
    """Return the values without those of removed names."""
    found = values.values()
    return [each for each in found if each is not None] if None in found else found


def states_of(rows: Iterable[tuple[Key, str]]) -> dict[str, JournalState]:
    """Return the current states from rows in key order, by the prefix of their keys."""
    found: dict[str, JournalState] = {}
    for at, text in rows:
        entry = load_entry(text, at)
        place = at.key.rpartition("/")[0] + "/"
        before = found.get(place, JournalState()).values
        values = dict(entry.state) if entry.full else _applied(before, entry.state)
        found[place] = JournalState(_standing(values), entry.number)
    return found


def sets_in(state: JournalState, place: str) -> EntityIds:
    """Return the ids of every set in a state whose rows are under `place`. Raises `DamagedRow`."""
    sets = [
        read_row(
            JOURNAL_TABLE, place + keys.written_part(int(name)), partial(EntityIds.from_json, value)
        )
        for name, value in state.values.items()
        if isinstance(value, dict) and name.isdecimal()
    ]
    return read_row(JOURNAL_TABLE, place, partial(EntityIds.union, sets))


def journal_updates(pipeline: str, entries: Iterable[JournalEntry]) -> list[Update]:
    """Return the updates that write entries and drop the rows they replace, for `complete`."""
    made: list[Update] = []
    for entry in entries:
        made.append(Put(_key(pipeline, entry, entry.number), entry.text))
        made.extend(Delete(_key(pipeline, entry, number)) for number in entry.drop)
    return made


def _key(pipeline: str, entry: JournalEntry, number: int) -> Key:
    return make_key(JOURNAL_TABLE, pipeline, entry.operator, entry.partition, number)


def _whole(
    values: dict[str, Any], delta: dict[str, Any] | PreEncoded
) -> dict[str, Any] | PreEncoded:
    """Return the state after a delta; the delta's own JSON if it names everything."""
    if not isinstance(delta, PreEncoded):
        return _standing(_applied(values, delta))
    changes = json.loads(delta.content)
    whole = _standing(_applied(values, changes))
    return delta if whole.keys() == changes.keys() else whole


def _applied(values: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    return {**values, **delta}


def _standing(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without removed names."""
    return {name: value for name, value in values.items() if value is not None}


def _recent(numbers: list[tuple[int, bool, int]]) -> tuple[tuple[int, bool, int], ...]:
    """Return the numbers without those that compaction dropped long ago, so that the memory of a
    long-running process does not grow.
    """
    fulls = [at for at, (_, full, _) in enumerate(numbers) if full]
    return tuple(numbers[fulls[-4] :] if len(fulls) >= 4 else numbers)


def _droppable(numbers: tuple[tuple[int, bool, int], ...], number: int) -> tuple[int, ...]:
    """Return the numbers of the rows that are older than the newest full snapshot which is at least
    two minibatches older than `number`.
    """
    anchors = [row for row, full, _ in numbers if full and row <= number - 2]
    if not anchors:
        return ()
    return tuple(row for row, _, _ in numbers if row < anchors[-1])
