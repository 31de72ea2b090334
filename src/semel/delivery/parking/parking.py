"""Parks events of a partition: their payload is stored with them, and the stream continues.

Always true:
- an event that was parked when a generation was closed gets its payload when it comes again;
- what one attempt knows of the heads and parked events of its partition is changed by the methods
  of `PartitionParking` alone, after it was read from the ledger or committed to it.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.delivery.observer import NO_FIGURES, Figures
from semel.errors import HeldInDoubt, NotDelivered, Rejected
from semel.events import EntityIds, IdSet, Labels, Rows
from semel.events.encoding import ArrowValue, kept_value
from semel.ledger import (
    ParkedRow,
    fill_parked,
    parked_key,
    plan_parking,
    read_heads,
    read_parked,
)
from semel.protocol import Found, OnDoubt, OnReject, ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.delivery.assignment import SinkPartition
    from semel.errors import DeliveryError
    from semel.events import EventID
    from semel.ledger import Entity, Heads, LedgerClient, Parks
    from semel.ledger.store import Key
    from semel.sinks import Sink

    Mask = NDArray[np.bool_]


class PartitionParking:
    """The heads of a sink, and what is parked of one partition, as one attempt knows them."""

    def __init__(self, partition: SinkPartition) -> None:
        self._partition = partition
        self._heads: Heads = {}
        self._marks: dict[Key, str] = {}
        self._parked: set[int] = set()
        self._dropped: set[int] = set()
        self._resent: set[int] = set()
        self._waiting: int | None = None

    # -- what is read

    @property
    def positions(self) -> AbstractSet[int]:
        """The positions of the events that are parked or dropped, and so not sent."""
        return self._parked

    @property
    def has_heads(self) -> bool:
        """Whether an entity of the sink waits for an event."""
        return bool(self._heads)

    def look_at_heads(self, found: Found) -> None:
        """Read which entities are blocked: always for a pending partition, for a new one only if
        `open` found some. Raises `HeldInDoubt` under policy `stop`.
        """
        partition = self._partition
        blocked = partition.sink.name in partition.assignment.opening.row.blocked
        if found is not Found.PENDING and not blocked:
            return
        self._heads = read_heads(partition.client, partition.sink.name)
        stop_if_held(partition.client, partition.sink, partition.place)

    def reread_heads(self) -> None:
        """Read the heads again, because one of them changed, and the marks on events."""
        self._heads = read_heads(self._partition.client, self._partition.sink.name)
        self.read_marks()

    def read_marks(self) -> list[ParkedRow]:
        """Read what is parked of this partition; a row that only marks a doubt may be replaced by a
        parked one.
        """
        partition = self._partition
        minibatch = partition.assignment.opening.row.minibatch
        found = [
            item
            for item in read_parked(partition.client, partition.sink.name, minibatch=minibatch)
            if item[1].partition == partition.assignment.partition
        ]
        self._marks = {at: text for at, row, text in found if row.state.only_marks}
        rows = [row for _, row, _ in found]
        self._note(rows)
        return rows

    def not_sent(self, rows: Rows, besides: AbstractSet[Entity]) -> tuple[Mask, Mask]:
        """Mark the rows that are parked or dropped, and the others whose entity waits."""
        if self._parked:
            parked = np.isin(rows.positions, list(self._parked))
        else:
            parked = np.zeros(len(rows.positions), dtype=bool)
        return parked, self.blocked(rows, besides) & ~parked

    def blocked(self, rows: Rows, besides: AbstractSet[Entity] = frozenset()) -> Mask:
        """Mark the rows whose entity waits for an earlier event."""
        entities = {*self._heads, *besides}
        if not entities or not self._partition.ordered(rows):
            return np.zeros(len(rows.positions), dtype=bool)
        mask = rows.of_entities({entity for entity, _ in entities})
        for at in np.flatnonzero(mask).tolist():
            mask[at] = (rows.entity(at), rows.scope(at)) in entities
        return mask

    def count_before(self, positions: range | set[int], *, parked_now: int = 0) -> Figures:
        """Count the events at these positions, which an earlier attempt handled; `parked_now` of
        them were left for this attempt to park.
        """
        dropped = sum(each in positions for each in self._dropped)
        waiting = self._parked - self._dropped - self._resent
        parked = sum(each in positions for each in waiting) - parked_now
        return Figures(
            dropped_before=dropped,
            parked_before=parked,
            suppressed=len(positions) - dropped - parked - parked_now,
        )

    def last_osn_sent(self, count: int) -> int:
        """Return C of a partition of `count` events of which every one that is not parked was
        delivered; 0 if none was.
        """
        last = count - 1
        while last in self._parked:
            last -= 1
        return self._partition.claim.osn + last + 1 if last >= 0 else 0

    # -- what is parked

    def plan(self, rows: Sequence[ParkedRow]) -> Parks:
        """Return what a commit needs to park `rows`, given the heads and marks as last seen."""
        partition = self._partition
        return plan_parking(
            partition.assignment.pipeline, partition.sink.name, rows, self._heads, self._marks
        )

    def limit(self, parks: Parks) -> None:
        """Raise `HeldInDoubt` if more would be parked than the sink allows."""
        if not parks.rows:
            return
        sink = self._partition.sink
        if self._waiting is None:
            standing = read_parked(self._partition.client, sink.name)
            self._waiting = sum(not row.state.final for _, row, _ in standing)
        if self._waiting + len(parks.rows) > sink.park_limit:
            raise HeldInDoubt(
                f"{self._partition.place}: {self._waiting} events are parked and "
                f"{len(parks.rows)} more must be (the first is event {parks.rows[0].event} of "
                f"{parks.rows[0].entity!r}: {parks.rows[0].why}), but park_limit is "
                f"{sink.park_limit}. Resolve what `semel parked ls` lists, or raise "
                f"park_limit to {self._waiting + len(parks.rows)} or more, then restart the query"
            )

    def committed(self, parks: Parks) -> Figures:
        """Remember what was parked, and the heads and marks that it left; count it."""
        if not parks.rows:
            return NO_FIGURES
        partition = self._partition
        parks.apply_to(self._heads)
        for row in parks.rows:
            if row.state.only_marks:
                at = parked_key(partition.assignment.pipeline, partition.sink.name, row)
                self._marks[at] = row.dump()
        self._note(parks.rows)
        states = [row.state for row in parks.rows if not row.state.only_marks]
        dropped = states.count(ParkedState.SKIPPED)
        if self._waiting is not None:
            self._waiting += len(states) - dropped
        return Figures(
            dropped=dropped,
            parked=len(states) - dropped,
            doubted=states.count(ParkedState.HELD),
        )

    def _note(self, rows: Iterable[ParkedRow]) -> None:
        """Remember the events that are not sent."""
        passed = [row for row in rows if not row.state.only_marks]
        self._parked.update(row.position for row in passed)
        for state, places in (
            (ParkedState.SKIPPED, self._dropped),
            (ParkedState.DELIVERED, self._resent),
        ):
            places.update(row.position for row in passed if row.state is state)


def stop_if_held(client: LedgerClient, sink: Sink, place: str) -> None:
    """Stop under policy `stop` until a person has decided every event in doubt.

    Raises `HeldInDoubt`, which names the `place`.
    """
    if sink.on_doubt is not OnDoubt.STOP:
        return
    rows = [row for _, row, _ in read_parked(client, sink.name) if row.state is ParkedState.HELD]
    if rows:
        raise HeldInDoubt(
            f"{place}: {len(rows)} events are in doubt, the first is event {rows[0].event} of "
            f"{rows[0].entity!r}. Check which of them the destination has, then run `semel resolve "
            "EVENT delivered|resend|discard --reason ...` for each and restart the query"
        )


# -- one event


def state_after(why: DeliveryError) -> ParkedState:
    """Return the state in which an event is parked that progress has passed: a dead letter if it
    was refused, to be resent if nothing arrived, in doubt if the outcome is unknown.
    """
    if isinstance(why, Rejected):
        return ParkedState.REJECTED
    return ParkedState.RESEND if isinstance(why, NotDelivered) else ParkedState.HELD


def parked_row(
    partition: SinkPartition, rows: Rows, at: int, state: ParkedState, why: str
) -> ParkedRow:
    """Return the parked row of one event; its state decides whether it holds its entity back."""
    blocks = state is ParkedState.RESEND or (
        partition.ordered(rows)
        and (
            state in (ParkedState.HELD, ParkedState.WAITING)
            or (state is ParkedState.REJECTED and partition.sink.on_reject is OnReject.BLOCK)
        )
    )
    position = int(rows.positions[at])
    return ParkedRow(
        entity=rows.entity(at),
        scope=rows.scope(at),
        event=rows.id(at),
        minibatch=partition.assignment.opening.row.minibatch,
        partition=partition.assignment.partition,
        position=position,
        osn=partition.claim.osn + position + 1,
        state=state,
        why=partition.client.conceal(why),
        at=partition.client.clock.wall(),
        blocks=blocks,
        doubted=state in (ParkedState.HELD, ParkedState.SKIPPED, ParkedState.RESENT),
        value=value_of(rows, at),
        schema=schema_text(rows),
    )


def value_of(rows: Rows, at: int) -> dict[str, Any]:
    """Return the columns of one event as the ledger keeps them, also values that Python cannot
    hold.
    """
    batch = rows.batch.slice(at, 1)
    return dict(zip(batch.schema.names, map(kept_value, batch.columns), strict=True))


def schema_text(rows: Rows) -> str:
    """Return the schema of the rows as text, so that a parked event can be restored as it was."""
    return base64.b64encode(rows.batch.schema.serialize().to_pybytes()).decode()


def rows_of(row: ParkedRow) -> Rows:
    """Restore the rows of a parked event, with the schema it came with."""
    if row.schema is None or row.value is None:
        raise ValueError(f"event {row.event} of {row.entity!r} has no payload yet")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(row.schema)))
    arrays = [_array(row.value[field.name], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    parts = row.event if isinstance(row.event, tuple) else (row.event,)
    scopes = Labels.one(row.scope, 1)
    shown = row.shown or row.entity
    entities = scopes if shown == row.scope else Labels.one(shown, 1)
    return Rows(
        batch=batch,
        positions=np.array([row.position], dtype=np.int64),
        scopes=scopes,
        entities=entities,
        ids=tuple(pa.array([part]) for part in parts),
    )


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    return value.array() if isinstance(value, ArrowValue) else pa.array([value], kind)


class Expected:
    """The parked events of a sink that have no payload yet; read when the first may come."""

    def __init__(self, client: LedgerClient, sink: str) -> None:
        self._client = client
        rows = read_parked(client, sink)
        self._missing: dict[tuple[str, EventID], tuple[Key, ParkedRow, str]] = {
            (row.scope, row.event): (row_key, row, text)
            for row_key, row, text in rows
            if row.value is None
        }

    def fill(self, rows: Rows, schema: str) -> None:
        """Store the payload of those among `rows` that are expected."""
        if not self._missing:
            return
        for at in np.flatnonzero(rows.contained_in(ids_of(self._missing))).tolist():
            row_key, row, text = self._missing.pop((rows.scope(at), rows.id(at)))
            full = replace(row, value=value_of(rows, at), schema=schema, shown=rows.entity(at))
            fill_parked(self._client, row_key, text, full)


def ids_of(events: Iterable[tuple[str, EventID]]) -> EntityIds:
    """Return events, each a scope and an id, as sets."""
    found: dict[str, list[EventID]] = {}
    for scope, event in events:
        found.setdefault(scope, []).append(event)
    return EntityIds.of({scope: IdSet.of(ids) for scope, ids in found.items()})
