"""The new name and the end of a stopped pipeline: every row of it gets another key, or is removed.

Always true:
- a rename is one commit, so a crash leaves the pipeline under the old name or under the new one;
  the commit before it only fences attempts that are still alive, and may be repeated;
- destinations know a renamed pipeline by its first name (`known_as`) for as long as it exists, and
  no other pipeline may take a name that was given up;
- the first commit of a forget takes the name, so that nothing starts while its rows are removed;
  after a crash, forget is called again and removes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Fenced
from semel.ledger.journal import JOURNAL_TABLE
from semel.ledger.keys import (
    EVENTS_TABLE,
    HEADS_TABLE,
    OPEN_TABLE,
    PARKED_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
    is_key_text,
    make_key,
    written_part,
)
from semel.ledger.payloads import DamagedRow, Row, dump_payload
from semel.ledger.rows import OpenRow, read_description
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Key, Put
from semel.ledger.stream_rows import MARKERS_TABLE
from semel.ledger.verbs.complete import SEQUENCES_TABLE
from semel.ledger.verbs.pruning import OUTCOMES_TABLE
from semel.ledger.verbs.resends import SlotRow
from semel.ledger.verbs.reset import RESETS_TABLE
from semel.ledger.verbs.runs import (
    FINISHED,
    KNOWN_AS,
    NAMES_TABLE,
    OWNERS_TABLE,
    NameRow,
    name_key,
)
from semel.protocol import ParkedState, PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Requirement, Update

TABLES_OF_PIPELINE = (
    PIPELINES_TABLE,
    OWNERS_TABLE,
    OPEN_TABLE,
    STREAMS_TABLE,
    EVENTS_TABLE,
    SEQUENCES_TABLE,
    PARKED_TABLE,
    HEADS_TABLE,
    OUTCOMES_TABLE,
    JOURNAL_TABLE,
    RESETS_TABLE,
)
"""The tables whose keys begin with the name of a pipeline; `markers` has its stream there."""
ROWS_MAX = 20_000
"""How many rows a pipeline may have that is renamed: they are one commit."""
PAGE = 1_000
"""How many rows are read at once, and removed by one commit."""
_REMEDIES = {
    PARKED_TABLE: (
        "parked events",
        "Resolve them: they are removed a while after (remember_s)",
    ),
    JOURNAL_TABLE: (
        "the ids that it remembers, a row for each minibatch and partition",
        "Run it with a smaller remember_s for more than 100 minibatches, which removes older ones",
    ),
}
"""What most rows are, and how there are fewer."""
_BATCH = "batch"
"""What a batch job has in the place of Spark's query id."""


@dataclass(frozen=True, slots=True)
class _ParkedStanding(Row):
    """What a forget reads of a `ParkedRow`."""

    TABLE = PARKED_TABLE

    state: ParkedState


@dataclass(frozen=True, slots=True)
class _PartitionStanding(Row):
    """What a forget reads of a `PartitionRow`."""

    TABLE = STREAMS_TABLE

    state: PartitionState


@dataclass(frozen=True, slots=True)
class PipelineRows:
    """The rows of a pipeline: how many by table, and which of them are not settled.

    Attributes:
        parked: events that are not in a final state.
        pending: partitions that an attempt has taken and not completed; their events may be in
            doubt.
    """

    tables: Mapping[str, int]
    parked: int
    pending: int

    @property
    def unsettled(self) -> int:
        """How many events and partitions the ledger would not know the outcome of any more."""
        return self.parked + self.pending


