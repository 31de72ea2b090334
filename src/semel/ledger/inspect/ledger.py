"""Reads the ledger: what is running, how far it is, and what became of one event.

How many events of a sink are delivered, parked, skipped or discarded: each counts once.

Always true: what is parked, skipped or discarded is not counted as delivered, and where numbers may
have been given twice (a lost checkpoint, a rescaled pipeline) nothing is said of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from semel.errors import ConfigurationError
from semel.events.ids.ids_by_entity import unpacked
from semel.ledger import keys, payloads
from semel.ledger.client import LedgerClient
from semel.ledger.damage import DamagedRow, read_row, sift_rows
from semel.ledger.inspect.listing import load_row
from semel.ledger.inspect.trace import Known, Trace, known, trace
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import EVENTS_TABLE, OPEN_TABLE, PARKED_TABLE, STREAMS_TABLE, make_prefix
from semel.ledger.rows import HeadRow, OpenRow, ParkedRow, PartitionRow, SpanRow
from semel.ledger.store.opening import open_store
from semel.ledger.store.sqlite_file import is_there
from semel.ledger.verbs.batch_jobs import recorded_batch
from semel.ledger.verbs.divergence import comes_anew
from semel.ledger.verbs.outcomes import OUTCOMES_TABLE as OUTCOMES
from semel.ledger.verbs.outcomes import OutcomeRow
from semel.ledger.verbs.parked import read_parked
from semel.ledger.verbs.runs import (
    LOOKS,
    OWNERS_TABLE,
    PIPELINES_TABLE,
    RESCALED,
    STAGE_OF,
    OwnerRow,
    read_description,
)
from semel.ledger.verbs.sequences import SEQUENCES_TABLE as SEQUENCES
from semel.ledger.verbs.sequences import SequenceRow, Standing
from semel.protocol import ParkedState, SpanState
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from semel.events import EventID
    from semel.ledger.store.commit import Key, Store
    from semel.ledger.verbs.sequences import Standing
    from semel.runtime import Clock

T = TypeVar("T")

TABLES = (
    PIPELINES_TABLE,
    OWNERS_TABLE,
    OPEN_TABLE,
    STREAMS_TABLE,
    EVENTS_TABLE,
    SEQUENCES,
    PARKED_TABLE,
    keys.HEADS_TABLE,
    OUTCOMES,
    JOURNAL,
)


class Ledger:
    """A ledger to look at: `with Ledger("sqlite:///charges.db") as ledger: ...`."""

    def __init__(self, ledger: str | Store) -> None:
        if isinstance(ledger, str):
            _require_file(ledger)
        elif not hasattr(ledger, "scan"):
            raise ConfigurationError(f"{ledger!r} is not a ledger: give its URL")
        self._store = open_store(ledger) if isinstance(ledger, str) else ledger

    def pipelines(self) -> list[str]:
        """Name the pipelines that were ever registered."""
        keyed = [found.key for found, _ in self._store.scan(PIPELINES_TABLE, "")]
        return [keys.key_text(each) for each in keyed if keys.is_text(each)]

    def rows(
        self, table: str, start: str = "", limit: int | None = None
    ) -> list[tuple[str, dict[str, Any]]]:
        """Give the first `limit` rows of a table whose keys start with `start`, expanded.

        Raises `LedgerError` with table and key for one that cannot be read.
        """
        found = self.listed(table, start, limit)
        for _, row in found:
            if isinstance(row, DamagedRow):
                raise row
        return [(at, row) for at, row in found if not isinstance(row, DamagedRow)]

    def listed(
        self, table: str, start: str = "", limit: int | None = None
    ) -> list[tuple[str, dict[str, Any] | DamagedRow]]:
        """Give rows as `rows` does; in the place of one that cannot be read, what is wrong."""
        _require_table(table)
        found = self._store.scan(table, start, limit=limit)
        return [(at.key, _expanded(at, text)) for at, text in found]

    def count(self, table: str) -> int:
        """Say how many rows a table has."""
        _require_table(table)
        return sum(1 for _ in self._store.scan(table, ""))

    def sinks(self, pipeline: str) -> list[str]:
        """Name the sinks of a pipeline. Raises `ConfigurationError` for one that never ran."""
        return sorted(self._described(pipeline).get("sinks", {}))

    def _described(self, pipeline: str) -> dict[str, Any]:
        at = keys.make_key(PIPELINES_TABLE, pipeline)
        text = self._store.read([at]).get(at)
        if text is None:
            known = ", ".join(map(repr, self.pipelines())) or "none at all"
            raise ConfigurationError(f"no pipeline {pipeline!r} is in this ledger: it has {known}")
        return read_description(text, at)

    def id_forms(self, pipeline: str) -> list[str | None]:
        """Give the form of each column that is the event id: integer, text, date, timestamp; None
        where it is not recorded.
        """
        known = self._described(pipeline)
        forms: dict[str, str] = known.get("forms") or {}
        return [forms.get(name) for name in known.get("identity", {}).get("event", [])]

    def _chosen(self, pipeline: str, sink: str | None) -> list[str]:
        """Give the sinks to look at: all, or one that the pipeline has."""
        known = self.sinks(pipeline)
        if sink is not None and sink not in known:
            names = ", ".join(map(repr, known))
            raise ConfigurationError(f"pipeline {pipeline!r} has no sink {sink!r}: it has {names}")
        return known if sink is None else [sink]

    def _first_stages(self, pipeline: str, sink: str | None) -> list[str]:
        """Give the sinks that events go to: a second stage gets manifests of them."""
        described = self._described(pipeline).get("sinks", {})
        names = self._chosen(pipeline, sink)
        return [name for name in names if name == sink or STAGE_OF not in described[name]]

    def parked(self, pipeline: str, sink: str | None = None) -> list[tuple[Key, ParkedRow]]:
        """Give the parked events of a pipeline, in the order in which they came.

        Raises `LedgerError` with table and key for one that cannot be read.
        """
        client = LedgerClient(self._store, pipeline)
        names = self._chosen(pipeline, sink)
        return [(at, row) for name in names for at, row, _ in read_parked(client, name)]

    def every_parked(self) -> tuple[list[tuple[Key, ParkedRow]], list[DamagedRow]]:
        """Give the parked events of the whole ledger, by pipeline and sink in the order in which
        they came, and those that cannot be read.
        """
        good, damaged = sift_rows(self._store.scan(PARKED_TABLE, ""), ParkedRow.load)
        return sorted(good, key=_in_order), damaged

    def summary(self, pipeline: str) -> dict[str, Any]:
        """Say who runs a pipeline, which minibatch is open, and what is pending, parked and
        blocked. What cannot be read is left out, and named under `damaged`.
        """
        damaged: list[DamagedRow] = []

        def one(table: str, load: Callable[[str, Key], T]) -> T | None:
            at = keys.make_key(table, pipeline)
            text = self._store.read([at]).get(at)
            found, unread = sift_rows([] if text is None else [(at, text)], load)
            damaged.extend(unread)
            return found[0][1] if found else None

        if not self._store.read([keys.make_key(PIPELINES_TABLE, pipeline)]):
            self._described(pipeline)  # raises, and names those that are there
        known = one(PIPELINES_TABLE, read_description) or {}
        owner, opened = one(OWNERS_TABLE, OwnerRow.load), one(OPEN_TABLE, OpenRow.load)
        sinks = {
            sink: self._sink_summary(pipeline, sink, (known, opened), damaged)
            for sink in sorted(known.get("sinks", {}))
        }
        return {
            "pipeline": pipeline,
            "run": None if owner is None else owner.run,
            "beat_at": None if owner is None else owner.at,
            "ended": None if owner is None else owner.ended,
            "gone": None if owner is None else owner.process.gone(),
            "host": None if owner is None else owner.process.host,
            "pid": None if owner is None else owner.process.pid,
            "identity": known.get("identity"),
            "partitions": None if opened is None else opened.partitions,
            "minibatch": None if opened is None else str(opened.minibatch),
            "complete": None if opened is None else opened.complete,
            "inputs": [] if opened is None else list(opened.inputs),
            "judged": None if opened is None or opened.judged is None else opened.judged.decision,
            "finished": recorded_batch(known) is not None,
            "sinks": sinks,
            "damaged": damaged,
        }

    def _sink_summary(
        self,
        pipeline: str,
        sink: str,
        of: tuple[dict[str, Any], OpenRow | None],
        damaged: list[DamagedRow],
    ) -> dict[str, Any]:
        known, opened = of

        def every(table: str, load: Callable[[str, Key], T]) -> list[T]:
            found, unread = sift_rows(self._store.scan(table, make_prefix(pipeline, sink)), load)
            damaged.extend(unread)
            return [row for _, row in found]

        done = (recorded_batch(known) or {}).get(sink)
        standings = {row.partition: row.after for row in every(SEQUENCES, SequenceRow.load)}
        last = sum(standing.osn for standing in standings.values())
        streams, parked = (
            every(STREAMS_TABLE, PartitionRow.load),
            every(PARKED_TABLE, ParkedRow.load),
        )
        outcomes = every(OUTCOMES, OutcomeRow.load)
        return {
            "capability": known["sinks"][sink].get("capability"),
            "partitions": dict(Counter(row.state.value for row in streams)),
            "last_osn": last if done is None else done.count,
            "delivered": delivered(sink, known, opened, standings, (parked, outcomes)),
            "transmitted": self._transmitted(pipeline, sink, standings, streams, parked),
            "parked": parked_by_state(parked, outcomes),
            "last_resend": _last_resend(parked),
            "blocked": len(every(keys.HEADS_TABLE, HeadRow.load)),
        }

    def _transmitted(
        self,
        pipeline: str,
        sink: str,
        standings: dict[str, Standing],
        streams: list[PartitionRow],
        parked: list[ParkedRow],
    ) -> dict[str, int]:
        """Give C of each partition: the last OSN that is known to be transmitted, also by what is
        settled of a minibatch that is not complete.
        """
        told = {name: standing.sent for name, standing in standings.items()}
        spans, _ = sift_rows(
            self._store.scan(EVENTS_TABLE, make_prefix(pipeline, sink)), SpanRow.load
        )
        aside = {(row.partition, row.osn) for row in parked if not row.state.only_marks}
        names = {keys.part(row.partition): row.partition for row in streams}
        for at, span in spans:
            partition, last = names.get(keys.split_key(at.key)[4], ""), span.osn[1]
            while (partition, last) in aside:
                last -= 1
            if partition and span.state is SpanState.SETTLED and last >= span.osn[0]:
                told[partition] = max(told.get(partition, 0), last)
        return dict(sorted(told.items()))

    def watch(
        self, pipelines: Iterable[str], lease_s: float, clock: Clock | None = None
    ) -> set[str]:
        """Watch for one lease at most, and say whose beat moves. Only this process's own clock is
        asked: that of a run's machine may be hours away. Who ended or is gone is not watched.
        """
        clock = clock or SystemClock()
        names = {keys.make_key(OWNERS_TABLE, name): name for name in pipelines}
        before = dict(self._store.read(list(names)))
        owners, _ = sift_rows(before.items(), OwnerRow.load)  # `summary` names what is damaged
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
        """Say what became of one event, at each sink. The entity is the source partition for
        positions.
        """
        names = self._first_stages(pipeline, sink)
        return [trace(LedgerClient(self._store, pipeline), name, entity, event) for name in names]

    def about(self, pipeline: str, entity: str, sink: str | None = None) -> list[Known]:
        """Say what is known of an entity, at each sink. It is the source partition for positions,
        where no entity is named.
        """
        names = self._first_stages(pipeline, sink)
        return [known(LedgerClient(self._store, pipeline), name, entity) for name in names]

    def close(self) -> None:
        """Give the connection back."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _last_resend(parked: Iterable[ParkedRow]) -> dict[str, Any] | None:
    """Say what came of the event that was sent again last, among those that are remembered."""
    tried = [row for row in parked if row.attempts and row.state is not ParkedState.SENDING]
    if not tried:
        return None
    last = max(tried, key=lambda row: (row.at, row.minibatch, row.position))
    return {
        "entity": last.shown or last.entity,
        "id": last.event,
        "state": last.state.value,
        "why": last.why,
        "by": last.by,
        "at": last.at,
    }


