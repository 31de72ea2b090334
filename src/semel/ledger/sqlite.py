"""The embedded store: one SQLite file, for the processes of one machine.

Always true of it:
- a commit is on the disk when it returns (write-ahead log, `synchronous=FULL`), and commits happen
  one by one (`BEGIN IMMEDIATE`), so requirements and updates are seen by nobody half-way;
- a connection is never carried across a fork: the child opens its own;
- whoever waits for another process waits `patience_s` at most, then it is `LedgerUnavailable`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger.clock import SystemClock
from semel.ledger.store import Conflict, Key
from semel.ledger.stores import SCHEMA, SCHEMA_KEY, arrange, beyond, check_schema, paged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.errors import SemelError
    from semel.ledger.clock import Clock
    from semel.ledger.store import Payload, Requirement, Update
    from semel.ledger.stores import Arranged

_CREATE = (
    "CREATE TABLE IF NOT EXISTS semel"
    " (tbl TEXT NOT NULL, key TEXT NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (tbl, key))"
    " WITHOUT ROWID"
)
_CREATE_SCHEMA = "INSERT OR IGNORE INTO semel VALUES (?, ?, ?)"
_READ = "SELECT payload FROM semel WHERE tbl = ? AND key = ?"
_SCAN = "SELECT key, payload FROM semel WHERE tbl = ? AND key > ? AND key >= ?"
_PUT = "INSERT OR REPLACE INTO semel VALUES (?, ?, ?)"
_DELETE = "DELETE FROM semel WHERE tbl = ? AND key = ?"
_SWEEP = "DELETE FROM semel WHERE tbl = ? AND key >= ?"
_BELOW = " AND key < ?"

_POLL_S = 0.002

_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process. SQLite forbids to use or close them after a fork."""


class SqliteStore:
    """A store in one file. Its threads share a connection for commits and one for reads."""

    def __init__(
        self, path: str | Path, *, patience_s: float = 10.0, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._path = Path(path).absolute()
        self._patience_s = patience_s
        self._open()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Give the rows that exist among `keys`, in one consistent look."""
        found: dict[Key, Payload] = {}
        with self._connection(writes=False) as connection:
            connection.execute("BEGIN")
            for key in keys:
                row = connection.execute(_READ, key).fetchone()
                if row is not None:
                    found[key] = row[0]
            connection.execute("COMMIT")
        return found

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Give the rows with `prefix` whose key is greater than `after`, in key order, by pages."""
        last = beyond(prefix)
        statement = _SCAN + (_BELOW if last else "") + " ORDER BY key LIMIT ?"
        bounds = (prefix, last) if last else (prefix,)

        def fetch(after: str, wanted: int) -> list[tuple[Any, ...]]:
            with self._connection(writes=False) as connection:
                return connection.execute(statement, (table, after, *bounds, wanted)).fetchall()

        return paged(fetch, table, after, limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold. Raises `Conflict` or `LedgerUnavailable`."""
        arranged = arrange(requirements, updates)
        with self._connection(writes=True) as connection:
            _check(connection, arranged)
            _apply(connection, arranged)

    def close(self) -> None:
        """Close the connections of this process; a later call opens them again."""
        if self._pid == os.getpid():
            self._writer.close()
            self._reader.close()

    def _open(self) -> None:
        self._writer = _Connection(self._path)
        self._reader = _Connection(self._path, self._patience_s)
        self._jitter = Random(os.getpid())
        self._pid = os.getpid()

    @contextmanager
    def _connection(self, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Lend a connection to this thread; if it `writes`, inside a transaction."""
        if self._pid != os.getpid():
            self._writer.abandon()
            self._reader.abandon()
            self._open()
        lent = self._writer if writes else self._reader
        waiting = _Waiting(self._patience_s, self._clock, self._jitter)
        if not lent.lock.acquire(timeout=self._patience_s):
            raise LedgerUnavailable(f"the ledger {self._path} was busy for {self._patience_s:g} s")
        try:
            connection = lent.opened(waiting)
            if writes:
                waiting.execute(connection, "BEGIN IMMEDIATE")
            yield connection
            if writes:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Nobody uses this connection again: closing it rolls back what is not committed.
            lent.close()
            raise _told(error, self._path, self._patience_s) from error
        except BaseException:
            lent.roll_back()
            raise
        finally:
            lent.lock.release()


class _Connection:
    """A connection that is opened when first needed, and the lock of the thread that has it."""

    def __init__(self, path: Path, timeout_s: float = 0) -> None:
        self.lock = threading.RLock()
        self._path = path
        self._timeout_s = timeout_s
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)

    def opened(self, waiting: _Waiting) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._path, self._timeout_s, waiting)
            self._file = self._file_now()
        elif self._file_now() != self._file:
            raise ConfigurationError(
                f"the ledger {self._path} was removed or replaced while in use; put the file back,"
                " or stop everything that uses it first"
            )
        return self._connection

    def roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def abandon(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)

    def _file_now(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return (0, 0)
        return status.st_dev, status.st_ino


class _Waiting:
    """What is left of the patience of one call."""

    def __init__(self, patience_s: float, clock: Clock, jitter: Random) -> None:
        self._deadline = clock.monotonic() + patience_s
        self._clock = clock
        self._jitter = jitter

    def execute(self, connection: sqlite3.Connection, statement: str) -> None:
        """Try until nobody is in the way; SQLite's own waiting sleeps up to 100 ms at a time."""
        while True:
            try:
                connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if _primary(error) not in _BUSY or self._clock.monotonic() > self._deadline:
                    raise
            self._clock.sleep(_POLL_S * self._jitter.random())


def _connect(path: Path, timeout_s: float, waiting: _Waiting) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"the directory of the ledger {path} does not exist; create it first"
        )
    connection = sqlite3.connect(
        path, timeout=timeout_s, isolation_level=None, check_same_thread=False
    )
    try:
        waiting.execute(connection, "PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'semel'").fetchone():
            waiting.execute(connection, "BEGIN IMMEDIATE")
            connection.execute(_CREATE)
            connection.execute(_CREATE_SCHEMA, (*SCHEMA_KEY, SCHEMA))
            connection.execute("COMMIT")
        row = connection.execute(_READ, SCHEMA_KEY).fetchone()
        check_schema(row[0] if row else None, str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, arranged: Arranged) -> None:
    for equals in arranged.equals:
        row = connection.execute(_READ, equals.key).fetchone()
        if row is None or row[0] != equals.payload:
            raise Conflict(equals.key)
    for key in arranged.absent:
        if connection.execute(_READ, key).fetchone() is not None:
            raise Conflict(key)


