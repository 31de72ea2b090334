"""One connection of one attempt to PostgreSQL: the progress row first, then the effect, one commit.

Always true:
- the connection commits where this file sends COMMIT and nowhere else: users' statements are run
  one at a time through the extended protocol, and may not end the transaction;
- a connection that broke is replaced before the next transaction, never inside one;
- every statement, every lock and every pause inside a transaction has a timeout on the server. A
  COMMIT has none there while it waits for a standby, so it has one here: its outcome is unknown
  then. It is not cancelled, because a cancelled one is committed nevertheless, but not on the
  standby; and the COMMIT of the attempt that takes over waits for the standby too.
"""

from __future__ import annotations

import select
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from semel.errors import ConfigurationError, Fenced, MissingExtra, NotDelivered, OutcomeUnknown
from semel.ledger.store.libpq import DEFAULTS, read_url
from semel.runtime import SystemClock
from semel.sinks.postgres.effects import effect_of
from semel.sinks.postgres.errors import Phase, classify, refused
from semel.sinks.postgres.progress import PostgresProgress, holder_name
from semel.sinks.progress import Progress
from semel.sinks.sink import DELIVERED, Receipt

try:
    import psycopg
    from psycopg import errors
    from psycopg.pq import ExecStatus, TransactionStatus
except ImportError as missing:
    raise MissingExtra("psycopg is not installed: pip install 'semel[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.pq.abc import PGconn

    from semel.events import Chunk
    from semel.sinks.postgres.sink import Postgres
    from semel.sinks.sink import Target

    Connection = psycopg.Connection[tuple[Any, ...]]

# The server must keep what it acknowledges; a stronger setting than `on` is not changed.
SESSION = b"""
select set_config('statement_timeout', %(ms)s, false), set_config('lock_timeout', %(lock)s, false),
  set_config('idle_in_transaction_session_timeout', %(ms)s, false),
  set_config('synchronous_commit', case current_setting('synchronous_commit')
    when 'off' then 'on' when 'local' then 'on'
    else current_setting('synchronous_commit') end, false)"""


class Transaction:
    """A transaction that is open, and how far it came."""

    def __init__(self, connection: Connection, stood: Progress | None) -> None:
        self.connection = connection
        self.stood = stood
        self.phase = Phase.ROW


class PostgresSession:
    """One connection of one attempt at one partition."""

    def __init__(self, sink: Postgres, target: Target) -> None:
        self._sink = sink
        self._target = target
        self._where = (
            f"pipeline {target.pipeline!r}, sink {target.sink!r}, partition {target.partition} "
            f"({sink.where})"
        )
        self._settings = _settings(sink, target)
        self._table = PostgresProgress(sink.schema, target, self._where)
        self._effect = effect_of(sink, self._where)
        self._connection: Connection | None = None
        self._connected()

    def take_over(self) -> Progress | None:
        """Write this attempt into the progress row, and return the row as it was before."""
        minibatch, attempt = self._target.minibatch, self._target.attempt
        with self._transaction() as at:
            stood = at.stood
            if stood is not None:
                stood = replace(stood, ids=self._table.ids(at.connection, stood.done))
            before = at.stood or Progress(minibatch, attempt)  # its ids stay where they are
            goes_on = stood is not None and before.minibatch == minibatch
            self._table.write(at.connection, before.taken_by(minibatch, attempt), goes_on=goes_on)
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """In one transaction: lock the row, require that it is not beyond this attempt, move it,
        then apply the effect.
        """
        effect = self._effect.prepared(chunk)
        with self._transaction() as at:
            goes_on = at.stood is not None and at.stood.minibatch == progress.minibatch
            if at.stood is not None and goes_on and at.stood.done > progress.start:
                raise Fenced(
                    f"{self._where}: the progress row is at {at.stood.done}, beyond "
                    f"{progress.start}: an earlier call of this attempt has arrived after all"
                )
            progress.require_kept(at.stood, self._where)
            self._table.write(at.connection, progress, goes_on=goes_on)
            at.phase = Phase.EFFECT
            effect(at.connection)
            if at.connection.info.transaction_status != TransactionStatus.INTRANS:
                raise ConfigurationError(
                    f"{self._where}: the statement ended semel's transaction, which is not allowed"
                )
        return DELIVERED

    def close(self) -> None:
        """Roll back what is open, by giving the connection up."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    # -- transactions

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """All or nothing, with the row locked; every error is mapped to one of semel's."""
        connection = self._connected()
        at = Transaction(connection, None)
        try:
            at.stood = self._table.begin(connection)
            yield at
            at.phase = Phase.COMMIT
            if commit(connection, self._sink.deadline_s, self._where) != "COMMIT":
                raise NotDelivered(f"{self._where}: the server rolled the transaction back")
        except psycopg.Error as error:
            self._undo(connection)
            raise classify(error, at.phase, self._where) from error
        except BaseException:
            self._undo(connection)
            raise
        self._effect.committed()

    def _undo(self, connection: Connection) -> None:
        """Roll back; a connection that does not want to is given up, which rolls back too."""
        self._effect.undone()
        open_ = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
        try:
            if connection.info.transaction_status in open_:
                connection.execute("rollback")
        except psycopg.Error:
            connection.close()
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            self.close()

    # -- the connection

    def _connected(self) -> Connection:
        """Return the connection; a new one if there is none or it is broken."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self.close()
        try:
            connection = psycopg.connect(
                **cast("dict[str, Any]", self._settings), autocommit=True, client_encoding="UTF8"
            )
        except psycopg.Error as error:
            raise refused(error, self._settings, self._where) from None
        try:
            self._prepare(connection)
        except psycopg.Error as error:
            connection.close()
            raise classify(error, Phase.ROW, self._where) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: Connection) -> None:
        ms = self._sink.deadline_s * 1000
        # The lock timeout is a little shorter, so that the error names the lock.
        limits = {"ms": str(max(2, round(ms))), "lock": str(max(1, round(ms * 0.9)))}
        connection.execute(SESSION, limits)
        self._table.require_tables(connection)
        self._effect.connected(connection)


def _settings(sink: Postgres, target: Target) -> dict[str, str]:
    given = read_url(sink.url, f"sink {sink.name!r}: the url")
    given.pop("client_encoding", None)
    named = {"application_name": holder_name(target.attempt)}
    return DEFAULTS | named | given


_CLOCK = SystemClock()

GRACE_S = 3.0
"""How much longer a COMMIT has than the server's own timeouts: those report what was waited for."""


def commit(connection: psycopg.Connection[tuple[Any, ...]], deadline_s: float, where: str) -> str:
    """Commit and return the server's command tag, which is ROLLBACK for a transaction that failed.

    Raises `OutcomeUnknown` if no answer comes in time. The connection cannot be used afterwards.
    """
    within_s = deadline_s + GRACE_S
    ends = _CLOCK.monotonic() + within_s
    line = connection.pgconn
    line.send_query(b"commit")
    word, failed = "", None
    while True:
        while line.flush() or line.is_busy():
            if not _readable(line, ends - _CLOCK.monotonic()):
                raise OutcomeUnknown(
                    f"{where}: COMMIT was not answered within {within_s:g} s. It may wait for a "
                    "standby that is down (synchronous_standby_names)"
                )
            line.consume_input()
        result = line.get_result()
        if result is None:
            break
        if result.status == ExecStatus.FATAL_ERROR:
            failed = errors.error_from_result(result)
        word = (result.command_status or b"").decode()
    if failed is not None:
        raise failed
    return word


def _readable(line: PGconn, seconds: float) -> bool:
    """Wait until something can be read, or what is left can be written; False when time is up."""
    poll = select.poll()
    poll.register(line.socket, select.POLLIN | (select.POLLOUT if line.flush() else 0))
    return seconds > 0 and bool(poll.poll(seconds * 1000))
