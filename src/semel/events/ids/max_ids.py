"""The last id of each scope in consecutive runs, on columns.

The ids of a scope increase from row to row, so the last one is the greatest. A scope becomes a
Python object only on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.events.encoding.canonical_json import PreEncoded
from semel.events.ids.id_columns import json_inner
from semel.events.ids.membership import last_rows

if TYPE_CHECKING:
    from semel.events.event import EventID
    from semel.events.rows import Rows

    Run = tuple[pa.Array, tuple[pa.Array, ...]]

RUNS_MAX = 32
"""So many runs are kept side by side before they become one."""


class Latest:
    """Collects runs in their order, and returns the last id of each scope."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def add(self, rows: Rows) -> None:
        """Add the next run."""
        if not len(rows):
            return
        last = last_rows(rows.scopes, rows.ids)
        chosen = pa.array(last)
        names = rows.scopes.names.array.take(pa.array(rows.scopes.codes[last]))
        self._runs.append((names, tuple(part.take(chosen) for part in rows.ids)))
        if len(self._runs) == RUNS_MAX:
            self._runs = [_joined(self._runs)]

    def __bool__(self) -> bool:
        return bool(self._runs)

    def ids(self) -> dict[str, EventID]:
        """Return the last id of each scope."""
        if not self._runs:
            return {}
        names, parts = _joined(self._runs)
        lists = [part.to_pylist() for part in parts]
        last = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        return dict(zip(names.to_pylist(), cast("list[EventID]", last), strict=True))

    def written(self, beside: int) -> PreEncoded:
        """Return the canonical JSON of {scope: [last id, beside]}."""
        names, parts = _joined(self._runs)
        order = pc.sort_indices(names)
        pieces: list[Any] = []
        for part in parts:
            taken, text = part.take(order), pa.types.is_string(part.type)
            pieces += [",", '"', json_inner(taken), '"'] if text else [",", taken.cast(pa.string())]
        opened, closed = ("[[", "]") if len(parts) > 1 else ("[", "")
        tail = f"{closed},{beside}]"
        names = json_inner(names.take(order))
        each = pc.binary_join_element_wise('"', names, '":' + opened, *pieces[1:], tail, "")
        edges = pa.array([0, len(each)], pa.int32())
        [whole] = pc.binary_join(pa.ListArray.from_arrays(edges, each), ",")
        return PreEncoded(b"{" + cast("bytes", whole.as_buffer().to_pybytes()) + b"}")


def _joined(runs: list[Run]) -> Run:
    """Join runs into one; for a scope that is in several of them, the last one decides."""
    if len(runs) == 1:
        return runs[0]
    encoded = pa.concat_arrays([names for names, _ in runs]).dictionary_encode()
    last = np.empty(len(encoded.dictionary), np.int64)
    last[encoded.indices.to_numpy()] = np.arange(len(encoded))  # the last of several remains
    chosen = pa.array(last)
    columns = zip(*(parts for _, parts in runs), strict=True)
    return encoded.dictionary, tuple(pa.concat_arrays(list(each)).take(chosen) for each in columns)
