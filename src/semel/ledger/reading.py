"""Reads the ledger: what is running, how far it is, and what became of one event."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from semel.errors import ConfigurationError
from semel.events import EntityIds, IdSet, Minibatch
from semel.events.entityids import unpacked
from semel.ledger import keys, payloads
from semel.ledger.finished import finished
from semel.ledger.journal import COUNTERS, Journal, watermark_of
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.judging import comes_anew
from semel.ledger.keys import EVENTS, OPEN, STREAMS, prefix
from semel.ledger.owners import OWNERS, PIPELINES, OwnerRow
from semel.ledger.parked import PARKED, read_heads, read_parked
from semel.ledger.rows import OpenRow, SpanRow, StreamRow
from semel.ledger.scribe import Scribe
from semel.ledger.sequences import TABLE as SEQUENCES
from semel.ledger.sequences import SequenceRow
from semel.ledger.store import Key
from semel.ledger.stores import open_store
from semel.protocol import ParkedState, PartitionState, SpanState

if TYPE_CHECKING:
    from semel.events import EventID
    from semel.ledger.journal import Operator, State
    from semel.ledger.rows import HeadRow, ParkedRow
    from semel.ledger.store import Store

TABLES = (
    PIPELINES,
    OWNERS,
    OPEN,
    STREAMS,
    EVENTS,
    SEQUENCES,
    PARKED,
    keys.HEADS,
    JOURNAL,
)

FOR_EVER = 2**62
"""A number above every minibatch: the state as of now."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What the ledger knows of one event at one sink.

    `state` is delivered, in doubt, parked, discarded, pending or not seen; `pending` means that an
    attempt has its partition and the destination, not the ledger, knows how far it came.
    """

    sink: str
    state: str
    minibatch: Minibatch | None = None
    attempt: str | None = None
    osn: tuple[int, int] | None = None
    at: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of one entity at one sink.

    Attributes:
        upto: every event up to this id is handled, where ids are positions, increasing or counted.
        ids: further ids that are remembered as handled.
        heads: not empty while the entity is blocked.
    """

    sink: str
    upto: EventID | None
    ids: IdSet
    parked: list[tuple[Key, ParkedRow]]
    heads: list[HeadRow]

    def __bool__(self) -> bool:
        return self.upto is not None or bool(self.ids) or bool(self.parked) or bool(self.heads)


