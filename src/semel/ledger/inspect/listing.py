"""Reads all rows of a ledger, each by its table, and lists the rows that cannot be read."""

from __future__ import annotations

import base64
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from zlib import crc32

from semel.ledger import journal, keys
from semel.ledger.inbox_rows import (
    COUNTERS_TABLE,
    INBOX_ENDS_TABLE,
    INBOX_READERS_TABLE,
    INBOX_TABLE,
    PRODUCERS_TABLE,
    CounterRow,
    InboxEndRow,
    InboxGroupRow,
    InboxReaderRow,
    InboxRegisteredRow,
    ProducerRow,
)
from semel.ledger.keys import (
    EVENTS_TABLE,
    HEADS_TABLE,
    OPEN_TABLE,
    PARKED_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
)
from semel.ledger.payloads import DamagedRow, Unfit, codec_of, each_of, read_row
from semel.ledger.rows import (
    HeadRow,
    OpenRow,
    ParkedRow,
    PartitionRow,
    SpanRow,
    minibatch_of,
    read_description,
)
from semel.ledger.stream_rows import MARKERS_TABLE, MarkerHead, MarkerRow
from semel.ledger.verbs.complete import SEQUENCES_TABLE as SEQUENCES
from semel.ledger.verbs.complete import SequenceRow
from semel.ledger.verbs.parked import event_in_key
from semel.ledger.verbs.pruning import OUTCOMES_TABLE as OUTCOMES
from semel.ledger.verbs.pruning import OutcomeRow
from semel.ledger.verbs.resends import SlotRow
from semel.ledger.verbs.reset import RESETS_TABLE, ResetRow
from semel.ledger.verbs.runs import NAMES_TABLE, OWNERS_TABLE, NameRow, OwnerRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.ledger.store.commit import Key, Store


class Problem(NamedTuple):
    """A row with a problem: table, key, and what is wrong."""

    table: str
    key: str
    what: str


def load_row(at: Key, text: str) -> Any:
    """Read a row of any table. Raises `DamagedRow`."""
    if at.table == OWNERS_TABLE and "/" in at.key:
        return SlotRow.load(text, at)
    if at.table == MARKERS_TABLE and "/" in at.key:
        return MarkerRow.load(text, at)
    return _LOAD[at.table](text, at)


def _load_parked(text: str, at: Key) -> ParkedRow:
    """Read a parked event and check that the payload for a resend can be read too."""
    row = ParkedRow.load(text, at)
    read_row(PARKED_TABLE, at, lambda: require_payload(row))
    return row


def require_payload(row: ParkedRow) -> None:
    """Check that the event can be rebuilt for a resend. Raises ValueError or OSError."""
    import pyarrow as pa

    if row.schema is None or row.value is None:
        if (row.schema is None) != (row.value is None):
            raise Unfit("the fields 'value' and 'schema' must be present together")
        return
    content = base64.b64decode(row.schema, validate=True)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(content))
    except pa.ArrowException as error:
        raise ValueError(f"the schema cannot be read ({type(error).__name__})") from error
    if set(schema.names) != set(row.value):
        raise Unfit("the fields 'value' and 'schema' must have the same columns")


def _load_journal(text: str, at: Key) -> journal.JournalRow:
    entry = journal.load_entry(text, at)
    place = at.key.rpartition("/")[0] + "/"
    state = journal.JournalState(
        {name: each for name, each in entry.state.items() if each is not None}
    )
    operator = read_row(journal.JOURNAL_TABLE, at, lambda: keys.key_text(keys.split_key(at.key)[1]))
    if operator == journal.COUNTERS.name:
        journal.require_counts(state.values, at.key)
    elif any(isinstance(each, list) for each in state.values.values()):
        journal.require_reached(state.values, at.key)
    else:
        journal.sets_in(state, place)
        kinds = set(map(type, state.values.values()))
        if kinds - {dict, bool, int}:
            raise DamagedRow(
                journal.JOURNAL_TABLE, at.key, "the field 'state' must hold sets of ids"
            )
    return entry


def _load_described(text: str, at: Key) -> dict[str, Any]:
    """Read a description and check that it has what every version writes."""
    row = read_description(text, at)
    return read_row(PIPELINES_TABLE, at, lambda: codec_of(_Described).checked(row))


@dataclass(frozen=True, slots=True)
class _IdentityKind:
    kind: str


@dataclass(frozen=True, slots=True)
class _SinkCapability:
    capability: str


@dataclass(frozen=True, slots=True)
class _Described:
    identity: _IdentityKind
    sinks: Annotated[
        dict[str, _SinkCapability], each_of(_SinkCapability, "the description of a sink")
    ]


def _load_group(text: str, at: Key) -> InboxGroupRow:
    """Read a group of events and check its content, which is not kept."""
    row = InboxGroupRow.load(text, at)
    if read_row(INBOX_TABLE, at, lambda: crc32(base64.b64decode(row.content))) != row.crc:
        raise DamagedRow(INBOX_TABLE, at.key, "the checksum does not agree with the content")
    return replace(row, content="")


def _load_reader(text: str, at: Key) -> InboxReaderRow | InboxRegisteredRow:
    return (InboxReaderRow if "/" in at.key else InboxRegisteredRow).load(text, at)


