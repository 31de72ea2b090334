"""The embedded store: one SQLite file, for the processes of one machine.

Always true of it:
- a commit is on the disk when it returns (write-ahead log, `synchronous=FULL`), and commits happen
  one by one (`BEGIN IMMEDIATE`), so no reader sees half of one;
- a connection is never used after a fork: the child opens its own;
- reading creates nothing, and needs no right to write;
- a call waits at most `patience_s` for other processes, then it is `LedgerUnavailable`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger.store.commit import Conflict, Key
from semel.ledger.store.opening import arrange, beyond, not_a_ledger, paged
from semel.ledger.store.sqlite_file import (
    READ,
    Still,
    is_there,
    is_writable,
    open_to_look,
    open_to_write,
)
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.errors import SemelError
    from semel.ledger.store.commit import Payload, Requirement, Update
    from semel.ledger.store.opening import Arranged
    from semel.runtime import Clock

_SCAN = "SELECT key, payload FROM semel WHERE tbl = ? AND key >= ?"
_SCAN_AFTER = "SELECT key, payload FROM semel WHERE tbl = ? AND key > ?"
"""Each with one lower bound: with two of them SQLite begins to search at the first, not at the
higher one, and reads every row between them.
"""
_PUT = "INSERT OR REPLACE INTO semel VALUES (?, ?, ?)"
_ADD = "INSERT INTO semel VALUES (?, ?, ?)"
_DELETE = "DELETE FROM semel WHERE tbl = ? AND key = ?"
_SWEEP = "DELETE FROM semel WHERE tbl = ? AND key >= ?"
_BELOW = " AND key < ?"

_POLL_S = 0.002
_LOOKS = 10
"""How often a read is repeated because the file changed, for a user who may only read."""

T = TypeVar("T")

_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process. SQLite forbids to use or close them after a fork."""


def open_sqlite(url: str, *, create: bool = True) -> SqliteStore:
    """Return the store in the file at `url`. Raises `ConfigurationError` if it names no file."""
    scheme, _, rest = url.partition("://")
    if (
        scheme != "sqlite"
        or "\0" in rest
        or not rest.startswith("/")
        or rest.endswith(("/", "/:memory:"))
    ):
        raise not_a_ledger(url)
    return SqliteStore(rest[1:], create=create)


