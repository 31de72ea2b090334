"""The shared store: one PostgreSQL table of three columns, for a cluster.

Always true of it:
- a commit is one call of a function in one implicit transaction under READ COMMITTED. It locks
  the rows that it touches in the order of their keys, so requirements hold until it is over and
  nobody waits in a circle;
- a commit whose connection dies on the way is `LedgerUnavailable`, and is never repeated here:
  nobody knows whether it happened. A connection that was dead before is noticed and replaced;
- a connection is used by one thread at a time, and never by a child process;
- no message holds a password.
"""

from __future__ import annotations

import os
import select
import weakref
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, LiteralString, cast

from semel.errors import ConfigurationError, LedgerUnavailable, MissingExtra
from semel.ledger.clock import SystemClock
from semel.ledger.libpq import DEFAULTS, Refused, line
from semel.ledger.store import Conflict, Key
from semel.ledger.stores import SCHEMA, SCHEMA_KEY, arrange, beyond, check_schema, paged, redact

try:
    import psycopg
    from psycopg import conninfo
except ImportError as missing:
    raise MissingExtra("psycopg is not installed: pip install 'semel[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.errors import SemelError
    from semel.ledger.clock import Clock
    from semel.ledger.store import Payload, Requirement, Update
    from semel.ledger.stores import Arranged

    Connection = psycopg.Connection[tuple[Any, ...]]

CONFLICT = "SM001"
"""The SQLSTATE of a requirement that does not hold."""

# The parallel arrays hold one entry per key, in key order. An act is i(nsert what is absent),
# p(ut), d(elete), s(weep) or r(equire only); an old payload is the one required, or null.
_SCHEMA: LiteralString = """
create table if not exists semel_ledger (
  tbl text collate "C" not null,
  key text collate "C" not null,
  payload text not null,
  primary key (tbl, key)
) with (fillfactor = 80);

create or replace function semel_commit_1(
  tbls text[], keys text[], acts text[], olds text[], news text[],
  sweep_tbls text[], sweep_froms text[], sweep_tos text[]
) returns void language plpgsql volatile as $$
declare
  has text;
begin
  if current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true);
  end if;

  -- 1. What a sweep will remove is touched as well, and takes its place in the order.
  if cardinality(sweep_tbls) > 0 then
    select array_agg(tbl), array_agg(key), array_agg(act), array_agg(old), array_agg(new)
      into tbls, keys, acts, olds, news
      from (select * from (
        select * from unnest(tbls, keys, acts, olds, news) as t(tbl, key, act, old, new)
        union all
        select l.tbl, l.key, 's', null, null
          from unnest(sweep_tbls, sweep_froms, sweep_tos) as s(tbl, key_from, key_to)
          join semel_ledger l on l.tbl = s.tbl and l.key >= s.key_from
            and (s.key_to is null or l.key < s.key_to)
          where not exists (
            select from unnest(tbls, keys) as t(tbl, key) where t.tbl = l.tbl and t.key = l.key)
      ) touched order by tbl collate "C", key collate "C") ordered;
  end if;

  -- 2. Lock what is there and check what is required.
  for i in 1 .. coalesce(cardinality(keys), 0) loop
    continue when acts[i] = 'i';
    if acts[i] = 'r' then
      select payload into has from semel_ledger where tbl = tbls[i] and key = keys[i] for share;
    else
      select payload into has from semel_ledger
        where tbl = tbls[i] and key = keys[i] for no key update;
    end if;
    if olds[i] is not null and has is distinct from olds[i] then
      raise exception using errcode = 'SM001', message = tbls[i], detail = keys[i];
    end if;
  end loop;

  -- 3. Write. The primary key decides who was first where a row must be absent.
  for i in 1 .. coalesce(cardinality(keys), 0) loop
    if acts[i] = 'i' then
      insert into semel_ledger values (tbls[i], keys[i], news[i]) on conflict do nothing;
      if not found then
        raise exception using errcode = 'SM001', message = tbls[i], detail = keys[i];
      end if;
    elsif acts[i] = 'p' then
      insert into semel_ledger values (tbls[i], keys[i], news[i])
        on conflict on constraint semel_ledger_pkey do update set payload = excluded.payload;
    elsif acts[i] = 'd' then
      delete from semel_ledger where tbl = tbls[i] and key = keys[i];
    end if;
  end loop;

  -- 4. Sweep, but not what this commit puts.
  for i in 1 .. cardinality(sweep_tbls) loop
    delete from semel_ledger l
      where l.tbl = sweep_tbls[i] and l.key >= sweep_froms[i]
        and (sweep_tos[i] is null or l.key < sweep_tos[i])
        and not exists (
          select from unnest(tbls, keys, acts) as kept(tbl, key, act)
          where kept.act in ('i', 'p') and kept.tbl = l.tbl and kept.key = l.key);
  end loop;
end $$;
"""
_INSTALLED: LiteralString = (
    "select to_regclass('semel_ledger') is not null, to_regproc('semel_commit_1') is not null"
)
_INSERT: LiteralString = "insert into semel_ledger values (%s, %s, %s) on conflict do nothing"
_COMMIT: LiteralString = (
    "select semel_commit_1(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::text[], %s::text[])"
)
_READ: LiteralString = (
    "select l.tbl, l.key, l.payload from unnest(%s::text[], %s::text[]) as wanted(tbl, key)"
    " join semel_ledger l on l.tbl = wanted.tbl and l.key = wanted.key"
)
_SCAN: LiteralString = "select key, payload from semel_ledger where tbl=%s and key>%s and key>=%s"
_SCAN_BELOW: LiteralString = _SCAN + " and key<%s"

_TRIES = 8
_SESSION: LiteralString = (
    "set statement_timeout = '60s'; set default_transaction_isolation = 'read committed'"
)

_inherited: list[object] = []
"""Connections of a parent process. Not closed here: that would end the parent's session."""


class PostgresStore:
    """A store in a PostgreSQL database. A thread has a connection of its own during a call."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jitter = Random(os.getpid())
        self._where = redact(url)
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigurationError(
                f"{self._where!r} is not a URL that PostgreSQL understands; the form is"
                " postgresql://user:password@host:port/database"
            ) from None
        named = {"application_name": "semel"}
        self._settings = DEFAULTS | named | {k: str(v) for k, v in given.items()}
        self._idle = _Idle()
        weakref.finalize(self, self._idle.close)

    def __repr__(self) -> str:
        return f"PostgresStore({self._where!r})"

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Give the rows that exist among `keys`, in one consistent look."""
        wanted = [key.table for key in keys], [key.key for key in keys]
        return {Key(table, key): payload for table, key, payload in self._query(_READ, wanted)}

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Give the rows with `prefix` whose key is greater than `after`, in key order, by pages."""
        last = beyond(prefix)
        statement = (_SCAN_BELOW if last else _SCAN) + " order by key limit %s"
        bounds = (prefix, last) if last else (prefix,)

        def fetch(after: str, wanted: int) -> list[tuple[Any, ...]]:
            return self._query(statement, (table, after, *bounds, wanted))

        return paged(fetch, table, after, limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold. Raises `Conflict` or `LedgerUnavailable`."""
        arguments = _arguments(arrange(requirements, updates))
        for tries in range(_TRIES):
            try:
                with self._connection() as connection:
                    connection.execute(_COMMIT, arguments, prepare=True)
                return
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                # The server undid it as a whole and says so: this, and only this, may be repeated.
                if tries == _TRIES - 1:
                    raise _told(error, self._where) from error
            except psycopg.Error as error:
                if error.diag.sqlstate == CONFLICT:
                    table, key = error.diag.message_primary, error.diag.message_detail
                    raise Conflict(Key(str(table), str(key))) from None
                raise _told(error, self._where) from error
            self._clock.sleep(self._jitter.random() * 0.005 * 2**tries)

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens them again."""
        self._idle.close()

    def _query(self, statement: LiteralString, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        for last_try in (False, True):
            try:
                with self._connection() as connection:
                    return connection.execute(statement, arguments).fetchall()
            except psycopg.Error as error:
                gone = isinstance(error, psycopg.OperationalError) and error.sqlstate != "57014"
                if last_try or not gone:
                    raise _told(error, self._where) from error
        raise AssertionError

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = self._idle.take() or self._connect()
        try:
            yield connection
        finally:
            self._idle.give(connection)

    def _connect(self) -> Connection:
        try:
            connection = psycopg.connect(**cast("dict[str, Any]", self._settings), autocommit=True)
        except psycopg.Error as error:
            raise _refused(error, self._settings) from None
        try:
            connection.execute(_SESSION)
            if not _is_installed(connection, self._where):
                _install(connection, self._where)
        except BaseException:
            connection.close()
            raise
        return connection


class _Idle:
    """The connections that no thread uses just now."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._connections: list[Connection] = []

    def take(self) -> Connection | None:
        self._leave_parents()
        while True:
            try:
                connection = self._connections.pop()
            except IndexError:
                return None
            if _is_alive(connection):
                return connection
            connection.close()

    def give(self, connection: Connection) -> None:
        if self._pid != os.getpid():
            _inherited.append(connection)
        elif connection.closed or connection.info.transaction_status:
            connection.close()
        else:
            self._connections.append(connection)

    def close(self) -> None:
        self._leave_parents()
        while self._connections:
            with suppress(IndexError):
                self._connections.pop().close()

    def _leave_parents(self) -> None:
        if self._pid != os.getpid():
            _inherited.append(self._connections)
            self._connections = []
            self._pid = os.getpid()


def _is_alive(connection: Connection) -> bool:
    """Look without asking the server: an idle connection has nothing to read until it ends."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _is_installed(connection: Connection, ledger: str) -> bool:
    """Tell whether table and function are there. A newer table raises, before anyone adds to it."""
    [(table, function)] = connection.execute(_INSTALLED).fetchall()
    if table:
        rows = connection.execute(_READ, ([SCHEMA_KEY.table], [SCHEMA_KEY.key])).fetchall()
        check_schema(rows[0][2] if rows else None, ledger)
    return bool(table and function)


def _install(connection: Connection, ledger: str) -> None:
    with connection.transaction():
        # Two that open an empty database at once take turns; the number is any, and is semel's.
        connection.execute("select pg_advisory_xact_lock(495554355564)")
        if not _is_installed(connection, ledger):
            connection.execute(_SCHEMA)
            connection.execute(_INSERT, (*SCHEMA_KEY, SCHEMA))


def _arguments(arranged: Arranged) -> tuple[list[Any], ...]:
    """Lay a commit out as parallel arrays with one entry per key, in key order."""
    olds: dict[Key, Payload] = {}
    for equals in arranged.equals:
        if olds.setdefault(equals.key, equals.payload) != equals.payload:
            raise Conflict(equals.key)
    entries = []
    for key in sorted({*olds, *arranged.writes}):  # by code point, which is by bytes in UTF-8
        new = arranged.writes.get(key)
        if key in arranged.absent:
            if key in olds:
                raise Conflict(key)
            act = "i"
        elif new is not None:
            act = "p"
        else:
            act = "d" if key in arranged.writes or arranged.sweeps_over(key) else "r"
        entries.append((key.table, key.key, act, olds.get(key), new))
    columns = [list(column) for column in zip(*entries, strict=True)] or [[], [], [], [], []]
    sweeps = arranged.sweeps
    return (
        *columns,
        [sweep.table for sweep in sweeps],
        [sweep.prefix for sweep in sweeps],
        [beyond(sweep.prefix) for sweep in sweeps],
    )


_CANNOT_BE = {
    "42501": "does not let this user in; grant it usage of the schema and its table",
    "42P01": "has lost its table",
    "42883": "has lost its function",
    "3F000": "has no schema to work in; set the user's search_path",
    "54000": "cannot hold so large a row",
}

_UNAVAILABLE = {
    "25006": "is read-only, as a standby is (try target_session_attrs=read-write)",
    "53100": "has a full disk; make room",
    "53300": "has no connection left; raise max_connections",
    "57014": "took longer than statement_timeout",
}


def _told(error: psycopg.Error, where: str) -> SemelError:
    """Say in the ledger's words what PostgreSQL said. What nobody classified is unknown."""
    state = error.sqlstate or ""
    if state in _CANNOT_BE:
        return ConfigurationError(f"the ledger {where} {_CANNOT_BE[state]} ({line(error)})")
    if state in _UNAVAILABLE:
        return LedgerUnavailable(f"the ledger {where} {_UNAVAILABLE[state]} ({line(error)})")
    return LedgerUnavailable(
        f"the ledger {where} did not answer, and the commit may have happened: {line(error)}"
    )


def _refused(error: psycopg.Error, settings: dict[str, str]) -> SemelError:
    """Say why there is no connection: what a person must change, or what may pass."""
    refused = Refused.of(error, settings)
    place = f"{settings.get('host', 'localhost')}:{settings.get('port', '5432')}"
    ledger = f"the ledger's database {settings.get('dbname', '(default)')!r} at {place}"
    if refused.misconfigured:
        return ConfigurationError(f"{ledger} refuses: {refused.text}")
    return LedgerUnavailable(f"{ledger} cannot be reached: {refused.text}")