_PARKED_AS = {
    ParkedState.HELD: "in doubt",
    ParkedState.REJECTED: "parked",
    ParkedState.WAITING: "parked",
    ParkedState.RESEND: "parked",
    ParkedState.SENDING: "in doubt",
    ParkedState.DELIVERED: "delivered",
    ParkedState.DISCARDED: "discarded",
    ParkedState.SKIPPED: "in doubt",
}


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
        return [keys.text_of(found.key) for found, _ in self._store.scan(PIPELINES, "")]

    def rows(
        self, table: str, start: str = "", limit: int | None = None
    ) -> list[tuple[str, dict[str, Any]]]:
        """Give the first `limit` rows of a table whose keys start with `start`, expanded."""
        _require_table(table)
        found = self._store.scan(table, start, limit=limit)
        return [(row.key, unpacked(payloads.load(text))) for row, text in found]

    def count(self, table: str) -> int:
        """Say how many rows a table has."""
        _require_table(table)
        return sum(1 for _ in self._store.scan(table, ""))

    def sinks(self, pipeline: str) -> list[str]:
        """Name the sinks of a pipeline. Raises `ConfigurationError` for one that never ran."""
        at = keys.key(PIPELINES, pipeline)
        text = self._store.read([at]).get(at)
        if text is None:
            known = ", ".join(map(repr, self.pipelines())) or "none at all"
            raise ConfigurationError(f"no pipeline {pipeline!r} is in this ledger: it has {known}")
        return sorted(payloads.load(text).get("sinks", {}))

    def _chosen(self, pipeline: str, sink: str | None) -> list[str]:
        """Give the sinks to look at: all, or one that the pipeline has."""
        known = self.sinks(pipeline)
        if sink is not None and sink not in known:
            names = ", ".join(map(repr, known))
            raise ConfigurationError(f"pipeline {pipeline!r} has no sink {sink!r}: it has {names}")
        return known if sink is None else [sink]

    def parked(self, pipeline: str, sink: str | None = None) -> list[tuple[Key, ParkedRow]]:
        """Give the parked events of a pipeline, in the order in which they came."""
        scribe = Scribe(self._store, pipeline)
        names = self._chosen(pipeline, sink)
        return [(at, row) for name in names for at, row, _ in read_parked(scribe, name)]

    def summary(self, pipeline: str) -> dict[str, Any]:
        """Say who runs a pipeline, which minibatch is open, and what is pending, parked and
        blocked.
        """
        scribe, sinks = Scribe(self._store, pipeline), self.sinks(pipeline)
        owner_key, open_key = keys.key(OWNERS, pipeline), keys.key(OPEN, pipeline)
        described_key = keys.key(PIPELINES, pipeline)
        found = self._store.read([owner_key, open_key, described_key])
        described = payloads.load(found.get(described_key, "{}"))
        owner = OwnerRow.load(found[owner_key]) if owner_key in found else None
        opened = OpenRow.load(found[open_key]) if open_key in found else None
        done = finished(scribe)
        return {
            "pipeline": pipeline,
            "run": None if owner is None else owner.run,
            "beat_at": None if owner is None else owner.at,
            "ended": None if owner is None else owner.ended,
            "gone": None if owner is None else owner.process.gone(),
            "host": None if owner is None else owner.process.host,
            "pid": None if owner is None else owner.process.pid,
            "identity": described.get("identity"),
            "partitions": None if opened is None else opened.partitions,
            "minibatch": None if opened is None else str(opened.minibatch),
            "complete": None if opened is None else opened.complete,
            "judged": None if opened is None or opened.judged is None else opened.judged.decision,
            "finished": done is not None,
            "sinks": {
                sink: {
                    "capability": described["sinks"][sink].get("capability"),
                    "partitions": dict(self._states(pipeline, sink)),
                    "delivered": done[sink].count
                    if done and sink in done
                    else self._last_numbers(pipeline, sink),
                    "parked": dict(
                        Counter(row.state.value for _, row, _ in read_parked(scribe, sink))
                    ),
                    "blocked": len(read_heads(scribe, sink)),
                }
                for sink in sinks
            },
        }

    def find(
        self, pipeline: str, entity: str, event: EventID, sink: str | None = None
    ) -> list[Trace]:
        """Say what became of one event, at each sink. The entity is the source partition for
        positions.
        """
        names = self._chosen(pipeline, sink)
        return [self._trace(Scribe(self._store, pipeline), name, entity, event) for name in names]

    def about(self, pipeline: str, entity: str, sink: str | None = None) -> list[Known]:
        """Say what is known of an entity, at each sink. It is the source partition for positions,
        where no entity is named.
        """
        names = self._chosen(pipeline, sink)
        return [self._known(Scribe(self._store, pipeline), name, entity) for name in names]

    def close(self) -> None:
        """Give the connection back."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one entity

    def _known(self, scribe: Scribe, sink: str, entity: str) -> Known:
        upto, ids = _handled(scribe, sink, entity)
        parked = [
            (at, row)
            for at, row, _ in read_parked(scribe, sink)
            if entity in (row.entity, row.scope)
        ]
        heads = [head for who, (head, _) in read_heads(scribe, sink).items() if entity in who]
        return Known(sink, upto, ids, parked, heads)

    # -- one event

    def _trace(self, scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace:
        parked = self._in_parked(scribe, sink, entity, event)
        if parked is not None and not parked[1]:
            return parked[0]
        return (
            self._in_spans(scribe, sink, entity, event)
            or self._in_watermarks(scribe, sink, entity, event)
            or self._in_pending(scribe, sink)
            or (None if parked is None else parked[0])
            or self._in_finished(scribe, sink)
            or Trace(sink, "not seen")
        )

    def _in_parked(
        self, scribe: Scribe, sink: str, entity: str, event: EventID
    ) -> tuple[Trace, bool] | None:
        """Tell what the newest parked row of an event says, and whether the event comes anew."""
        for _, row, _ in reversed(read_parked(scribe, sink)):
            state = _PARKED_AS.get(row.state)
            if state is not None and row.event == event and entity in (row.entity, row.scope):
                osn = (row.osn, row.osn)
                trace = Trace(sink, state, row.minibatch, None, osn, row.at, row.why)
                return trace, comes_anew(row)
        return None

    def _in_spans(self, scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
        for at, text in scribe.scan(EVENTS, prefix(scribe.pipeline, sink)):
            span = SpanRow.load(text)
            if not any(ids.contains(entity, event) for ids in span.ids):
                continue
            parts = keys.split(at.key)
            stream_key = Key(STREAMS, at.key.rpartition("/")[0])
            stream = scribe.read_one(stream_key)
            complete = stream is not None and (
                StreamRow.load(stream).state is PartitionState.COMPLETE
            )
            before = span.handled.contains(entity, event)  # beside others that are still sent
            settled = complete or before or span.state is SpanState.SETTLED
            return Trace(
                sink,
                "delivered" if settled else "in doubt",
                _minibatch(parts),
                str(span.attempt),
                span.osn,
                span.at,
                None if settled else "an attempt is sending it, or ended while it was",
            )
        return None

    def _in_watermarks(
        self, scribe: Scribe, sink: str, entity: str, event: EventID
    ) -> Trace | None:
        upto, ids = _handled(scribe, sink, entity)
        if upto is not None and type(event) is type(upto) and event <= upto:  # type: ignore[operator]
            return Trace(sink, "delivered", why=f"everything up to {upto} is handled")
        if event in ids:
            return Trace(sink, "delivered", why="its id is remembered")
        return None

    def _in_finished(self, scribe: Scribe, sink: str) -> Trace | None:
        known = (finished(scribe) or {}).get(sink)
        if known is None:
            return None
        why = f"the batch is finished with {known.count} events; single ones are not kept"
        return Trace(sink, "not seen", why=why)

    def _in_pending(self, scribe: Scribe, sink: str) -> Trace | None:
        for at, text in scribe.scan(STREAMS, prefix(scribe.pipeline, sink)):
            row = StreamRow.load(text)
            if row.state is PartitionState.PENDING:
                return Trace(
                    sink,
                    "pending",
                    _minibatch(keys.split(at.key)),
                    str(row.attempt),
                    at=row.at,
                    why=f"not recorded; it may be among those of partition {row.partition}, which "
                    "is pending: the destination knows how far it came",
                )
        return None

    def _states(self, pipeline: str, sink: str) -> Counter[str]:
        rows = self._store.scan(STREAMS, prefix(pipeline, sink))
        return Counter(StreamRow.load(text).state.value for _, text in rows)

    def _last_numbers(self, pipeline: str, sink: str) -> int:
        rows = self._store.scan(SEQUENCES, prefix(pipeline, sink))
        return sum(SequenceRow.load(text).after.osn for _, text in rows)


def _handled(scribe: Scribe, sink: str, entity: str) -> tuple[EventID | None, IdSet]:
    """Give the id up to which all events of an entity are handled, and further handled ones.

    Positions stand in `sequences`. In the journal a maximum is a list under the entity's name, a
    counter an integer in an operator of its own, and remembered ids are sets under a serial.
    """
    upto: EventID | None = None
    ids = IdSet.EMPTY
    for _, text in scribe.scan(SEQUENCES, prefix(scribe.pipeline, sink)):
        row = SequenceRow.load(text)
        if row.after.mark is not None and row.partition == entity:
            upto, ids = row.after.mark.upto, row.after.mark.above
    for state in _states_of(scribe, COUNTERS):
        upto = state.values.get(entity, upto)
    for state in _states_of(scribe, watermark_of(sink)):
        reached = state.values.get(entity)
        if isinstance(reached, list):
            upto = tuple(reached[0]) if isinstance(reached[0], list) else reached[0]
            ids = ids | (IdSet.from_json(reached[2]) if len(reached) > 2 else IdSet.EMPTY)
        for sets in state.values.values():
            if isinstance(sets, dict):
                ids = ids | EntityIds.from_json(sets).get(entity)
    return upto, ids


def _states_of(scribe: Scribe, operator: Operator) -> list[State]:
    """Give the journaled state of each partition as of now."""
    rows = scribe.scan(JOURNAL, prefix(scribe.pipeline, operator.name))
    partitions = sorted({keys.text_of(keys.split(at.key)[2]) for at, _ in rows})
    return [Journal(scribe).restore(operator, each, before=FOR_EVER) for each in partitions]


def _require_table(table: str) -> None:
    if table not in TABLES:
        raise ConfigurationError(f"a ledger has no table {table!r}: it has {', '.join(TABLES)}")


def _require_file(url: str) -> None:
    """Looking at a ledger creates none: a path that was mistyped is not an empty ledger."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and not Path(rest[1:]).exists():
        raise ConfigurationError(f"there is no ledger at {rest[1:]}: see that the path is right")


def _minibatch(parts: tuple[str, ...]) -> Minibatch:
    return Minibatch(keys.number_of(parts[2]), keys.number_of(parts[3]))