class Lifecycle:
    """Renames or forgets the pipeline of a client. It must be stopped: the caller makes sure."""

    def __init__(self, client: LedgerClient, stream: str) -> None:
        """`stream` has the markers of the pipeline."""
        self._client = client
        self._stream = stream
        self._name = name_key(client.pipeline)
        self._pipeline = make_key(PIPELINES_TABLE, client.pipeline)
        self._owner = make_key(OWNERS_TABLE, client.pipeline)

    def count(self) -> PipelineRows:
        """Count the rows of the pipeline, page by page."""
        tables: dict[str, int] = {}
        parked = pending = 0
        for at, text in self._rows():
            tables[at.table] = tables.get(at.table, 0) + 1
            try:
                if at.table == PARKED_TABLE:
                    parked += not _ParkedStanding.load(text, at).state.final
                elif at.table == STREAMS_TABLE:
                    pending += _PartitionStanding.load(text, at).state is PartitionState.PENDING
            except DamagedRow:  # it may be either
                parked += at.table == PARKED_TABLE
                pending += at.table == STREAMS_TABLE
        return PipelineRows(tables, parked, pending)

    def _places(self, pipeline: str, stream: str) -> Iterator[tuple[str, str]]:
        """Yield each table with how the keys of a pipeline begin there."""
        for table in TABLES_OF_PIPELINE:
            yield table, written_part(pipeline)
        yield MARKERS_TABLE, written_part(stream)

    def _rows(self) -> Iterator[tuple[Key, str]]:
        """Yield every row of the pipeline."""
        for table, start in self._places(self._client.pipeline, self._stream):
            alone = Key(table, start)
            text = self._client.read_one(alone)
            if text is not None:
                yield alone, text
            after = ""
            while True:
                page = self._client.scan(table, f"{start}/", after=after, limit=PAGE)
                yield from page
                if len(page) < PAGE:
                    break
                after = page[-1][0].key

    # -- forget

    def forget(self, by: str) -> None:
        """Remove every row of the pipeline, and free its names. Called again after a crash, it
        goes on. Raises `Fenced` if the pipeline runs meanwhile, `ConfigurationError` for a name
        that has another pipeline now.
        """
        # 1. Take the name, and remove what a run needs to write anything. From now on nothing
        #    starts under it, and an attempt that is still alive is fenced. A crash leaves rows that
        #    nothing reads, and a name that says what to do.
        taken = self._take_name(by)
        # 2. Remove the rest. Each commit requires the name as it was taken, so that a late copy of
        #    it finds nothing to do.
        for page in self._pages():
            self._commit([Equals(self._name, taken)], [Delete(at) for at in page])
        # 3. Free the name, and those that it had before. A crash before it repeats step 2.
        freed = [at for at, _, _ in self._names_before()]
        self._commit(
            [Equals(self._name, taken)], [Delete(self._name), *(Delete(at) for at in freed)]
        )

    def _take_name(self, by: str) -> str:
        keys = (self._pipeline, self._owner, self._client.open_key)
        rows = self._client.read(self._name, *keys)
        text = rows.get(self._name)
        if text is not None:
            row = NameRow.load(text, self._name)
            if row.renamed_to:
                raise ConfigurationError(row.refusal(self._client.pipeline))
            return text
        taken = NameRow("", self._client.clock.wall(), by).dump()
        required: list[Requirement] = [Equals(at, rows[at]) for at in keys if at in rows]
        updates: list[Update] = [Delete(at) for at in keys if at in rows]
        self._commit([Absent(self._name), *required], [Put(self._name, taken), *updates])
        return taken

    def _pages(self) -> Iterator[list[Key]]:
        """Yield the keys of all rows, in pages that are removed before the next is read."""
        for table, start in self._places(self._client.pipeline, self._stream):
            alone = Key(table, start)
            if self._client.read_one(alone) is not None:
                yield [alone]
            while page := self._client.scan(table, f"{start}/", limit=PAGE):
                yield [at for at, _ in page]

    # -- rename

    def rename(self, new: str, stream: str, by: str) -> None:
        """Give the pipeline another name; `stream` has its markers then.

        A lost reply is recognised. Raises `ConfigurationError` for a name that is taken, for a
        batch job and for more than `ROWS_MAX` rows, `Fenced` if the pipeline changed meanwhile.
        """
        described = self._refuse_unfit(new, stream)
        # 1. Fence attempts that are still alive: they could add rows that step 2 does not move. A
        #    crash after it leaves the pipeline under its old name, complete.
        self._fence()
        # 2. Move all rows in one commit, each as it was read.
        rows = list(self._limited())
        self._commit(*self._moved(rows, described, (new, stream, by)))

    def _refuse_unfit(self, new: str, stream: str) -> dict[str, Any]:
        """Return the description of the pipeline; refuse what cannot be renamed."""
        name, client = self._client.pipeline, self._client
        if not new or new == name or "@" in new or not is_key_text(written_part(new)):
            raise ConfigurationError(
                f"the new name must be another text than {name!r}, not empty, without an @ and not "
                f"longer than a key of the ledger, got {new!r}"
            )
        rows = client.read(self._pipeline, client.open_key, name_key(new))
        described = read_description(rows.get(self._pipeline), self._pipeline)
        opened = rows.get(client.open_key)
        batch = opened is not None and OpenRow.load(opened, client.open_key).query == _BATCH
        if FINISHED in described or batch:
            raise ConfigurationError(
                f"{name!r} is a batch job, and is known by its name and its batch: it cannot be "
                "renamed. Deliver later batches under the new name"
            )
        taken = rows.get(name_key(new))
        if taken is not None:
            row = NameRow.load(taken, name_key(new))
            if row.renamed_to != name:
                raise ConfigurationError(row.refusal(new))
        for table, start in self._places(new, stream):
            at = Key(table, start)
            if client.read_one(at) is not None or client.scan(table, f"{start}/", limit=1):
                raise ConfigurationError(
                    f"there are rows of a pipeline {new!r} in this ledger (table {table!r}): "
                    f"choose another name, or remove them with `semel forget {new}`"
                )
        return described

    def _fence(self) -> None:
        at = self._client.open_key
        text = self._client.read_one(at)
        if text is not None:
            opened = OpenRow.load(text, at)
            later = replace(opened, version=opened.version + 1)
            self._commit([Equals(at, text)], [Put(at, later.dump())])

    def _limited(self) -> Iterator[tuple[Key, str]]:
        tables: dict[str, int] = {}
        for count, row in enumerate(self._rows()):
            if count == ROWS_MAX:
                most = max(tables, key=lambda table: tables[table])
                what, remedy = _REMEDIES.get(most, (f"rows in {most!r}", "Keep the name"))
                raise ConfigurationError(
                    f"pipeline {self._client.pipeline!r} has more than {ROWS_MAX:,} rows in the "
                    f"ledger, which is more than one commit moves; most of them are {what}. "
                    f"{remedy}; or keep the name"
                )
            tables[row[0].table] = tables.get(row[0].table, 0) + 1
            yield row

    def _moved(
        self, rows: list[tuple[Key, str]], described: dict[str, Any], named: tuple[str, str, str]
    ) -> tuple[list[Requirement], list[Update]]:
        """Return the commit that moves rows to the new name."""
        new, stream, by = named
        old = self._client.pipeline
        at_sinks = described.get(KNOWN_AS) or old
        kept = {name: each for name, each in described.items() if name != KNOWN_AS}
        known = dump_payload(kept if at_sinks == new else {**kept, KNOWN_AS: at_sinks})
        now = self._client.clock.wall()
        requirements: list[Requirement] = [Absent(self._name)]
        updates: list[Update] = [Put(self._name, NameRow(new, now, by).dump())]
        starts = {table: (len(start), start) for table, start in self._places(old, self._stream)}
        later = dict(self._places(new, stream))
        for at, text in rows:
            length, _ = starts[at.table]
            put = Key(at.table, later[at.table] + at.key[length:])
            moved = text
            if at == self._pipeline:
                moved = known
            elif at.table == OWNERS_TABLE and at != self._owner:  # it names the event that is sent
                slot = SlotRow.load(text, at)
                if slot.current is not None:
                    event = later[PARKED_TABLE] + slot.current[starts[PARKED_TABLE][0] :]
                    moved = replace(slot, current=event).dump()
            requirements += [Equals(at, text), Absent(put)]
            updates += [Delete(at), Put(put, moved)]
        for at, text, row in self._names_before():
            requirements.append(Equals(at, text))
            back = at == name_key(new)
            updates.append(Delete(at) if back else Put(at, replace(row, renamed_to=new).dump()))
        return requirements, updates

    # -- both

    def _names_before(self) -> list[tuple[Key, str, NameRow]]:
        """Return the names that the pipeline had before."""
        found = [
            (at, text, NameRow.load(text, at)) for at, text in self._client.scan(NAMES_TABLE, "")
        ]
        return [each for each in found if each[2].renamed_to == self._client.pipeline]

    def _commit(self, requirements: list[Requirement], updates: list[Update]) -> None:
        try:
            self._client.commit(requirements, updates)
        except Conflict as conflict:
            raise Fenced(
                f"pipeline {self._client.pipeline!r} changed meanwhile ({conflict}): a run of it "
                "is alive, or a person decided about one of its events. Stop it, then try again"
            ) from None