def _in_order(item: tuple[Key, ParkedRow]) -> tuple[Any, ...]:
    """By pipeline and sink as the keys have them, then as they came."""
    at, row = item
    return (*keys.split_key(at.key)[:2], row.minibatch, row.position)


def _expanded(at: Key, text: str) -> dict[str, Any] | DamagedRow:
    try:
        load_row(at, text)
        return read_row(at.table, at, lambda: cast("dict[str, Any]", unpacked(payloads.load(text))))
    except DamagedRow as error:
        return error


def _require_table(table: str) -> None:
    if table not in TABLES:
        raise ConfigurationError(f"a ledger has no table {table!r}: it has {', '.join(TABLES)}")


def _require_file(url: str) -> None:
    """Looking at a ledger creates none: a path that was mistyped is not an empty ledger."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and not is_there(Path(rest[1:])):
        raise ConfigurationError(f"there is no ledger at {rest[1:]}: see that the path is right")


FIRST = 1
"""The generation in which every event gets one number."""


def parked_by_state(parked: Sequence[ParkedRow], outcomes: Sequence[OutcomeRow]) -> dict[str, int]:
    """Count events by what became of them, those whose rows were pruned included."""
    found = Counter(row.state.value for row in parked)
    found[ParkedState.DISCARDED.value] += sum(len(row.discarded) for row in outcomes)
    found[ParkedState.SKIPPED.value] += sum(len(row.skipped) for row in outcomes)
    return dict(+found)


def delivered(
    sink: str,
    described: Mapping[str, Any],
    opened: OpenRow | None,
    standings: Mapping[str, Standing],
    aside: tuple[Sequence[ParkedRow], Sequence[OutcomeRow]],
) -> int | None:
    """Say how many events of complete minibatches, or of a finished batch job, are delivered; None
    where that is not known, and for a second stage, whose manifests have no numbers.
    """
    parked, outcomes = aside
    left = [row for row in parked if _is_left(row)]
    done = (recorded_batch(described) or {}).get(sink)
    if STAGE_OF in described["sinks"][sink]:
        return None
    if done is not None:
        return done.count - sum(not comes_anew(row) for row in left)
    if opened is None or opened.minibatch.generation != FIRST or RESCALED in described:
        return None
    left = [row for row in left if row.osn <= _last(standings, row.partition)]
    pruned = sum(len(row.discarded) + len(row.skipped) for row in outcomes)
    return sum(each.osn for each in standings.values()) - len(left) - pruned


def _is_left(row: ParkedRow) -> bool:
    """Whether an event was parked or dropped, and not delivered since."""
    return not row.state.only_marks and row.state is not ParkedState.DELIVERED


def _last(standings: Mapping[str, Standing], partition: str) -> int:
    return standings[partition].osn if partition in standings else 0
