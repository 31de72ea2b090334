"""The progress rows in PostgreSQL: who may write, and how much is done.

- One row of `semel_progress` for each (pipeline, sink, partition); an advisory lock of the
  transaction is held before it is looked at, so it is locked also before it exists.
- The ids of the minibatch so far are one row of `semel_progress_ids` per chunk: nothing that grows
  is written again. They go when the minibatch changes. The row counts them: others are left over.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg import sql

from semel.errors import ConfigurationError, Fenced, NotDelivered
from semel.events import Attempt, EntityIds, Minibatch
from semel.events.encoding import ascii_json
from semel.runtime import SystemClock
from semel.sinks.postgres.errors import reason
from semel.sinks.progress import UNREADABLE, Progress, unreadable

if TYPE_CHECKING:
    from semel.sinks.sink import Target

    Connection = psycopg.Connection[tuple[Any, ...]]

_CLOCK = SystemClock()

HOLDER_S = 2.0
"""How long the transaction of another attempt is waited for before its connection is ended."""

_HOLDER = re.compile(r"semel (\d{1,18})\.(\d{1,18})")
"""The application name of a connection, which identifies its attempt."""

_CREATING = 495554355565
"""The advisory lock under which the tables are created; the number is any, and is semel's."""

_DDL = """\
create table if not exists {schema}.semel_progress (
  pipeline text collate "C", sink text collate "C", partition text collate "C",
  generation bigint not null, batch bigint not null,
  run bigint not null, task bigint not null,
  start bigint not null, done bigint not null, osn bigint not null,
  digest text not null, sort_key text, id_rows bigint not null,
  moved_at timestamptz not null default now(),
  primary key (pipeline, sink, partition)
) with (fillfactor = 50);
create table if not exists {schema}.semel_progress_ids (
  pipeline text collate "C", sink text collate "C", partition text collate "C",
  done bigint, ids text not null,
  primary key (pipeline, sink, partition, done)
);"""

_BEGIN = "begin isolation level read committed;"
_LOOK = """
select pg_try_advisory_xact_lock({key});
select generation, batch, run, task, start, done, osn, digest, sort_key, id_rows
from {schema}.semel_progress where (pipeline, sink, partition) = {place}"""

_WRITE = """
insert into {schema}.semel_progress (pipeline, sink, partition, generation, batch, run, task,
  start, done, osn, digest, sort_key, id_rows)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (pipeline, sink, partition) do update set generation = excluded.generation,
  batch = excluded.batch, run = excluded.run, task = excluded.task, start = excluded.start,
  done = excluded.done, osn = excluded.osn, digest = excluded.digest,
  sort_key = excluded.sort_key, id_rows = excluded.id_rows, moved_at = now()"""

_READ_IDS = """
select done, ids from {schema}.semel_progress_ids where (pipeline, sink, partition) = (%s, %s, %s)
"""
_ADD_IDS = """
insert into {schema}.semel_progress_ids values (%s, %s, %s, %s, %s)
on conflict (pipeline, sink, partition, done) do update set ids = excluded.ids"""
_DROP_IDS = """
delete from {schema}.semel_progress_ids where (pipeline, sink, partition) = (%s, %s, %s)"""

_HOLDERS = b"""
select pid, application_name from pg_locks join pg_stat_activity using (pid)
where locktype = 'advisory' and granted and objsubid = 1 and pid <> pg_backend_pid()
  and database = (select oid from pg_database where datname = current_database())
  and (classid::bigint << 32 | objid::bigint) = %s"""
_END = b"select pg_terminate_backend(pid) from unnest(%s::int[]) as pid"


def holder_name(attempt: Attempt) -> str:
    """The name under which an attempt's connections are seen by others."""
    return f"semel {attempt}"


