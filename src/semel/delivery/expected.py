"""Events that were parked when a generation was closed get their payload when they come again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.parks import value_of
from semel.events import EntityIds, IdSet
from semel.ledger.parked import fill, read_parked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.events import EventID, Rows
    from semel.ledger.rows import ParkedRow
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Key


class Expected:
    """The parked events of a sink that have no payload yet; read when the first may come."""

    def __init__(self, scribe: Scribe, sink: str) -> None:
        self._scribe = scribe
        rows = read_parked(scribe, sink)
        self._missing: dict[tuple[str, EventID], tuple[Key, ParkedRow, str]] = {
            (row.scope, row.event): (row_key, row, text)
            for row_key, row, text in rows
            if row.value is None
        }

    def fill(self, rows: Rows, schema: str) -> None:
        """Give their payload to those among `rows` that are expected."""
        if not self._missing:
            return
        for at in np.flatnonzero(rows.contained_in(ids_of(self._missing))).tolist():
            row_key, row, text = self._missing.pop((rows.scope(at), rows.id(at)))
            full = replace(row, value=value_of(rows, at), schema=schema, shown=rows.entity(at))
            fill(self._scribe, row_key, text, full)


def ids_of(events: Iterable[tuple[str, EventID]]) -> EntityIds:
    """Put events, each a scope and an id, together to sets."""
    found: dict[str, list[EventID]] = {}
    for scope, event in events:
        found.setdefault(scope, []).append(event)
    return EntityIds.of({scope: IdSet.of(ids) for scope, ids in found.items()})
