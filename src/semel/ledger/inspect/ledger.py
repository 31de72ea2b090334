"""Reads a ledger: its pipelines, what each of them has done, and the outcome of one event."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from semel.errors import ConfigurationError, SemelError
from semel.events import unpacked
from semel.ledger import keys
from semel.ledger.client import LedgerClient
from semel.ledger.inbox_rows import INBOX_TABLES
from semel.ledger.inspect.listing import load_row
from semel.ledger.inspect.summary import name_pipelines, summarize, unknown_pipeline
from semel.ledger.inspect.trace import EntityTrace, Trace, trace_entity, trace_event
from semel.ledger.journal import JOURNAL_TABLE
from semel.ledger.keys import EVENTS_TABLE, OPEN_TABLE, PARKED_TABLE, PIPELINES_TABLE, STREAMS_TABLE
from semel.ledger.payloads import DamagedRow, load_payload, read_row, sift_rows
from semel.ledger.rows import ParkedRow, read_description
from semel.ledger.store.opening import open_store
from semel.ledger.store.sqlite_file import is_there
from semel.ledger.stream_rows import MARKERS_TABLE
from semel.ledger.verbs.complete import SEQUENCES_TABLE
from semel.ledger.verbs.parked import read_parked
from semel.ledger.verbs.pruning import OUTCOMES_TABLE
from semel.ledger.verbs.reset import RESETS_TABLE
from semel.ledger.verbs.runs import LOOKS, NAMES_TABLE, OWNERS_TABLE, STAGE_OF, OwnerRow
from semel.notebook import table
from semel.protocol import ParkedState
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import EventID
    from semel.ledger.inspect.summary import PipelineSummary
    from semel.ledger.store.commit import Key, Store
    from semel.runtime import Clock

TABLES = (
    PIPELINES_TABLE,
    OWNERS_TABLE,
    OPEN_TABLE,
    STREAMS_TABLE,
    EVENTS_TABLE,
    SEQUENCES_TABLE,
    PARKED_TABLE,
    keys.HEADS_TABLE,
    OUTCOMES_TABLE,
    JOURNAL_TABLE,
    *INBOX_TABLES,
    MARKERS_TABLE,
    RESETS_TABLE,
    NAMES_TABLE,
)


_SHOWN = (ParkedState.HELD, ParkedState.REJECTED, ParkedState.WAITING)
_HEADINGS = (
    "pipeline",
    "run",
    "minibatch",
    "state",
    "sink",
    "capability",
    "delivered",
    "of the open minibatch",
    "in doubt",
    "rejected",
    "waiting",
)


class Ledger:
    """A ledger to read: `with Ledger("sqlite:///charges.db") as ledger: ...`."""

    def __init__(self, ledger: str | Store) -> None:
        if isinstance(ledger, str):
            _require_file(ledger)
        elif not hasattr(ledger, "scan"):
            raise ConfigurationError(f"ledger must be a URL, got {ledger!r}")
        self._store = open_store(ledger) if isinstance(ledger, str) else ledger

    @property
    def store(self) -> Store:
        """The store that holds the rows, for functions that write."""
        return self._store

    def pipelines(self) -> list[str]:
        """Return the names of the pipelines that were ever registered."""
        return name_pipelines(self._store)

    def rows(
        self, table: str, start: str = "", limit: int | None = None
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the first `limit` rows of a table whose keys start with `start`, expanded.

        Raises `LedgerError` with table and key for a row that cannot be read.
        """
        found = self.listed(table, start, limit)
        for _, row in found:
            if isinstance(row, DamagedRow):
                raise row
        return [(at, row) for at, row in found if not isinstance(row, DamagedRow)]

    def listed(
        self, table: str, start: str = "", limit: int | None = None
    ) -> list[tuple[str, dict[str, Any] | DamagedRow]]:
        """Return rows as `rows` does; a row that cannot be read is a `DamagedRow`."""
        _require_table(table)
        found = self._store.scan(table, start, limit=limit)
        return [(at.key, _expanded(at, text)) for at, text in found]

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        _require_table(table)
        return sum(1 for _ in self._store.scan(table, ""))

    def sinks(self, pipeline: str) -> list[str]:
        """Return the names of the sinks of a pipeline.

        Raises `ConfigurationError` for a pipeline that the ledger does not have.
        """
        return sorted(self._described(pipeline).get("sinks", {}))

    def _described(self, pipeline: str) -> dict[str, Any]:
        at = keys.make_key(PIPELINES_TABLE, pipeline)
        text = self._store.read([at]).get(at)
        if text is None:
            raise unknown_pipeline(self._store, pipeline)
        return read_description(text, at)

    def identity(self, pipeline: str) -> dict[str, Any]:
        """Return what makes two events of a pipeline the same, as it is recorded; empty if it is
        not. Raises as `sinks` does.
        """
        return dict(self._described(pipeline).get("identity") or {})

    def id_forms(self, pipeline: str) -> list[str | None]:
        """Return the form of each column of the event id: integer, text, date, timestamp; None
        where it is not recorded.
        """
        known = self._described(pipeline)
        forms: dict[str, str] = known.get("forms") or {}
        return [forms.get(name) for name in known.get("identity", {}).get("event", [])]

    def _chosen(self, pipeline: str, sink: str | None) -> list[str]:
        """Return all sinks of a pipeline, or the one that is asked for."""
        known = self.sinks(pipeline)
        if sink is not None and sink not in known:
            names = ", ".join(map(repr, known))
            raise ConfigurationError(f"pipeline {pipeline!r} has no sink {sink!r}: it has {names}")
        return known if sink is None else [sink]

    def _first_stages(self, pipeline: str, sink: str | None) -> list[str]:
        """Return the sinks that get events; a second stage gets manifests."""
        described = self._described(pipeline).get("sinks", {})
        names = self._chosen(pipeline, sink)
        return [name for name in names if name == sink or STAGE_OF not in described[name]]

    def parked(self, pipeline: str, sink: str | None = None) -> list[tuple[Key, ParkedRow]]:
        """Return the parked events of a pipeline, in the order of their input.

        Raises `LedgerError` with table and key for a row that cannot be read.
        """
        client = LedgerClient(self._store, pipeline)
        names = self._chosen(pipeline, sink)
        return [(at, row) for name in names for at, row, _ in read_parked(client, name)]

    def every_parked(self) -> tuple[list[tuple[Key, ParkedRow]], list[DamagedRow]]:
        """Return the parked events of the whole ledger, by pipeline and sink in the order of their
        input, and the rows that cannot be read.
        """
        good, damaged = sift_rows(self._store.scan(PARKED_TABLE, ""), ParkedRow.load)
        return sorted(good, key=_in_order), damaged

    def summary(
        self, pipeline: str, rows_max: int | None = None, parked_max: int | None = None
    ) -> PipelineSummary:
        """Return which run has a pipeline, which minibatch is open, and what is pending, parked and
        blocked. Rows that cannot be read are left out, and are listed under `damaged`.

        With `rows_max`, at most so many rows of each table and sink are read, with `parked_max` of
        parked events and what belongs to them; `SinkSummary.cut` names the tables that have more.
        """
        return summarize(self._store, pipeline, rows_max, parked_max)

    def watch(
        self, pipelines: Iterable[str], lease_s: float, clock: Clock | None = None
    ) -> set[str]:
        """Watch heartbeats for at most one lease, and return the pipelines whose heartbeat moves.
        Runs that ended or whose process is gone are not watched.

        Only the clock of this process is used: the clock of a run's machine may be hours off.
        """
        clock = clock or SystemClock()
        names = {keys.make_key(OWNERS_TABLE, name): name for name in pipelines}
        before = dict(self._store.read(list(names)))
        owners, _ = sift_rows(before.items(), OwnerRow.load)  # `summary` reports damaged rows
        still = {at for at, row in owners if not row.ended and not row.process.gone()}
        moved: set[str] = set()
        for _ in range(LOOKS):
            if not still:
                break
            clock.sleep(lease_s / LOOKS)
            now = self._store.read(list(still))
            changed = {at for at in still if now.get(at) != before[at]}
            moved |= {names[at] for at in changed}
            still -= changed
        return moved

    def find(
        self, pipeline: str, entity: str, event: EventID, sink: str | None = None
    ) -> list[Trace]:
        """Return what the ledger knows of one event, at each sink. With position identity the
        entity is the source partition.
        """
        client = LedgerClient(self._store, pipeline)
        names = self._first_stages(pipeline, sink)
        return [trace_event(client, name, entity, event) for name in names]

    def about(self, pipeline: str, entity: str, sink: str | None = None) -> list[EntityTrace]:
        """Return what the ledger knows of an entity, at each sink. With position identity and no
        entity column, the entity is the source partition.
        """
        client = LedgerClient(self._store, pipeline)
        return [trace_entity(client, name, entity) for name in self._first_stages(pipeline, sink)]

    def _repr_html_(self) -> str:
        """Return the pipelines and their sinks as a table, for a notebook. Raises nothing."""
        try:
            found = [self.summary(name) for name in self.pipelines()]
        except SemelError as error:
            return table("Ledger", ("it cannot be read",), [(error,)])
        rows = [
            (
                each.pipeline,
                each.run,
                each.minibatch,
                None if each.complete is None else "complete" if each.complete else "open",
                name,
                sink.capability,
                sink.delivered,
                sink.delivered_in_open,
                *(sink.parked.get(state, 0) for state in _SHOWN),
            )
            for each in found
            for name, sink in each.sinks.items()
        ]
        damaged = [str(row) for each in found for row in each.damaged]
        return table("Ledger", _HEADINGS, rows, damaged)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_order(item: tuple[Key, ParkedRow]) -> tuple[Any, ...]:
    """Sort by pipeline and sink as the keys have them, then in the order of the input."""
    at, row = item
    return (*keys.split_key(at.key)[:2], row.minibatch, row.position)


def _expanded(at: Key, text: str) -> dict[str, Any] | DamagedRow:
    try:
        load_row(at, text)
        return read_row(at.table, at, lambda: cast("dict[str, Any]", unpacked(load_payload(text))))
    except DamagedRow as error:
        return error


def _require_table(table: str) -> None:
    if table not in TABLES:
        raise ConfigurationError(f"there is no table {table!r}; use one of {', '.join(TABLES)}")


def _require_file(url: str) -> None:
    """Refuse a path without a ledger: opening the store would create an empty one there."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and not is_there(Path(rest[1:])):
        raise ConfigurationError(
            f"there is no ledger at {rest[1:]}; check the path, or start the pipeline first"
        )
