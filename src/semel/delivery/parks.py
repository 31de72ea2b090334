"""Makes parked rows of events: their payload goes with them, and the stream goes on."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from semel.ledger.rows import ParkedRow
from semel.protocol import OnReject, ParkedState

if TYPE_CHECKING:
    from semel.delivery.lane import Lane
    from semel.events import Rows


def parked_row(lane: Lane, rows: Rows, at: int, state: ParkedState, why: str) -> ParkedRow:
    """Make the parked row of one event; whether it holds its entity back follows from its state."""
    blocks = lane.ordered(rows) and (
        state in (ParkedState.HELD, ParkedState.WAITING)
        or (state is ParkedState.REJECTED and lane.sink.on_reject is OnReject.BLOCK)
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
        at=lane.scribe.clock.wall(),
        blocks=blocks,
        doubted=state in (ParkedState.HELD, ParkedState.SKIPPED, ParkedState.RESENT),
        value=rows.value(at),
        schema=schema_text(rows),
    )


def schema_text(rows: Rows) -> str:
    """Write the schema of the rows down, so that a parked event can be made again as it was."""
    return base64.b64encode(rows.batch.schema.serialize().to_pybytes()).decode()
