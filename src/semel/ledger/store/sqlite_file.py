"""The file of the embedded store: creating it, opening it to write, and opening it to read.

Always true:
- the file holds payloads, so only its owner may read it when it is created. SQLite gives its log
  and its index beside it (`-wal`, `-shm`) the same mode. An existing file keeps its mode;
- reading creates nothing. A user who may read the file but not write it leaves no log and no index
  beside it, which the owner could not write then.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from semel.errors import ConfigurationError
from semel.ledger.store.opening import SCHEMA, SCHEMA_KEY, check_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Execute = Callable[[sqlite3.Connection, str], None]

READ = "SELECT payload FROM semel WHERE tbl = ? AND key = ?"

_PRIVATE = 0o600
_CREATE = (
    "CREATE TABLE IF NOT EXISTS semel"
    " (tbl TEXT NOT NULL, key TEXT NOT NULL, payload TEXT NOT NULL, PRIMARY KEY (tbl, key))"
    " WITHOUT ROWID"
)
_CREATE_SCHEMA = "INSERT OR IGNORE INTO semel VALUES (?, ?, ?)"
_TEXT = partial(str, encoding="utf-8", errors="surrogateescape")
"""Reads a text; damaged UTF-8 becomes lone surrogates, which the reader of the row refuses."""
_IS_THERE = "SELECT 1 FROM sqlite_schema WHERE name = 'semel'"


class Still(NamedTuple):
    """The state of a file that no process has open to write: while it stays so, nothing changes."""

    inode: int
    bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Still | None:
        """Return the state of the file; None if it has a log or a journal beside it, or does not
        exist.
        """
        beside = (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal"))
        try:
            if any(each.exists() and each.stat().st_size for each in beside):
                return None
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Looked(NamedTuple):
    """A connection to read with. If `still` is set, what it reads is valid only while the file
    stays so.
    """

    connection: sqlite3.Connection
    still: Still | None


def open_to_write(path: Path, execute: Execute) -> sqlite3.Connection:
    """Open the ledger, and create it if there is none; `execute` waits for other processes."""
    require_directory(path)
    if is_there(path) and not is_writable(path):
        raise ConfigurationError(
            f"the ledger {path} is read-only for this user; make the file and its directory "
            "writable"
        )
    _create_private(path)
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    connection.text_factory = _TEXT
    try:
        execute(connection, "PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if not connection.execute(_IS_THERE).fetchone():
            execute(connection, "BEGIN IMMEDIATE")
            connection.execute(_CREATE)
            connection.execute(_CREATE_SCHEMA, (*SCHEMA_KEY, SCHEMA))
            connection.execute("COMMIT")
        _check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_look(path: Path, timeout_s: float) -> Looked | None:
    """Open the ledger to read it; None if there is none yet."""
    require_directory(path)
    if not is_there(path):
        return None
    mode, still = _mode(path)
    connection = sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _TEXT
    try:
        if not connection.execute(_IS_THERE).fetchone():
            connection.close()
            return None
        _check(connection, path)
    except BaseException:
        connection.close()
        raise
    return Looked(connection, still)


def require_directory(path: Path) -> None:
    """Refuse a path whose directory does not exist."""
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"the directory of the ledger {path} does not exist; create it first"
        )


def is_there(path: Path) -> bool:
    """Whether there is a file. Raises `ConfigurationError` if this user may not look for it."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigurationError(
            f"this user may not look for the ledger {path} ({error.strerror}); grant access to its "
            "directory"
        ) from None
    return True


def is_writable(path: Path) -> bool:
    """Whether SQLite can write the file, and its log beside it."""
    here = (path.parent, path) if path.exists() else (path.parent,)
    return not path.is_dir() and all(_may(each, os.R_OK | os.W_OK) for each in here)


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _create_private(path: Path) -> None:
    """Create an empty file that only the owner can read, if there is none.

    If the system permits, it is created without opening it: closing a file drops the locks that
    another connection of this process has on it.
    """
    try:
        os.mknod(path, _PRIVATE)
    except FileExistsError:
        return
    except (OSError, AttributeError):
        with suppress(OSError):  # the error of SQLite is clearer
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _PRIVATE))


def _mode(path: Path) -> tuple[str, Still | None]:
    """Return how SQLite opens the file to read it without leaving files that the owner could not
    write.
    """
    if path.is_dir() or is_writable(path):
        return "mode=rw", None
    if not _may(path, os.R_OK):
        raise ConfigurationError(
            f"this user may not read the ledger {path}; its owner can grant that to a group "
            "(chgrp, chmod g+r) for the file and the files beside it (-wal, -shm)"
        )
    still = Still.of(path)
    if still is not None:
        return "mode=ro&immutable=1", still
    if not path.with_name(f"{path.name}-shm").exists():
        raise ConfigurationError(
            f"the ledger {path} has a log (-wal) and no index (-shm), and this user may not write "
            "it; let its owner run `semel status` once"
        )
    return "mode=ro", None


def _check(connection: sqlite3.Connection, path: Path) -> None:
    row = connection.execute(READ, SCHEMA_KEY).fetchone()
    check_schema(row[0] if row else None, str(path))