_LOAD: dict[str, Any] = {
    PIPELINES_TABLE: _load_described,
    OWNERS_TABLE: OwnerRow.load,
    OPEN_TABLE: OpenRow.load,
    STREAMS_TABLE: PartitionRow.load,
    EVENTS_TABLE: SpanRow.load,
    SEQUENCES: SequenceRow.load,
    PARKED_TABLE: _load_parked,
    HEADS_TABLE: HeadRow.load,
    OUTCOMES: OutcomeRow.load,
    journal.JOURNAL_TABLE: _load_journal,
    INBOX_TABLE: _load_group,
    INBOX_ENDS_TABLE: InboxEndRow.load,
    INBOX_READERS_TABLE: _load_reader,
    COUNTERS_TABLE: CounterRow.load,
    PRODUCERS_TABLE: ProducerRow.load,
    MARKERS_TABLE: MarkerHead.load,
    RESETS_TABLE: ResetRow.load,
    NAMES_TABLE: NameRow.load,
}

_LENGTHS = {
    PIPELINES_TABLE: (1,),
    OWNERS_TABLE: (1, 4),
    OPEN_TABLE: (1,),
    STREAMS_TABLE: (5,),
    EVENTS_TABLE: (6,),
    SEQUENCES: (3,),
    PARKED_TABLE: (6,),
    HEADS_TABLE: (3, 4),
    OUTCOMES: (3,),
    journal.JOURNAL_TABLE: (4,),
    INBOX_TABLE: (3,),
    INBOX_ENDS_TABLE: (2,),
    INBOX_READERS_TABLE: (1, 2),
    COUNTERS_TABLE: (2,),
    PRODUCERS_TABLE: (3,),
    MARKERS_TABLE: (1, 2),
    RESETS_TABLE: (2,),
    NAMES_TABLE: (1,),
}
"""How many parts a key of each table has."""

_ALONE = {COUNTERS_TABLE, PRODUCERS_TABLE}
"""Tables with a row for each entity or event: their rows are read one by one, and not kept."""


@dataclass
class LedgerRows:
    """The rows of a ledger that can be read, by table and key."""

    by_table: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    @classmethod
    def read(cls, store: Store) -> LedgerRows:
        """Read every row of every table."""
        rows = cls()
        for table in _LOAD:
            for at, text in store.scan(table, ""):
                rows.count += 1
                rows.problems.extend(rows._take(at, text))
        return rows

    def _take(self, at: Key, text: str) -> Iterator[Problem]:
        try:
            row = load_row(at, text)
            if len(keys.split_key(at.key)) not in _LENGTHS[at.table]:
                raise DamagedRow(at.table, at.key, "its key has the wrong number of parts")
            wrong = read_row(at.table, at, lambda: _disagrees(at, row))
        except DamagedRow as error:
            yield Problem(at.table, at.key, error.what)
            return
        if wrong is not None:
            yield Problem(at.table, at.key, f"its key does not agree with the field {wrong!r}")
            return
        if at.table not in _ALONE:
            self.by_table[at.table][at.key] = row

    def of(self, table: str, start: str = "") -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the parts of each key under `start`, and the row."""
        for at, row in self.by_table[table].items():
            if at.startswith(start):
                yield keys.split_key(at), row


def _disagrees(at: Key, row: Any) -> str | None:
    """Return the name of the first field that differs from the key."""
    parts = keys.split_key(at.key)
    wanted: list[tuple[str, str, str]] = []
    if at.table in (STREAMS_TABLE, EVENTS_TABLE):
        minibatch_of(at)
    if at.table in (STREAMS_TABLE, SEQUENCES, INBOX_ENDS_TABLE):
        wanted = [("partition", parts[-1], keys.written_part(row.partition))]
    elif at.table == EVENTS_TABLE:
        wanted = [("number", parts[-1], keys.written_part(row.number))]
    elif at.table == INBOX_READERS_TABLE and len(parts) == 2:
        wanted = [("reader", parts[-1], keys.written_part(row.reader))]
    elif at.table == RESETS_TABLE:
        wanted = [("number", parts[-1], keys.written_part(row.number))]
    elif at.table == OUTCOMES:
        wanted = [("scope", parts[-1], keys.written_part(row.scope))]
    elif at.table == HEADS_TABLE:
        entity = [row.entity] if row.entity == row.scope else [row.entity, row.scope]
        wanted = [("entity", "/".join(parts[2:]), "/".join(map(keys.written_part, entity)))]
    elif at.table == PARKED_TABLE:
        event = keys.written_part(event_in_key(row))
        numbers = (row.minibatch.generation, row.minibatch.batch)
        minibatch = "/".join(map(keys.written_part, numbers))
        wanted = [
            ("entity", parts[2], keys.written_part(row.entity)),
            ("event", parts[3], event),
            ("minibatch", "/".join(parts[4:]), minibatch),
        ]
    return next((name for name, written, own in wanted if written != own), None)


def ascending(values: list[int]) -> bool:
    """Whether numbers never decrease."""
    return all(one <= other for one, other in pairwise(values))
