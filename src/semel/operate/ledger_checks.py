"""The checks of a ledger by its URL: does it exist, can it be written, are its commits durable.

Always true: nothing is written or created, even where there is no ledger yet.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger import SCHEMA_KEY, open_store
from semel.ledger.store.libpq import Refused, read_url
from semel.operate.checks import Check, Health, check_disk, check_file_system, compare_clocks
from semel.runtime import SystemClock
from semel.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMED = "pass --ledger URL or set SEMEL_LEDGER"
_FIRST_RUN = "no action needed: the first run of a pipeline creates it"
_SETTINGS = (
    "select current_setting('fsync'), current_setting('synchronous_commit'),"
    " current_setting('full_page_writes'), current_setting('server_version'), pg_is_in_recovery(),"
    " to_regclass('semel_ledger') is not null"
)
_PRIVILEGES = (
    "select bool_and(has_table_privilege('semel_ledger', each)) from unnest(%s::text[]) each"
)
_CLOCK = "select extract(epoch from clock_timestamp())::float8"


def check_ledger_url(url: str | None) -> Iterator[Check]:
    """Check the ledger at a URL."""
    if not url:
        yield Check("ledger", "none given", Health.UNKNOWN, _NAMED)
        return
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "postgresql":
            yield from _postgres(url)
            return
        open_store(url).close()  # this only reads the URL
    except (ConfigurationError, LedgerUnavailable) as error:
        yield Check("ledger", str(error), Health.MISSING, "check the URL")
        return
    if scheme == "sqlite":
        yield from _sqlite(Path(rest[1:]))
    else:
        yield _registered(url)


def _registered(url: str) -> Check:
    """Look at a ledger whose store another package registers: only its interface is known."""
    try:
        with closing(open_store(url)) as store:
            store.read([SCHEMA_KEY])
    except (ConfigurationError, LedgerUnavailable) as error:
        return Check("ledger", str(error), Health.MISSING, "check the URL")
    return Check("ledger", f"{redact(url)}, can be read")


# -- SQLite


def _sqlite(path: Path) -> Iterator[Check]:
    yield _sqlite_file(path)
    if path.exists() and path.stat().st_mode & 0o007:
        do = f"chmod 600 {path}*: it holds payloads of events"
        yield Check("ledger's mode", "other users can read it", Health.WARNING, do)
    yield check_file_system(path.parent)
    yield check_disk("the ledger", path.parent)


def _sqlite_file(path: Path) -> Check:
    """Check where the file is, then what is in it."""
    writable = "make the file and its directory writable"
    if not path.parent.is_dir():
        return Check("ledger", f"no directory {path.parent}", Health.MISSING, "create it")
    for each in (path.parent, path):
        if each.exists() and not os.access(each, os.R_OK | os.W_OK):
            return Check("ledger", f"{each} is read-only", Health.MISSING, writable)
    if not path.exists():
        return Check("ledger", f"there is none at {path} yet", Health.WARNING, _FIRST_RUN)
    return _sqlite_content(path)


def _sqlite_content(path: Path) -> Check:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            [mode] = reader.execute("PRAGMA journal_mode").fetchone()
            table = reader.execute("SELECT 1 FROM sqlite_schema WHERE name = 'semel'").fetchone()
    except sqlite3.OperationalError as error:
        return Check(
            "ledger", f"{path}: {error}", Health.UNKNOWN, "find the process that has it open"
        )
    except sqlite3.Error as error:
        return Check("ledger", f"{path}: {error}", Health.MISSING, "check the path")
    if table is None:
        return Check("ledger", f"{path} has no ledger in it", Health.MISSING, "check the path")
    if mode != "wal":
        do = "no action needed if it is not in use: the next run sets the mode"
        return Check("ledger", f"{path}, journal mode {mode}", Health.WARNING, do)
    return Check("ledger", f"{path}, can be written, journal mode wal")


# -- PostgreSQL


def _postgres(url: str) -> Iterator[Check]:
    try:
        import psycopg
    except ImportError:
        yield Check(
            "ledger",
            "cannot be checked without psycopg",
            Health.UNKNOWN,
            "pip install 'semel[postgres]'",
        )
        return
    clock = SystemClock()
    given = read_url(url, "the ledger's URL")
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            settings = connection.execute(_SETTINGS).fetchall()[0]
            there = bool(settings[5])
            acts = (["SELECT", "INSERT", "UPDATE", "DELETE"],)
            may = there and bool(connection.execute(_PRIVILEGES, acts).fetchall()[0][0])
            before = clock.wall()
            [(theirs,)] = connection.execute(_CLOCK).fetchall()
            after = clock.wall()
            [(backend,)] = connection.execute("select pg_backend_pid()").fetchall()
            pooled = backend != connection.info.backend_pid
            if there:
                with closing(open_store(url)) as store:
                    store.read([SCHEMA_KEY])  # raises if the table is not a ledger
    except psycopg.Error as error:
        found = f"{redact(url)}: {Refused.of(error, given).text}"
        do = "start the server, or check host, user and password"
        yield Check("ledger", found, Health.MISSING, do)
        return
    yield _postgres_table(redact(url), settings, may=may)
    yield from _durability(settings)
    yield compare_clocks(theirs, before, after)
    if pooled:
        yield Check("ledger's connections", "through a pool; semel prepares no statements")


def _postgres_table(where: str, settings: tuple[Any, ...], *, may: bool) -> Check:
    _, _, _, version, standby, there = settings
    found = f"{where}, PostgreSQL {version}"
    if standby:
        do = "use the URL of the primary: a standby cannot be written"
        return Check("ledger", f"{found}, a standby", Health.MISSING, do)
    if not there:
        return Check("ledger", f"{found}, no ledger in it yet", Health.WARNING, _FIRST_RUN)
    if not may:
        do = "grant select, insert, update and delete on semel_ledger"
        return Check("ledger", f"{found}, this user has no write access", Health.MISSING, do)
    return Check("ledger", f"{found}, can be written")


def _durability(settings: tuple[Any, ...]) -> Iterator[Check]:
    fsync, synchronous, pages, *_ = settings
    if fsync == "on":
        yield Check("ledger's fsync", fsync)
    else:
        do = "set fsync = on: a power failure could lose commits that the ledger acknowledged"
        yield Check("ledger's fsync", fsync, Health.MISSING, do)
    if synchronous in ("off", "local"):
        yield Check("ledger's synchronous_commit", f"{synchronous}, but on for semel's commits")
    else:
        yield Check("ledger's synchronous_commit", synchronous)
    if pages != "on":
        do = "set full_page_writes = on, unless the file system writes pages atomically"
        yield Check("ledger's full_page_writes", pages, Health.WARNING, do)
