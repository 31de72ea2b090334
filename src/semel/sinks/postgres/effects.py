"""The three effects on PostgreSQL: append with COPY, apply a statement to a chunk, one per event.

An effect is made ready before the transaction begins: what cannot be written is refused before
anything is sent. Only the text of COPY is made while the server reads it, in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from psycopg import errors, sql

from semel.errors import ConfigurationError
from semel.sinks.postgres.copy import copy_text, type_of
from semel.sinks.postgres.errors import reason
from semel.sinks.postgres.parameters import STAGED, Parameters
from semel.sinks.postgres.tables import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import psycopg

    from semel.events import Chunk
    from semel.sinks.postgres.sink import Postgres

    Connection = psycopg.Connection[tuple[Any, ...]]
    Act = Callable[[Connection], object]

_IS_OTHER = b"select to_regclass('semel_batch') is distinct from to_regclass('pg_temp.semel_batch')"
_OTHER = b"""
select n.nspname, current_setting('search_path')
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass('semel_batch')"""
"""Whether a statement's `semel_batch` is another one than the chunk, and in which schema it is."""


class ChunkEffect(Protocol):
    """The effect of a chunk, inside a transaction that the session owns."""

    def connected(self, connection: Connection) -> None:
        """Look at the destination once, when there is a new connection."""

    def prepared(self, chunk: Chunk) -> Act:
        """Make a chunk ready; what is given acts. Raises `Rejected` for what cannot be sent."""

    def committed(self) -> None:
        """The last effect was committed."""

    def undone(self) -> None:
        """The last effect was not committed."""


def effect_of(sink: Postgres, where: str) -> ChunkEffect:
    """Return the effect that the sink describes."""
    if sink.table is not None:
        return Append(sink.table, sink.columns, where)
    return (
        Each(sink.statements[0], where) if sink.each is not None else Apply(sink.statements, where)
    )


class Plain:
    """An effect that keeps nothing on the server between transactions."""

    def connected(self, connection: Connection) -> None:
        """Nothing is to be looked at."""

    def committed(self) -> None:
        """Nothing is kept."""

    def undone(self) -> None:
        """Nothing is kept."""


# -- append


class Append(Plain):
    """COPY into a table."""

    def __init__(
        self, table: str, columns: Sequence[str] | Mapping[str, str] | None, where: str
    ) -> None:
        self._table = table
        self._columns = columns
        self._where = where
        self._name: sql.Composable = sql.SQL("")
        self._types: dict[str, str] = {}

    def connected(self, connection: Connection) -> None:
        """Read the table's columns, and see that the transaction covers it."""
        found = described(connection, self._table, self._where)
        self._name, self._types = found.name, found.types

    def prepared(self, chunk: Chunk) -> Act:
        """Write the columns as COPY reads them."""
        batch = chunk.rows.batch
        pairs = self._pairs(batch.schema.names)
        columns = [batch.column(source) for source, _ in pairs]
        names = [source for source, _ in pairs]
        text = copy_text(columns, names, [self._types[into] for _, into in pairs])
        into = sql.SQL(", ").join([sql.Identifier(into) for _, into in pairs])
        statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(self._name, into)
        return partial(_copied, statement=statement, text=text)

    def _pairs(self, present: Sequence[str]) -> list[tuple[str, str]]:
        """The columns of the frame and those of the table that they go to."""
        if isinstance(self._columns, Mapping):
            wanted = list(self._columns.items())
        else:
            wanted = [(each, each) for each in (self._columns or present)]
        for source, _ in wanted:
            if source not in present:
                raise ConfigurationError(
                    f"{self._where}: columns= names {source!r}, but the DataFrame has "
                    f"{', '.join(present)}"
                )
        return [(source, self._found(into)) for source, into in wanted]

    def _found(self, name: str) -> str:
        """The table's column of that name; otherwise the only one that differs in case only."""
        if name in self._types:
            return name
        alike = [each for each in self._types if each.lower() == name.lower()]
        if len(alike) != 1:
            raise ConfigurationError(
                f"{self._where}: table {self._table!r} has no column {name!r}; it has "
                f"{', '.join(self._types)}. Choose or rename columns with columns="
            )
        return alike[0]


def _copied(connection: Connection, *, statement: sql.Composed, text: Iterable[pa.Buffer]) -> int:
    """COPY, and return how many rows the server took."""
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for piece in text:
                copy.write(memoryview(piece))
        return cursor.rowcount


# -- apply


