"""The shared store: one PostgreSQL table of three columns, for a cluster.

Always true of it:
- a commit is one call of a function in one implicit transaction under READ COMMITTED. It locks
  the rows that it touches in the order of their keys, so requirements hold until it ends and
  commits cannot deadlock;
- a commit whose connection dies meanwhile is `LedgerUnavailable`, and is never repeated here: it is
  not known whether it happened. A connection that was dead before is noticed and replaced;
- no call waits for an answer longer than `answer_s`; then it is `LedgerUnavailable` as well;
- reading creates nothing. The first commit creates the table, unless one is found in the search
  path, and the function beside the table, in the same schema;
- a connection is used by one thread at a time, and never by a child process;
- no named statement is prepared, so that it works through a connection pool;
- no message holds a password.
"""

from __future__ import annotations

import logging
import os
import select
import weakref
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from semel.errors import ConfigurationError, LedgerUnavailable, MissingExtra
from semel.ledger.store.commit import Conflict, Key
from semel.ledger.store.libpq import DEFAULTS, FORM, Refused, line, read_url
from semel.ledger.store.opening import ACCEPTED, arrange, beyond, paged
from semel.runtime import Clock, SystemClock
from semel.urls import redact

try:
    import psycopg

    from semel.ledger.store.postgres_table import CONFLICT, Place, find, install
except ImportError as missing:
    raise MissingExtra("psycopg is not installed: pip install 'semel[postgres]'") from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from semel.errors import SemelError
    from semel.ledger.store.commit import Payload, Requirement, Update
    from semel.ledger.store.opening import Arranged

_TRIES = 8

ANSWER_S = 23.0
"""How long an answer may take. Two such waits are within the patience of the client."""
GRACE_S = 3.0
"""The server's own timeout is this much shorter: its error says what it waited for."""

_POLL_S = 0.1
_LOG_EVERY_S = 5.0
"""How often the log reports that an answer is still missing."""

T = TypeVar("T")

log = logging.getLogger("semel")

_inherited: list[object] = []
"""Connections of a parent process. Not closed here: that would end the parent's session."""


class ServerSilent(psycopg.OperationalError):
    """The server has not answered in time."""