def _apply(connection: sqlite3.Connection, arranged: Arranged) -> None:
    for sweep in arranged.sweeps:
        last = beyond(sweep.prefix)
        if last is None:
            connection.execute(_SWEEP, (sweep.table, sweep.prefix))
        else:
            connection.execute(_SWEEP + _BELOW, (sweep.table, sweep.prefix, last))
    for key, payload in arranged.writes.items():
        if payload is None:
            connection.execute(_DELETE, key)
        else:
            connection.execute(_PUT, (*key, payload))


_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_CANNOT_BE = {
    sqlite3.SQLITE_READONLY: "is read-only; make the file and its directory writable",
    sqlite3.SQLITE_PERM: "may not be opened; make the file and its directory writable",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a copy",
    sqlite3.SQLITE_ERROR: "is not a ledger of this semel; name another file",
    sqlite3.SQLITE_MISUSE: "was used wrongly",
}


def _primary(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _told(error: sqlite3.Error, path: Path, patience_s: float) -> SemelError:
    """Say in the ledger's words what SQLite said. What nobody classified is unknown."""
    code = _primary(error)
    if code in _BUSY:
        return LedgerUnavailable(
            f"the ledger {path} was locked by another process for {patience_s:g} s"
        )
    if code == sqlite3.SQLITE_FULL:
        return LedgerUnavailable(f"the disk of the ledger {path} is full; make room")
    if code == sqlite3.SQLITE_CANTOPEN and not _writable(path):
        return ConfigurationError(
            f"the ledger {path} cannot be opened; make the file and its directory writable"
        )
    if code in _CANNOT_BE:
        return ConfigurationError(f"the ledger {path} {_CANNOT_BE[code]} ({error})")
    return LedgerUnavailable(f"the ledger {path} failed, and the commit may have happened: {error}")


def _writable(path: Path) -> bool:
    """Tell whether SQLite could write here: the file, and its log beside it."""
    effective = os.access in os.supports_effective_ids
    here = (path.parent, path) if path.exists() else (path.parent,)
    return not path.is_dir() and all(
        os.access(each, os.R_OK | os.W_OK, effective_ids=effective) for each in here
    )
