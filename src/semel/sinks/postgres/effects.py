"""The three effects on PostgreSQL: append with COPY, apply a statement to a chunk, one per event.

An effect is made ready before the transaction begins: what cannot be written is refused before
anything is sent. Only the text of COPY is made while the server reads it, in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.types.json import Jsonb

from semel.errors import ConfigurationError, Rejected
from semel.sinks.postgres.copy import copy_text, is_nested, json_text, plain, type_of
from semel.sinks.postgres.tables import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import psycopg

    from semel.events import Chunk
    from semel.sinks.postgres.sink import Postgres

    Connection = psycopg.Connection[tuple[Any, ...]]
    Act = Callable[[Connection], None]

OWN = ("semel_entity", "semel_event", "semel_osn")
"""What a staged chunk tells of each event beside the frame's columns."""


class Effect(Protocol):
    """What is done with a chunk, inside a transaction that is not its own."""

    def connected(self, connection: Connection) -> None:
        """Look at the destination once, when there is a new connection."""

    def prepared(self, chunk: Chunk) -> Act:
        """Make a chunk ready; what is given acts. Raises `Rejected` for what cannot be sent."""

    def committed(self) -> None:
        """Learn that what was done last stands."""

    def undone(self) -> None:
        """Learn that what was done last does not stand."""


def effect_of(sink: Postgres, where: str) -> Effect:
    """Give the effect that the sink describes."""
    if sink.table is not None:
        return Append(sink.table, sink.columns, where)
    return Each(sink.statements[0]) if sink.each is not None else Apply(sink.statements, where)


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
                    f"{self._where}: columns= names {source!r}, and the frame has "
                    f"{', '.join(present)}"
                )
        return [(source, self._found(into)) for source, into in wanted]

    def _found(self, name: str) -> str:
        """The table's column of that name; if there is none, the only one but for its case."""
        if name in self._types:
            return name
        alike = [each for each in self._types if each.lower() == name.lower()]
        if len(alike) != 1:
            raise ConfigurationError(
                f"{self._where}: table {self._table!r} has no column {name!r}; it has "
                f"{', '.join(self._types)}. Choose or rename with columns="
            )
        return alike[0]


def _copied(connection: Connection, *, statement: sql.Composed, text: Iterable[pa.Buffer]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for piece in text:
            copy.write(memoryview(piece))


# -- apply


class Apply:
    """Statements over the chunk, staged as the temporary table `semel_batch`."""

    def __init__(self, statements: Sequence[str], where: str) -> None:
        self._statements = [each.encode() for each in statements]
        self._where = where
        self._staged: str | None = None
        self._making: str | None = None

    def connected(self, connection: Connection) -> None:
        """A temporary table goes with its connection, and a new one has none."""
        del connection
        self._staged = self._making = None

    def prepared(self, chunk: Chunk) -> Act:
        """Write the chunk as COPY reads it, and the table that takes it."""
        columns, names = _staged_columns(chunk, self._where)
        types = [type_of(each.type) or "text" for each in columns]
        text = copy_text(columns, names, types)
        pairs = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_literal(kind)))
            for name, kind in zip(names, types, strict=True)
        ]
        table = sql.SQL("create temporary table semel_batch ({}) on commit delete rows").format(
            sql.SQL(", ").join(pairs)
        )
        return partial(self._act, table=table, text=text)

    def committed(self) -> None:
        """The table stands, empty."""
        self._staged = self._making

    def undone(self) -> None:
        """The table is as it was after the last commit."""
        self._making = self._staged

    def _act(
        self, connection: Connection, *, table: sql.Composed, text: Iterable[pa.Buffer]
    ) -> None:
        wanted = table.as_string(connection)
        if self._staged != wanted:
            if self._staged is not None:
                connection.execute("drop table pg_temp.semel_batch")
            connection.execute(table)
        self._making = wanted
        copy = sql.SQL("copy pg_temp.semel_batch from stdin (format csv)").format()
        _copied(connection, statement=copy, text=text)
        for statement in self._statements:
            connection.execute(statement, binary=True)  # binary: one statement, never several


def _staged_columns(chunk: Chunk, where: str) -> tuple[list[pa.Array], list[str]]:
    """The frame's columns, and whom each row is about."""
    rows = chunk.rows
    names = list(rows.batch.schema.names)
    taken = sorted({*names} & {*OWN})
    if taken:
        raise ConfigurationError(
            f"{where}: the frame has columns that semel names itself: {', '.join(taken)}; rename "
            "them"
        )
    labels = rows.scopes if rows.entities is None else rows.entities
    entities = labels.names.array.take(pa.array(labels.codes))
    event = rows.ids[0]
    if len(rows.ids) > 1:
        event = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in rows.ids), ",")
    return [*rows.batch.columns, entities, event, pa.array(chunk.osns())], [*names, *OWN]


def _literal(text: str) -> Any:
    """A type's name of our own table of types."""
    return text


# -- each


class Each(Plain):
    """One statement per event, sent without waiting for the answer to the one before."""

    def __init__(self, statement: str) -> None:
        self._statement = statement.encode()

    def prepared(self, chunk: Chunk) -> Act:
        """Make the parameters: the event's columns, and whom it is about."""
        kinds = {field.name: field.type for field in chunk.rows.batch.schema}
        nested = {name: kind for name, kind in kinds.items() if is_nested(kind)}
        parameters = [
            {
                **event.value,
                **{name: _jsonb(event.value[name], kind) for name, kind in nested.items()},
                "semel_entity": event.entity,
                "semel_event": ",".join(map(str, event.id))
                if isinstance(event.id, tuple)
                else event.id,
                "semel_osn": event.osn,
                "semel_key": event.key,
            }
            for event in chunk.events()
        ]
        return partial(self._act, parameters=parameters)

    def _act(self, connection: Connection, *, parameters: Sequence[Mapping[str, Any]]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(self._statement, parameters)
        # After a pipeline the server has no idle timeout until the next message of another kind.
        connection.execute("select")


def _jsonb(value: Any, kind: pa.DataType) -> Jsonb | None:
    if value is None:
        return None
    made = plain(value, kind)
    try:
        json_text(made)
    except ValueError as error:
        raise Rejected(f"a value of type {kind} has no JSON: {error}") from error
    return Jsonb(made, dumps=json_text)