class Wire(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits `answer_s` for an answer at most. Used by one thread at a time.

    No timeout of the server ends a COMMIT that waits for a synchronous standby, nor a backend that
    is stopped. Nothing is cancelled after the timeout, because a cancelled COMMIT is committed all
    the same: it is not known whether it happened, and the connection is not used again.

    Attributes:
        place: where the ledger is in its database, once that was found.
    """

    place: Place | None = None
    _name: str = ""
    _answer_s: float = 0.0
    _clock: Clock = SystemClock()

    def bound(self, name: str, answer_s: float, clock: Clock) -> None:
        """Set how long an answer may take, and the name of the ledger in the log."""
        self._name, self._answer_s, self._clock = name, answer_s, clock

    def is_pooled(self) -> bool:
        """Whether it goes through a connection pool, which has another process id than the
        backend.
        """
        [(backend,)] = self.execute("select pg_backend_pid()").fetchall()
        return bool(backend != self.info.backend_pid)

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Wait for one answer. Raises `ServerSilent` after `answer_s`; the connection is closed."""
        return super().wait(self._watched(gen), interval=_POLL_S)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on what psycopg waits for, and check the clock while nothing is ready."""
        began = self._clock.monotonic() if self._answer_s else 0.0
        log_at = _LOG_EVERY_S
        try:
            wants = next(gen)
            while True:
                ready = yield wants
                if not ready and self._answer_s:
                    waited = self._clock.monotonic() - began
                    if waited > self._answer_s:
                        self.pgconn.finish()
                        raise ServerSilent(f"no answer within {self._answer_s:g} s")
                    if waited > log_at:
                        log.warning(
                            "the ledger %s has not answered for %.0f s; waiting for up to %g s",
                            self._name,
                            waited,
                            self._answer_s,
                        )
                        log_at += _LOG_EVERY_S
                wants = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value


def open_postgres(url: str, *, create: bool = True) -> PostgresStore:
    """Return the store in the database that a URL names; its first commit creates the table.

    Raises `ConfigurationError` if the URL cannot be read.
    """
    del create  # only a file can be missing: a database exists before semel does
    return PostgresStore(url, form=ACCEPTED)


class PostgresStore:
    """A store in a PostgreSQL database. A thread has a connection of its own during a call."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        answer_s: float = ANSWER_S,
        form: str = FORM,
    ) -> None:
        self._clock = clock or SystemClock()
        self._jitter = Random(os.getpid())
        self._where = redact(url)
        named = {"application_name": "semel"}
        self._settings = DEFAULTS | named | read_url(url, "the ledger's URL", form)
        self._answer_s = answer_s
        self._schema: str | None = None
        self._idle = _Idle()
        weakref.finalize(self, self._idle.close)

    def __repr__(self) -> str:
        return f"PostgresStore({self._where!r})"

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Return the rows that exist among `keys`, as of one moment."""
        wanted = [key.table for key in keys], [key.key for key in keys]
        found = self._query(lambda place: place.read, wanted)
        return {Key(table, key): payload for table, key, payload in found}

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Return the rows with `prefix` whose key is greater than `after`, in key order, by
        pages.
        """

        def fetch(last: str | None, after: str, wanted: int) -> list[tuple[Any, ...]]:
            return self._query(
                lambda place: place.scan_below if last else place.scan,
                (table, after, prefix, *([last] if last else []), wanted),
            )

        return paged(fetch, table, prefix, after, limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold. Raises `Conflict` or `LedgerUnavailable`."""
        arguments = _arguments(arrange(requirements, updates))
        for tries in range(_TRIES):
            try:
                with self._connection() as connection:
                    connection.execute(self._installed(connection).commit, arguments)
                return
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                # The server reports that it undid the commit: this, and only this, may be repeated.
                if tries == _TRIES - 1:
                    raise _classified(error, self._where) from error
            except psycopg.Error as error:
                if error.diag.sqlstate == CONFLICT:
                    table, key = error.diag.message_primary, error.diag.message_detail
                    raise Conflict(Key(str(table), str(key))) from None
                raise _classified(error, self._where) from error
            self._clock.sleep(self._jitter.random() * 0.005 * 2**tries)

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens them again."""
        self._idle.close()

    def _query(
        self, statement: Callable[[Place], bytes], arguments: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Read; a ledger that does not exist yet has no rows."""
        for last_try in (False, True):
            try:
                with self._connection() as connection:
                    place = self._found(connection)
                    if place is None:
                        return []
                    return connection.execute(statement(place), arguments).fetchall()
            except psycopg.Error as error:
                gone = isinstance(error, psycopg.OperationalError) and error.sqlstate != "57014"
                if last_try or not gone or isinstance(error, ServerSilent):
                    raise _classified(error, self._where) from error
        raise AssertionError

    @contextmanager
    def _connection(self) -> Iterator[Wire]:
        connection = self._idle.take() or self._connect()
        try:
            yield connection
        finally:
            self._idle.give(connection)

    def _connect(self) -> Wire:
        try:
            # A pool that reuses its connections after each transaction keeps no prepared statement.
            connection = Wire.connect(
                **cast("dict[str, Any]", self._settings), autocommit=True, prepare_threshold=None
            )
        except psycopg.Error as error:
            raise _refused(error, self._settings) from None
        try:
            connection.bound(self._where, self._answer_s, self._clock)
            if not connection.is_pooled():  # a pool would apply these settings to other clients too
                limit_ms = int(1000 * max(self._answer_s - GRACE_S, self._answer_s * 0.8))
                connection.execute(
                    f"set statement_timeout = {limit_ms};"
                    " set default_transaction_isolation = 'read committed'".encode()
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _found(self, connection: Wire) -> Place | None:
        """Find the ledger's table, once for each connection. It does not move while in use."""
        if connection.place is None:
            known = self._schema  # read first: another thread may create it meanwhile
            connection.place = find(connection, self._where)
            schema = connection.place.schema if connection.place else None
            if known not in (None, schema):
                connection.place = None
                raise ConfigurationError(
                    f"the ledger {self._where} has lost its table: {known}.semel_ledger was "
                    "dropped, or another one precedes it in the search path. Restore it, or stop "
                    "every query that uses it first"
                )
            self._schema = schema or self._schema
        return connection.place

    def _installed(self, connection: Wire) -> Place:
        """Return the place of the ledger's table; create the table if there is none."""
        place = self._found(connection)
        if place is None or not place.complete:
            place = connection.place = install(connection, self._where)
            self._schema = place.schema
        return place


class _Idle:
    """The connections that no thread uses just now."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._connections: list[Wire] = []

    def take(self) -> Wire | None:
        self._leave_parents()
        while True:
            try:
                connection = self._connections.pop()
            except IndexError:
                return None
            if _is_alive(connection):
                return connection
            connection.close()

    def give(self, connection: Wire) -> None:
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


def _is_alive(connection: Wire) -> bool:
    """Whether it is alive, without asking the server: a dead idle connection becomes readable."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _arguments(arranged: Arranged) -> tuple[list[Any], ...]:
    """Return a commit as parallel arrays with one entry per key, in key order."""
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


def _classified(error: psycopg.Error, where: str) -> SemelError:
    """Return the ledger's error for one of PostgreSQL. An unclassified error means unknown."""
    state = error.sqlstate or ""
    if isinstance(error, ServerSilent):
        return LedgerUnavailable(
            f"the ledger {where} gave {line(error)}, and the commit may have happened. Does it wait"
            " for a missing standby (synchronous_standby_names), or is the server stopped?"
        )
    if state in _CANNOT_BE:
        return ConfigurationError(f"the ledger {where} {_CANNOT_BE[state]} ({line(error)})")
    if state in _UNAVAILABLE:
        return LedgerUnavailable(f"the ledger {where} {_UNAVAILABLE[state]} ({line(error)})")
    return LedgerUnavailable(
        f"the ledger {where} did not answer, and the commit may have happened: {line(error)}"
    )


def _refused(error: psycopg.Error, settings: dict[str, str]) -> SemelError:
    """Return the error of a refused connection: wrong configuration, or unavailable."""
    refused = Refused.of(error, settings)
    place = f"{settings.get('host', 'localhost')}:{settings.get('port', '5432')}"
    ledger = f"the ledger's database {settings.get('dbname', '(default)')!r} at {place}"
    if refused.misconfigured:
        return ConfigurationError(f"{ledger} refuses: {refused.text}")
    return LedgerUnavailable(f"{ledger} cannot be reached: {refused.text}")
