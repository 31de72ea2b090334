"""The parameters of a statement that runs per event: columns as strings, and their SQL types.

Always true:
- the type of a parameter is that of its column, for every value and for null: `%(amount)s` of an
  int64 column is `(cast(%(amount)s as bigint))`, so no value selects another function or operator;
- a string has no type, like a quoted literal of SQL: the statement determines it;
- only columns that the statement names are written, all values of a column at once.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import Rejected
from semel.events.encoding import CANNOT
from semel.sinks.postgres.copy import text_column, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Chunk

_HOLE = re.compile(r"%(?:%|\(([^)]+)\)([sbt]))")

STAGED = ("semel_entity", "semel_event", "semel_osn")
"""The columns of a staged chunk besides those of the DataFrame."""

OF_SEMEL = (*STAGED, "semel_key")
"""The names that a statement per event can use besides the columns of the DataFrame."""

Column = tuple[pa.Array, str]
"""Values, and the PostgreSQL type that they have; `text` is given without one."""


def named(statement: str) -> dict[str, None]:
    """The names that a statement has as `%(name)s`, each once, in their order."""
    return dict.fromkeys(found[1] for found in _HOLE.finditer(statement) if found[1])


class Parameters:
    """The columns that a statement names, of one chunk after the other."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._names = named(statement)
        self.types: dict[str, str] = {}
        """The type of each parameter of the last chunk, by name; a text has none."""

    def of(self, chunk: Chunk) -> tuple[str, list[dict[str, str | None]]]:
        """Return the statement with the types of its parameters, and the parameters of every event.

        Raises `Rejected` for a value that PostgreSQL cannot store. A name that is not a column is
        left unchanged: psycopg reports it.
        """
        makers = self._makers(chunk)
        columns: dict[str, list[str | None]] = {}
        self.types = {}
        for name in self._names:
            if name not in makers:
                continue
            array, kind = makers[name]()
            columns[name] = _values(array, name, kind)
            if kind != "text":
                self.types[name] = kind
        rows = zip(*columns.values(), strict=True) if columns else [()] * len(chunk)
        return self._typed(), [dict(zip(columns, row, strict=True)) for row in rows]

    def _makers(self, chunk: Chunk) -> dict[str, Callable[[], Column]]:
        """The function that makes each column: those of the DataFrame, and semel's own."""
        rows = chunk.rows
        labels = rows.scopes if rows.entities is None else rows.entities
        own: dict[str, Callable[[], Column]] = {
            "semel_entity": lambda: (labels.names.array.take(pa.array(labels.codes)), "text"),
            "semel_event": lambda: _kinded(rows.id_texts()),
            "semel_osn": lambda: _kinded(pa.array(chunk.osns())),
            "semel_key": lambda: (pa.array(chunk.event_keys(), pa.string()), "text"),
        }
        batch = rows.batch
        theirs = {
            name: partial(_kinded, batch.column(at)) for at, name in enumerate(batch.schema.names)
        }
        return {**theirs, **own}

    def _typed(self) -> str:
        """The statement with a type for each parameter that has one."""

        def cast(found: re.Match[str]) -> str:
            kind = self.types.get(found[1] or "")
            return found[0] if kind is None else f"(cast(%({found[1]})s as {kind}))"

        return _HOLE.sub(cast, self._statement)


def _kinded(array: pa.Array) -> Column:
    kind = type_of(array.type) or ""
    return array, kind.partition("(")[0]  # numeric without its digits: they are the column's own


def _values(array: pa.Array, name: str, kind: str) -> list[Any]:
    try:
        return list(text_column(array, name, kind).to_pylist())
    except CANNOT as error:
        raise Rejected(f"column {name!r}: {error}") from error
