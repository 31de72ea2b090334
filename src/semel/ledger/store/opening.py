"""Opening the store that a URL names, and the parts that all stores share.

A store is found by the scheme of its URL: the built-in ones in `BUILT_IN`, all others by an entry
point of the group `semel.stores`, whose value is a function `(url: str, *, create: bool) -> Store`.

Always true here:
- opening connects to nothing: a store connects at its first call, in the process that calls;
- no message shows a password;
- the meaning of a commit does not depend on the store: `arrange` settles it before a store acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger.store.commit import Absent, Delete, Equals, Key, Put, Sweep
from semel.urls import redact, require_one_line, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from semel.ledger.store.commit import Payload, Requirement, Store, Update

    OpenStore = Callable[..., Store]
    """A function `(url: str, *, create: bool) -> Store`."""

PAGE_ROWS = 500

KEY_BYTES_MAX = 2600
"""The longest key that the index of every store can hold."""

GROUP = "semel.stores"
"""The entry point group in which a package registers a store, by the scheme of its URLs."""

BUILT_IN = {
    "postgresql": "semel.ledger.store.postgres:open_postgres",
    "sqlite": "semel.ledger.store.sqlite:open_sqlite",
}
"""The built-in stores. `pyproject.toml` registers the same ones. This table is read first, so that
a checkout without installed metadata works and no package can replace a built-in store.
"""

ACCEPTED = (
    "sqlite:///relative/path.db, sqlite:////absolute/path.db"
    " or postgresql://user:password@host:port/database"
)


def open_store(url: str, *, create: bool = True) -> Store:
    """Return the store at `url`. With `create=False`, a SQLite file must exist when it is used.

    Raises `ConfigurationError` if the URL names no store, `MissingExtra` if the store's client
    library is not installed.
    """
    if not str(url).startswith("sqlite:"):
        require_one_line(url, "the ledger", f"a URL: {ACCEPTED}")
    scheme = scheme_of(url).removesuffix("://")  # no part of a password, whatever the URL is
    if not scheme:
        is_file = str(url).startswith("sqlite:")
        raise not_a_ledger(url, "three slashes come before a path; " if is_file else "")
    return _opener(scheme, url)(url, create=create)


def not_a_ledger(url: str, hint: str = "") -> ConfigurationError:
    """Return the error for a URL that no store can open."""
    return ConfigurationError(f"{redact(url)!r} is not the URL of a ledger; {hint}use {ACCEPTED}")


def _opener(scheme: str, url: str) -> OpenStore:
    """Find the function that opens stores of this scheme."""
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        found: OpenStore = getattr(import_module(module), name)
        return found
    from importlib.metadata import entry_points  # only for other schemes: it reads the disk

    registered = {each.name: each for each in entry_points(group=GROUP)}
    if scheme == "postgres" and scheme not in registered:
        raise not_a_ledger(url, "write postgresql:// instead of postgres://; ")
    if scheme not in registered:
        known = ", ".join(sorted({*BUILT_IN, *registered}))
        raise ConfigurationError(
            f"{redact(url)!r} is not the URL of a ledger; use {ACCEPTED}. The scheme {scheme!r} is "
            f"unknown, known: {known}. A store of another package is found once the package is "
            f"installed and registers the scheme in the entry point group {GROUP!r} "
            "(docs/own-store.md)"
        )
    try:
        opener: OpenStore = registered[scheme].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the store of {scheme}:// cannot be loaded: the entry point "
            f"{registered[scheme].value!r} of the group {GROUP!r} failed with {error!r}; reinstall "
            "or remove the package that registers it"
        ) from error
    return opener


SCHEMA_VERSION = 1
SCHEMA_KEY = Key("semel", "schema")
SCHEMA = f'{{"version":{SCHEMA_VERSION}}}'
"""The row with the version of the ledger's table, written when the table is created."""


def check_schema(payload: Payload | None, ledger: str) -> None:
    """Raise `ConfigurationError` if the row at `SCHEMA_KEY` is missing or of an unknown version,
    `DamagedRow` if it cannot be read.
    """
    if payload is None:
        raise ConfigurationError(
            f"the ledger {ledger} has lost the row of its schema version: its rows were removed by "
            "another program. Restore it; or drop the empty table, which forgets what was delivered"
        )
    from semel.ledger.rows import SchemaRow  # loads Arrow, which a command may not need

    version = SchemaRow.load(payload, SCHEMA_KEY).version
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the ledger {ledger} has schema version {version}, this semel knows {SCHEMA_VERSION}:"
            " upgrade semel"
        )


@dataclass(frozen=True, slots=True)
class Arranged:
    """A commit in the order of every store: check all, sweep, then write each key at most once."""

    absent: frozenset[Key]
    equals: tuple[Equals, ...]
    sweeps: tuple[Sweep, ...]
    writes: dict[Key, Payload | None]
    """The payload to put at a key, or None to delete it. Applied after the sweeps."""

    def sweeps_over(self, key: Key) -> bool:
        """Whether a sweep removes the row at `key`, unless it is put again."""
        return any(_covers(sweep, key) for sweep in self.sweeps)


def arrange(requirements: Sequence[Requirement], updates: Sequence[Update]) -> Arranged:
    """Return the net effect of a commit: updates apply in their order, the last one to a key wins.

    Raises ValueError for a commit that no store can do: `Absent` of a key that it does not put, or
    text that a store cannot hold.
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
    fetch: Callable[[str | None, str, int], list[tuple[Any, ...]]],
    table: str,
    prefix: str,
    after: str,
    limit: int | None,
) -> Iterator[tuple[Key, Payload]]:
    """Return the rows of `fetch(beyond(prefix), after, limit)` page by page, so that no connection
    is held.
    """
    last = beyond(prefix)
    while limit is None or limit > 0:
        wanted = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
        page = fetch(last, after, wanted)
        for key, payload in page:
            yield Key(table, key), payload
        if len(page) < wanted:
            return
        after = page[-1][0]
        limit = None if limit is None else limit - len(page)


def beyond(prefix: str) -> str | None:
    """Return the smallest text, by bytes, above all texts with this prefix; None if there is
    none.
    """
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
