"""A table that rows go into: its columns, and that the transaction covers every part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg

_COLUMNS = b"""
select n.nspname, c.relname,
  array(select array[a.attname, format_type(
      case t.typtype when 'd' then t.typbasetype else t.oid end, null)]
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    order by a.attnum)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""

_FORGETFUL = b"""
select c.oid::regclass::text, c.relkind::text from pg_class c
where (c.relpersistence = 'u' or c.relkind = 'f') and (c.oid = to_regclass(%(table)s)
  or c.oid in (select relid from pg_partition_tree(to_regclass(%(table)s))))
order by 1 limit 1"""


@dataclass(frozen=True)
class Table:
    """A table as the server describes it: its name, and the type of each of its columns."""

    name: sql.Identifier
    types: dict[str, str]


def described(connection: psycopg.Connection[tuple[Any, ...]], table: str, where: str) -> Table:
    """Look up a table. Raises `ConfigurationError` if there is none, and if it or a partition of it
    does not keep what was committed.
    """
    found = connection.execute(_COLUMNS, (table,)).fetchone()
    if found is None:
        raise ConfigurationError(
            f"{where}: table {table!r} does not exist; create it, or correct table="
        )
    forgetful = connection.execute(_FORGETFUL, {"table": table}).fetchone()
    if forgetful is not None:
        shown, kind = forgetful
        what = "is unlogged: a crash of the server empties it"
        if kind == "f":
            what = "is a foreign table: its server commits by itself"
        raise ConfigurationError(
            f"{where}: table {shown} {what}, but semel's record of what was delivered would stay. "
            "Use an ordinary table"
        )
    schema, name, columns = found
    return Table(sql.Identifier(schema, name), dict(columns))
