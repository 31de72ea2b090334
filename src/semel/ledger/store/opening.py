"""Which store a URL means, and what all stores have in common.

Always true here:
- nothing is opened yet: a store connects when it is first asked, in the process that asks;
- a password is never shown;
- what a commit means does not depend on the store: `arrange` settles it before any store acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger.damage import Fields, decoded
from semel.ledger.payloads import dump
from semel.ledger.store.commit import Absent, Delete, Equals, Key, Put, Sweep
from semel.urls import redact, require_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from semel.ledger.store.commit import Payload, Requirement, Store, Update

SCHEMA_VERSION = 1
SCHEMA_KEY = Key("semel", "schema")
SCHEMA = dump({"version": SCHEMA_VERSION})

PAGE_ROWS = 500

KEY_BYTES_MAX = 2600
"""What the index of every store can hold."""

_ACCEPTED = (
    "sqlite:///relative/path.db, sqlite:////absolute/path.db"
    " or postgresql://user:password@host:port/database"
)


def open_store(url: str, *, create: bool = True) -> Store:
    """Give the store at `url`. With `create=False` a SQLite file has to be there when it is used.

    Raises `ConfigurationError` for what is no such URL, `MissingExtra` if its driver is missing.
    """
    if not str(url).startswith("sqlite:"):
        require_one_line(url, "the ledger", f"a URL: {_ACCEPTED}")
    scheme, separator, rest = url.partition("://")
    if (
        scheme == "sqlite"
        and "\0" not in rest
        and rest.startswith("/")
        and not rest.endswith(("/", "/:memory:"))
    ):
        from semel.ledger.store.sqlite import SqliteStore

        return SqliteStore(rest[1:], create=create)
    if scheme == "postgresql" and separator:
        from semel.ledger.store.postgres import PostgresStore

        return PostgresStore(url, form=_ACCEPTED)
    hint = "write postgresql:// instead of postgres://; " if scheme == "postgres" else ""
    raise ConfigurationError(
        f"{redact(url)!r} is not the URL of a ledger; {hint}it can be {_ACCEPTED}"
    )


@dataclass(frozen=True, slots=True)
class Arranged:
    """A commit as every store does it: check all, then sweep, then write each key at most once."""

    absent: frozenset[Key]
    equals: tuple[Equals, ...]
    sweeps: tuple[Sweep, ...]
    writes: dict[Key, Payload | None]
    """The payload to put at a key, or None to delete it. They win over the sweeps."""

    def sweeps_over(self, key: Key) -> bool:
        """Tell whether a sweep removes what is at `key`, unless it is put again."""
        return any(_covers(sweep, key) for sweep in self.sweeps)


def arrange(requirements: Sequence[Requirement], updates: Sequence[Update]) -> Arranged:
    """Settle what a commit comes to: updates apply in their order, the last one to a key wins.

    Raises ValueError for a commit that no store could keep: `Absent` of a key that it does not put,
    or text that a store cannot hold.
    """
    writes: dict[Key, Payload | None] = {}
    sweeps: list[Sweep] = []
    for update in updates:
        match update:
            case Put(key, payload):
                _check_text(key.key, payload)
                writes[key] = payload
            case Delete(key):
                writes[key] = None
            case Sweep() as sweep:
                writes = {key: new for key, new in writes.items() if not _covers(sweep, key)}
                sweeps.append(sweep)
    absent = frozenset(each.key for each in requirements if isinstance(each, Absent))
    for key in absent:
        if writes.get(key) is None:
            raise ValueError(f"the commit requires {key} to be absent, but does not put it")
    equals = tuple(each for each in requirements if isinstance(each, Equals))
    return Arranged(absent, equals, tuple(sweeps), writes)


def _covers(sweep: Sweep, key: Key) -> bool:
    return key.table == sweep.table and key.key.startswith(sweep.prefix)


def paged(
    fetch: Callable[[str, int], list[tuple[Any, ...]]], table: str, after: str, limit: int | None
) -> Iterator[tuple[Key, Payload]]:
    """Give what `fetch(after, limit)` gives, a page at a time, so that no connection is held."""
    while limit is None or limit > 0:
        wanted = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
        page = fetch(after, wanted)
        for key, payload in page:
            yield Key(table, key), payload
        if len(page) < wanted:
            return
        after = page[-1][0]
        limit = None if limit is None else limit - len(page)


def check_schema(payload: Payload | None, ledger: str) -> None:
    """Raise `ConfigurationError` if the row at `SCHEMA_KEY` is of a version that we do not know,
    `DamagedRow` if it cannot be read.
    """
    if payload is None:
        raise ConfigurationError(
            f"the ledger {ledger} has lost the row of its schema version, and so its rows were "
            "removed by something else than semel. Restore it; or drop the empty table, which "
            "forgets what was delivered"
        )
    version = decoded(
        SCHEMA_KEY.table, SCHEMA_KEY, payload, lambda row: Fields(row).integer("version")
    )
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the ledger {ledger} has schema version {version}, this semel knows {SCHEMA_VERSION}:"
            " upgrade semel"
        )


def beyond(prefix: str) -> str | None:
    """Give the smallest text, by bytes, above all texts with this prefix; None if there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return None


def _check_text(key: str, payload: str) -> None:
    if "\x00" in key or "\x00" in payload:
        raise ValueError(f"the row {key!r} holds a NUL character; `keys` and `payloads` escape it")
    if len(key) * 4 > KEY_BYTES_MAX and len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"the key {key[:80]!r}... is longer than {KEY_BYTES_MAX} bytes")