class SqliteStore:
    """A store in one file. Its threads share a connection for commits and one for reads."""

    def __init__(
        self,
        path: str | Path,
        *,
        patience_s: float = 10.0,
        clock: Clock | None = None,
        create: bool = True,
    ) -> None:
        self._create = create
        self._clock = clock or SystemClock()
        self._path = Path(path).absolute()
        self._patience_s = patience_s
        self._open()

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Return the rows that exist among `keys`, as of one moment."""

        def look(connection: sqlite3.Connection) -> dict[Key, Payload]:
            found: dict[Key, Payload] = {}
            connection.execute("BEGIN")
            for key in keys:
                row = connection.execute(READ, key).fetchone()
                if row is not None:
                    found[key] = row[0]
            connection.execute("COMMIT")
            return found

        return self._look(look) or {}

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Return the rows with `prefix` whose key is greater than `after`, in key order, by
        pages.
        """

        def fetch(last: str | None, after: str, wanted: int) -> list[tuple[Any, ...]]:
            begin = _SCAN_AFTER if after and _bytes(after) >= _bytes(prefix) else _SCAN
            statement = begin + (_BELOW if last else "") + " ORDER BY key LIMIT ?"
            lowest = after if begin is _SCAN_AFTER else prefix
            bound = (table, lowest, *([last] if last else []), wanted)
            return self._look(lambda reader: reader.execute(statement, bound).fetchall()) or []

        return paged(fetch, table, prefix, after, limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold. Raises `Conflict` or `LedgerUnavailable`."""
        arranged = arrange(requirements, updates)
        with self._connection(self._writer) as connection:
            assert connection is not None
            _check(connection, arranged)
            _apply(connection, arranged)

    def close(self) -> None:
        """Close the connections of this process; a later call opens them again."""
        if self._pid == os.getpid():
            self._writer.close()
            self._reader.close()
            self._file.identity = None

    def _open(self) -> None:
        self._file = _File(self._path, create=self._create)
        self._writer = _Connection(self._file)
        self._reader = _Connection(self._file, self._patience_s)
        self._jitter = Random(os.getpid())
        self._pid = os.getpid()

    def _look(self, act: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of a read; None if there is no ledger yet."""
        for _ in range(_LOOKS):
            with self._connection(self._reader) as connection:
                if connection is None:
                    return None
                found = act(connection)
                if self._reader.stood_still():
                    return found
        raise LedgerUnavailable(
            f"the ledger {self._path} is being written to, and this user may only read it; try "
            "again"
        )

    @contextmanager
    def _connection(self, lent: _Connection) -> Iterator[sqlite3.Connection | None]:
        """Lend a connection to this thread, the writer's inside a transaction; None if there is no
        ledger to read.
        """
        writes = lent is self._writer
        if self._pid != os.getpid():
            self._writer.abandon()
            self._reader.abandon()
            self._open()
            lent = self._writer if writes else self._reader
        waiting = _Waiting(self._patience_s, self._clock, self._jitter) if writes else None
        if not lent.lock.acquire(timeout=self._patience_s):
            raise LedgerUnavailable(f"the ledger {self._path} was busy for {self._patience_s:g} s")
        try:
            if waiting is None:
                yield lent.to_look()
            else:
                connection = lent.to_write(waiting)
                waiting.execute(connection, "BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
                self._file.require_the_same()  # otherwise it went into a deleted file
        except sqlite3.Error as error:
            # The connection is not used again: closing it rolls back what is not committed.
            lent.close()
            raise _classified(error, self._path, self._patience_s) from error
        except BaseException:
            lent.roll_back()
            raise
        finally:
            lent.lock.release()


class _Connection:
    """A connection that is opened when first needed, and the lock of the thread that has it."""

    def __init__(self, file: _File, timeout_s: float = 0) -> None:
        self.lock = threading.RLock()
        self._file = file
        self._timeout_s = timeout_s
        self._connection: sqlite3.Connection | None = None
        self._still: Still | None = None

    def to_write(self, waiting: _Waiting) -> sqlite3.Connection:
        self._file.require_the_same()
        if self._connection is None:
            self._file.require_there()
            self._connection = open_to_write(self._file.path, waiting.execute)
            self._file.remember()
        return self._connection

    def to_look(self) -> sqlite3.Connection | None:
        self._file.require_the_same()
        if not self.stood_still():
            self.close()
        if self._connection is None:
            self._file.require_there()
            looked = open_to_look(self._file.path, self._timeout_s)
            if looked is None:
                return None
            self._connection, self._still = looked
            self._file.remember()
        return self._connection

    def stood_still(self) -> bool:
        """Whether a read is valid: the file did not change, or SQLite itself ensures it."""
        return self._still is None or Still.of(self._file.path) == self._still

    def roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._still = None

    def abandon(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)


class _File:
    """The file, by its path and its inode when it was opened: it must stay the same in use."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.create = create
        self.identity: tuple[int, int] | None = None

    def remember(self) -> None:
        self.identity = self._now()

    def require_the_same(self) -> None:
        if self.identity is not None and self._now() != self.identity:
            raise ConfigurationError(
                f"the ledger {self.path} was removed or replaced while in use, and nothing more is "
                "recorded: stop every query that uses it and put the file back, with its -wal. "
                "Without it, what was delivered is not known"
            )

    def require_there(self) -> None:
        if not self.create and not is_there(self.path):
            raise ConfigurationError(
                f"the ledger {self.path} was removed while a pipeline used it, and nothing more is "
                "recorded: stop the query and put the file back, with its -wal. Without it, what "
                "was delivered is not known"
            )

    def _now(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return (0, 0)
        return status.st_dev, status.st_ino


class _Waiting:
    """The deadline of one call."""

    def __init__(self, patience_s: float, clock: Clock, jitter: Random) -> None:
        self._patience_s = patience_s
        self._deadline: float | None = None  # counts from when the file is first found locked
        self._clock = clock
        self._jitter = jitter

    def execute(self, connection: sqlite3.Connection, statement: str) -> None:
        """Try until the lock is free; SQLite's own waiting sleeps up to 100 ms at a time."""
        while True:
            try:
                connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if _primary(error) not in _BUSY:
                    raise
                now = self._clock.monotonic()
                if self._deadline is None:
                    self._deadline = now + self._patience_s
                if now > self._deadline:
                    raise
            self._clock.sleep(_POLL_S * self._jitter.random())


def _check(connection: sqlite3.Connection, arranged: Arranged) -> None:
    for equals in arranged.equals:
        row = connection.execute(READ, equals.key).fetchone()
        if row is None or row[0] != equals.payload:
            raise Conflict(equals.key)
    if arranged.sweeps:  # a sweep could remove a row that must be absent
        _check_absent(connection, arranged)


def _check_absent(connection: sqlite3.Connection, arranged: Arranged) -> None:
    for key in arranged.absent:
        if connection.execute(READ, key).fetchone() is not None:
            raise Conflict(key)


def _apply(connection: sqlite3.Connection, arranged: Arranged) -> None:
    for sweep in arranged.sweeps:
        last = beyond(sweep.prefix)
        if last is None:
            connection.execute(_SWEEP, (sweep.table, sweep.prefix))
        else:
            connection.execute(_SWEEP + _BELOW, (sweep.table, sweep.prefix, last))
    added, puts, deleted = [], [], []
    for key, payload in arranged.writes.items():
        if payload is None:
            deleted.append(key)
        elif key in arranged.absent:
            added.append((*key, payload))
        else:
            puts.append((*key, payload))
    if added:
        connection.execute("SAVEPOINT added")
        try:
            connection.executemany(_ADD, added)  # the primary key decides whether they were absent
        except sqlite3.IntegrityError:
            connection.execute("ROLLBACK TO added")
            _check_absent(connection, arranged)
            raise
    connection.executemany(_PUT, puts)
    connection.executemany(_DELETE, deleted)


_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_CANNOT_BE = {
    sqlite3.SQLITE_READONLY: "is read-only; make the file and its directory writable",
    sqlite3.SQLITE_PERM: "may not be opened; make the file and its directory writable",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a copy",
    sqlite3.SQLITE_ERROR: "is not a ledger of this semel; name another file",
    sqlite3.SQLITE_MISUSE: "was used wrongly",
}


def _bytes(text: str) -> bytes:
    """Return the bytes by which SQLite sorts a text."""
    return text.encode("utf-8", "surrogatepass")


def _primary(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _classified(error: sqlite3.Error, path: Path, patience_s: float) -> SemelError:
    """Return the ledger's error for one of SQLite. An unclassified error means unknown."""
    code = _primary(error)
    if code in _BUSY:
        return LedgerUnavailable(
            f"the ledger {path} was locked by another process for {patience_s:g} s"
        )
    if code == sqlite3.SQLITE_FULL:
        return LedgerUnavailable(f"the disk of the ledger {path} is full; make room")
    if code == sqlite3.SQLITE_CANTOPEN and not is_writable(path):
        return ConfigurationError(
            f"the ledger {path} cannot be opened; make the file and its directory writable"
        )
    if code in _CANNOT_BE:
        return ConfigurationError(f"the ledger {path} {_CANNOT_BE[code]} ({error})")
    return LedgerUnavailable(f"the ledger {path} failed, and the commit may have happened: {error}")
