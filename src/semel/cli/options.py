"""Which ledger and which pipeline a command is about; looking for a ledger creates none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from semel.errors import ConfigurationError, LedgerError, MissingExtra
from semel.ledger import DamagedRow, Ledger, open_store
from semel.ledger.store import Store
from semel.ledger.store.libpq import read_url
from semel.ledger.store.sqlite_file import is_there, open_to_look
from semel.urls import redact

_WAIT_S = 5.0

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="SEMEL_LEDGER",
        metavar="URL",
        help="The ledger: sqlite:///charges.db or postgresql://user@host/database.",
        show_default=False,
    ),
]


@contextmanager
def opened(url: str | None) -> Iterator[tuple[Ledger, Store]]:
    """Open a ledger that exists, to look at and to write to.

    Raises `ConfigurationError` when there is none, `LedgerUnavailable` when nobody answers.
    """
    named = required(url)
    require_ledger(named)
    store = open_store(named)
    try:
        yield Ledger(store), store
    finally:
        store.close()


def required(url: str | None) -> str:
    """Give the URL, or say how to name one."""
    if not url:
        raise ConfigurationError(
            "no ledger is named: give --ledger URL, or set SEMEL_LEDGER "
            "(sqlite:///charges.db, postgresql://user@host/database)"
        )
    return url


def require_ledger(url: str) -> None:
    """Refuse a place that holds no ledger; opening the store would make one there."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/"):
        path = Path(rest[1:])
        if not is_there(path):
            raise ConfigurationError(f"there is no ledger at {path}: see that the path is right")
        if path.is_file() and _holds_another(path):
            raise ConfigurationError(f"{path} is a SQLite database, but no ledger: name another")
    elif scheme == "postgresql" and not _has_table(url):
        raise ConfigurationError(
            f"there is no ledger in {redact(url)}: the first run of a pipeline makes one"
        )


def _holds_another(path: Path) -> bool:
    """Whether a file is a SQLite database without a ledger; the store tells all other faults."""
    try:
        found = open_to_look(path.absolute(), _WAIT_S)
    except sqlite3.Error:
        return False
    if found is not None:
        found.connection.close()
    return found is None


def _has_table(url: str) -> bool:
    """Whether a database has the ledger's table; where it cannot be asked the store says why."""
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


def refuse_damaged(damaged: Sequence[DamagedRow]) -> None:
    """End a listing that has shown everything else. Raises `LedgerError` where rows are damaged."""
    if len(damaged) == 1:
        raise damaged[0]
    if damaged:
        raise LedgerError(f"{len(damaged)} rows are damaged; the first: {damaged[0]}")


def choose_pipeline(ledger: Ledger, name: str | None) -> str:
    """Give the pipeline that was named, or the only one."""
    known = ledger.pipelines()
    if name is None and len(known) == 1:
        return known[0]
    if not known:
        raise ConfigurationError("no pipeline has run with this ledger yet")
    if name in known:
        return str(name)
    batches = [] if name is None else [each for each in known if each.rpartition("@")[0] == name]
    if len(batches) == 1:
        return batches[0]
    these = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    if name is None:
        raise ConfigurationError(f"this ledger has {len(known)} pipelines, name one: {these}")
    raise ConfigurationError(f"there is no pipeline {name!r} in this ledger; it has: {these}")


def choose_sinks(ledger: Ledger, pipeline: str, name: str | None) -> list[str]:
    """Give the sink that was named, or all of them."""
    known = ledger.sinks(pipeline)
    if name is not None and name not in known:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has no sink {name!r}; it has: {', '.join(known)}"
        )
    return known if name is None else [name]
