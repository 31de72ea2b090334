"""Makes parked rows of events: their payload is stored with them, and the stream continues.

Always true: an event that was parked when a generation was closed gets its payload when it comes
again.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.errors import NotDelivered, Rejected
from semel.events import EntityIds, IdSet, Rows
from semel.events.encoding import CANNOT, ArrowValue, Labels
from semel.ledger import ParkedRow, fill_parked, payloads, read_parked
from semel.protocol import OnReject, ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.delivery.lane import Lane
    from semel.errors import DeliveryError
    from semel.events import EventID
    from semel.ledger import LedgerClient
    from semel.ledger.store import Key


def state_after(why: DeliveryError) -> ParkedState:
    """Return the state in which an event is parked that progress has passed: a dead letter if it
    was refused, to be resent if nothing arrived, in doubt if the outcome is unknown.
    """
    if isinstance(why, Rejected):
        return ParkedState.REJECTED
    return ParkedState.RESEND if isinstance(why, NotDelivered) else ParkedState.HELD


def parked_row(lane: Lane, rows: Rows, at: int, state: ParkedState, why: str) -> ParkedRow:
    """Return the parked row of one event; its state decides whether it holds its entity back."""
    blocks = state is ParkedState.RESEND or (
        lane.ordered(rows)
        and (
            state in (ParkedState.HELD, ParkedState.WAITING)
            or (state is ParkedState.REJECTED and lane.sink.on_reject is OnReject.BLOCK)
        )
    )
    position = int(rows.positions[at])
    return ParkedRow(
        entity=rows.entity(at),
        scope=rows.scope(at),
        event=rows.id(at),
        minibatch=lane.assignment.opening.row.minibatch,
        partition=lane.assignment.partition,
        position=position,
        osn=lane.last_osn_before + position + 1,
        state=state,
        why=why,
        at=lane.client.clock.wall(),
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
    return dict(zip(batch.schema.names, map(_kept, batch.columns), strict=True))


def _kept(array: pa.Array) -> Any:
    try:
        value = array[0].as_py()
        payloads.encode_value(value)
        pa.array([value], array.type)  # a value that Python holds may not convert back to Arrow
    except (pa.ArrowException, *CANNOT, TypeError):
        return ArrowValue.of(array)
    return value


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