class Apply:
    """Statements over the chunk, staged as the temporary table `semel_batch`."""

    def __init__(self, statements: Sequence[str], where: str) -> None:
        self._statements = [each.encode() for each in statements]
        self._where = where
        self._staged: str | None = None
        self._making: str | None = None

    def connected(self, connection: Connection) -> None:
        """A temporary table is lost with its connection, and a new connection has none."""
        del connection
        self._staged = self._making = None

    def prepared(self, chunk: Chunk) -> Act:
        """Write the chunk as COPY reads it, and the table that takes it."""
        columns, names = staged_columns(chunk, self._where)
        types = [type_of(each.type) or "text" for each in columns]
        text = copy_text(columns, names, types)
        pairs = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_literal(kind)))
            for name, kind in zip(names, types, strict=True)
        ]
        table = sql.SQL("create temporary table semel_batch ({}) on commit delete rows").format(
            sql.SQL(", ").join(pairs)
        )
        return partial(self._act, table=table, text=text, rows=len(chunk))

    def committed(self) -> None:
        """The table exists and is empty."""
        self._staged = self._making

    def undone(self) -> None:
        """The table is as it was after the last commit."""
        self._making = self._staged

    def _act(
        self, connection: Connection, *, table: sql.Composed, text: Iterable[pa.Buffer], rows: int
    ) -> None:
        wanted = table.as_string(connection)
        if self._staged != wanted:
            if self._staged is not None:
                connection.execute("drop table pg_temp.semel_batch")
            connection.execute(table)
        self._making = wanted
        copy = sql.SQL("copy pg_temp.semel_batch from stdin (format csv)").format()
        staged = _copied(connection, statement=copy, text=text)
        if staged != rows:
            raise ConfigurationError(
                f"{self._where}: only {staged} of {rows} events were staged in semel_batch; check "
                "what keeps the others out"
            )
        for statement in self._statements:
            self._require_found(connection)
            connection.execute(statement, binary=True)  # binary: one statement, never several

    def _require_found(self, connection: Connection) -> None:
        """Raise `ConfigurationError` where `semel_batch` in a statement is not the chunk."""
        if connection.execute(_IS_OTHER).fetchone() == (True,):
            schema, path = connection.execute(_OTHER).fetchone() or ("?", "?")
            raise ConfigurationError(
                f"{self._where}: semel_batch in the statement would be {schema}.semel_batch and "
                f"not the chunk, because pg_temp is after that schema in the search_path ({path}). "
                "Rename that table, or remove pg_temp from the search_path. Nothing was delivered"
            )


def staged_columns(chunk: Chunk, where: str) -> tuple[list[pa.Array], list[str]]:
    """The frame's columns, and whom each row is about."""
    rows = chunk.rows
    names = list(rows.batch.schema.names)
    taken = sorted({*names} & {*STAGED})
    if taken:
        raise ConfigurationError(
            f"{where}: the DataFrame has columns with names that semel uses: {', '.join(taken)}; "
            "rename them"
        )
    labels = rows.scopes if rows.entities is None else rows.entities
    entities = labels.names.array.take(pa.array(labels.codes))
    own = [entities, rows.id_texts(), pa.array(chunk.osns())]
    return [*rows.batch.columns, *own], [*names, *STAGED]


def _literal(text: str) -> Any:
    """The name of a type from semel's own table of types."""
    return text


# -- each


class Each(Plain):
    """One statement per event, sent without waiting for the answer to the one before."""

    def __init__(self, statement: str, where: str) -> None:
        self._parameters = Parameters(statement)
        self._where = where

    def prepared(self, chunk: Chunk) -> Act:
        """Write the columns that the statement names, and give them their types."""
        statement, rows = self._parameters.of(chunk)
        types = dict(self._parameters.types)
        return partial(self._act, statement=statement.encode(), rows=rows, types=types)

    def _act(
        self,
        connection: Connection,
        *,
        statement: bytes,
        rows: Sequence[Mapping[str, Any]],
        types: Mapping[str, str],
    ) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.executemany(statement, rows)
        except (errors.UndefinedFunction, errors.AmbiguousFunction) as error:
            named = ", ".join(f"{name} {kind}" for name, kind in types.items()) or "none has one"
            raise ConfigurationError(
                f"{self._where}: PostgreSQL reports {reason(error)}. A parameter has the type of "
                f"its column ({named}), a text has none; write %(column)s::type if the function or "
                "operator needs another type. Nothing was delivered and nothing parked; correct "
                "the statement, then restart the query"
            ) from error
        # After a pipeline the server has no idle timeout until the next message of another kind.
        connection.execute("select")