class PostgresProgress:
    """The row of one partition, as one attempt at it sees it."""

    def __init__(self, schema: str, target: Target, where: str) -> None:
        self.schema = schema
        self._target = target
        self._where = where
        self._place = (target.pipeline, target.sink, target.partition)
        named = ascii_json([schema, *self._place]).encode()
        self._key = int.from_bytes(blake2b(named, digest_size=8).digest(), signed=True)
        self.id_rows = 0
        """How many rows of ids there are for the minibatch of the row that was read last."""
        self._is_new = False

    # -- the tables

    def require_tables(self, connection: Connection) -> None:
        """See that both tables are there, or create them; those that come at once take turns."""
        if self._is_there(connection):
            return
        try:
            with connection.transaction():
                connection.execute("select pg_advisory_xact_lock(%s)", (_CREATING,))
                if not self._is_there(connection):
                    connection.execute(self._worded(_DDL))
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(("42", "3F")):
                raise
            ddl = self._worded(_DDL).as_string(connection)
            raise ConfigurationError(
                f"{self._where}: semel's progress tables do not exist and may not be created "
                f"({reason(error)}). Use another schema= for them, or let an administrator run "
                f"this and grant select, insert, update and delete on both:\n{ddl}"
            ) from None

    def _is_there(self, connection: Connection) -> bool:
        names = [
            sql.Identifier(self.schema, table).as_string(connection)
            for table in ("semel_progress", "semel_progress_ids")
        ]
        found = connection.execute("select to_regclass(%s), to_regclass(%s)", names).fetchone()
        return found is not None and None not in found

    # -- the row

    def begin(self, connection: Connection) -> Progress | None:
        """Begin a transaction that has the row, and give it, without its ids.

        Raises `Fenced` when it names a later attempt or minibatch, `NotDelivered` when another
        transaction had the row for too long; its connection is ended then, for no timeout of the
        server ends one that is frozen in the middle of a COPY.
        """
        patience = _CLOCK.monotonic() + HOLDER_S
        words = _BEGIN + _LOOK
        while True:
            # In one message, and not as a pipeline: after that the server has no idle timeout.
            cursor = connection.execute(self._worded(words))
            if words != _LOOK:
                cursor.nextset()
            lock = cursor.fetchone()
            cursor.nextset()
            stood = self._progress(cursor.fetchone())
            if lock == (True,):
                return stood
            words = _LOOK
            if _CLOCK.monotonic() > patience:
                self._end_holder(connection)
            _CLOCK.sleep(0.02)

    def _end_holder(self, connection: Connection) -> NoReturn:
        """End who holds the row, unless that is a later attempt whose first transaction is long: it
        has not written its name into the row yet, but its connection has it.
        """
        what = "its connection was ended, because a later attempt has the partition"
        holders = connection.execute(_HOLDERS, (self._key,)).fetchall()
        for _, name in holders:
            found = _HOLDER.fullmatch(name or "")
            if found is not None and Attempt(int(found[1]), int(found[2])) > self._target.attempt:
                raise Fenced(f"{self._where}: attempt {found[1]}.{found[2]} is writing there")
        try:
            connection.execute(_END, ([pid for pid, _ in holders],))
        except psycopg.errors.InsufficientPrivilege:
            what = "it belongs to another user, so its connection could not be ended"
        raise NotDelivered(
            f"{self._where}: another transaction held the progress row for {HOLDER_S:g} s; {what}",
            retry_after_s=0.1,
        )

    def ids(self, connection: Connection, done: int) -> EntityIds:
        """The ids that belong to the row that was read last, which has `done`.

        Raises `ConfigurationError` if their number is not the one in the row.
        """
        if not self.id_rows:
            return EntityIds.EMPTY
        found = connection.execute(self._worded(_READ_IDS), self._place).fetchall()
        own = [ids for at, ids in found if at <= done]  # what is beyond is left from before
        if len(own) != self.id_rows:
            raise ConfigurationError(
                f"{self._where}: {len(own)} rows of {self.schema}.semel_progress_ids belong to "
                f"this partition, but its row in semel_progress counts {self.id_rows}: one of the "
                "two tables was changed. Restore both from one backup. If the checkpoint exists, "
                "you can also delete those rows and set id_rows = 0 in the progress row: the ids "
                "are needed only after a lost checkpoint"
            )
        try:
            return EntityIds.union(EntityIds.from_json(json.loads(ids)) for ids in own)
        except UNREADABLE as error:
            what = f"a row of {self.schema}.semel_progress_ids"
            raise unreadable(self._where, what, error) from error

    def write(self, connection: Connection, progress: Progress, *, goes_on: bool) -> None:
        """Write the row; with `goes_on` within the minibatch of the row, whose ids then stay.

        Ids that no row counts are not semel's: they are removed before the first that this row
        counts.
        """
        stale = (self.id_rows or self._is_new) and not goes_on
        if stale or (progress.ids and not self.id_rows):
            connection.execute(self._worded(_DROP_IDS), self._place)
            self.id_rows = 0
        if progress.ids:
            ids = progress.ids.written().content.decode()
            connection.execute(self._worded(_ADD_IDS), (*self._place, progress.done, ids))
            self.id_rows += 1
        key = None if progress.sort_key is None else ascii_json(progress.sort_key)
        connection.execute(
            self._worded(_WRITE),
            (
                *self._place,
                progress.minibatch.generation,
                progress.minibatch.batch,
                progress.attempt.run,
                progress.attempt.task,
                progress.start,
                progress.done,
                progress.osn,
                progress.digest,
                key,
                self.id_rows,
            ),
        )

    def _progress(self, row: tuple[Any, ...] | None) -> Progress | None:
        self._is_new = row is None
        if row is None:
            self.id_rows = 0
            return None
        generation, batch, run, task, start, done, osn, digest, key, self.id_rows = row
        try:
            sort_key = None if key is None else json.loads(key)
        except UNREADABLE as error:
            raise unreadable(self._where, f"{self.schema}.semel_progress", error) from error
        stood = Progress(
            minibatch=Minibatch(generation, batch),
            attempt=Attempt(run, task),
            start=start,
            done=done,
            osn=osn,
            digest=digest,
            sort_key=sort_key,
        )
        target = self._target
        if stood.attempt > target.attempt or stood.minibatch > target.minibatch:
            raise Fenced(
                f"{self._where}: the progress row names attempt {stood.attempt} at minibatch "
                f"{stood.minibatch}; this is attempt {target.attempt} at {target.minibatch}, and "
                "it stops"
            )
        return stood

    def _worded(self, text: Any) -> sql.Composed:
        place = sql.SQL(", ").join(map(sql.Literal, self._place))
        return sql.SQL(text).format(
            schema=sql.Identifier(self.schema),
            key=sql.Literal(self._key),
            place=sql.SQL("({})").format(place),
        )
