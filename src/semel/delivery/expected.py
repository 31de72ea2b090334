"""Events that were parked when a generation was closed get their payload when they come again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.parks import value_of
from semel.events import EntityIds, IdSet
from semel.ledger.parked import read_parked
from semel.ledger.store import Conflict, Equals, Put

if TYPE_CHECKING:
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

    def fill(self, rows: Rows, schema: str) -> int:
        """Give their payload to those among `rows` that are expected; say how many were."""
        if not self._missing:
            return 0
        wanted: dict[str, IdSet] = {}
        for scope, event in self._missing:
            wanted[scope] = wanted.get(scope, IdSet.EMPTY) | IdSet.of([event])
        filled = 0
        for at in np.flatnonzero(rows.contained_in(EntityIds.of(wanted))).tolist():
            row_key, row, text = self._missing.pop((rows.scope(at), rows.id(at)))
            full = replace(row, value=value_of(rows, at), schema=schema, shown=rows.entity(at))
            try:
                self._scribe.commit([Equals(row_key, text)], [Put(row_key, full.dump())])
            except Conflict:
                continue  # a person has resolved it meanwhile
            filled += 1
        return filled
