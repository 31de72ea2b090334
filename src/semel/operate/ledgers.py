"""Which ledger, pipeline and sink an operator means; looking for a ledger never creates one."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, LedgerError, MissingExtra
from semel.ledger import (
    PIPELINES_TABLE,
    TABLES,
    Ledger,
    LedgerClient,
    Owners,
    check_ledger,
    make_key,
    open_store,
)
from semel.ledger.store.libpq import read_url
from semel.ledger.store.sqlite_file import is_there, open_to_look
from semel.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.ledger import DamagedRow, Problem

_LOCK_WAIT_S = 5.0
_SHOWN = 10


@contextmanager
def open_ledger(url: str) -> Iterator[Ledger]:
    """Open a ledger that exists, to read and to write; close it at the end of the block.

    Raises `ConfigurationError` when there is no ledger, `LedgerUnavailable` when the server does
    not answer.
    """
    require_ledger(url)
    store = open_store(url)
    try:
        yield Ledger(store)
    finally:
        store.close()


def require_ledger(url: str) -> None:
    """Refuse a URL without a ledger; opening the store would create one there."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/"):
        path = Path(rest[1:])
        if not is_there(path):
            raise ConfigurationError(
                f"there is no ledger at {path}; check the path, or start the pipeline first"
            )
        if path.is_file() and _is_another_database(path):
            raise ConfigurationError(
                f"there is no ledger in the SQLite database {path}; check the path"
            )
    elif scheme == "postgresql" and not _has_table(url):
        raise ConfigurationError(
            f"there is no ledger in {redact(url)}: the first run of a pipeline creates it"
        )


def _is_another_database(path: Path) -> bool:
    """Whether a file is a SQLite database without a ledger; the store reports all other faults."""
    try:
        found = open_to_look(path.absolute(), _LOCK_WAIT_S)
    except sqlite3.Error:
        return False
    if found is not None:
        found.connection.close()
    return found is None


def _has_table(url: str) -> bool:
    """Whether a database has the ledger's table; True if it does not answer."""
    try:
        import psycopg
    except ImportError as missing:
        raise MissingExtra("psycopg is not installed: pip install 'semel[postgres]'") from missing
    read_url(url, "the ledger's URL")
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            [(found,)] = connection.execute("select to_regclass('semel_ledger')").fetchall()
    except psycopg.Error:
        return True
    return found is not None


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """How many rows a ledger has, and the problems with them."""

    rows: int
    problems: list[Problem]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"rows": self.rows, "problems": [each._asdict() for each in self.problems]}


def check_rows(ledger: Ledger) -> LedgerCheck:
    """Check that every row can be read and agrees with the other rows. Nothing is written."""
    return LedgerCheck(*check_ledger(ledger.store))


def count_rows(ledger: Ledger) -> list[tuple[str, int]]:
    """Return the name of each table and how many rows it has."""
    return [(name, ledger.count(name)) for name in TABLES]


def refuse_damaged(damaged: Sequence[DamagedRow]) -> None:
    """Raise `LedgerError` if rows are damaged, after the other rows were shown."""
    if len(damaged) == 1:
        raise damaged[0]
    if damaged:
        raise LedgerError(f"{len(damaged)} rows are damaged; the first: {damaged[0]}")


def choose_pipeline(ledger: Ledger, name: str | None) -> str:
    """Return the pipeline that is meant: the named one, or the only one. The name of a batch job
    stands for its batch where there is only one.

    Raises `ConfigurationError` when there is no such pipeline, or more than one.
    """
    if name is not None and ledger.store.read([make_key(PIPELINES_TABLE, name)]):
        return name
    known = ledger.pipelines()
    if name is None and len(known) == 1:
        return known[0]
    batches = [each for each in known if name and each.rpartition("@")[:2] == (name, "@")]
    if len(batches) == 1:
        return batches[0]
    taken = None if name is None else Owners(LedgerClient(ledger.store, name)).taken()
    if name is not None and taken is not None:
        raise ConfigurationError(taken.refusal(name))
    if not known:
        raise ConfigurationError("no pipeline has run with this ledger yet")
    names = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
    if name is None:
        raise ConfigurationError(f"this ledger has {len(known)} pipelines; name one of: {names}")
    raise ConfigurationError(f"there is no pipeline {name!r} in this ledger; it has: {names}")


def choose_sinks(ledger: Ledger, pipeline: str, name: str | None) -> list[str]:
    """Return the named sink of a pipeline, or all of them. Raises `ConfigurationError`."""
    known = ledger.sinks(pipeline)
    if name is not None and name not in known:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has no sink {name!r}; it has: {', '.join(known)}"
        )
    return known if name is None else [name]
