"""The store: three columns - table, key, payload - behind three methods.

Always true of a store:
- keys are text and ordered by their bytes; payloads are canonical JSON text, compared as text;
- a commit happens as a whole or not at all, together with its requirements;
- two commits that each require what the other writes cannot both pass;
- `LedgerUnavailable` means that it is not known whether the commit happened; every verb of the
  ledger can be repeated after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from semel.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Payload = str
"""Canonical JSON text (`semel.ledger.payloads`)."""


class Key(NamedTuple):
    """The address of a row: its table and its ordered, readable key (`semel.ledger.keys`)."""

    table: str
    key: str

    def __str__(self) -> str:
        return f"{self.table}:{self.key}"


@dataclass(frozen=True, slots=True)
class Absent:
    """The commit passes only if there is no row at `key`; the same commit must put one there."""

    key: Key


@dataclass(frozen=True, slots=True)
class Equals:
    """The commit passes only if the row at `key` has exactly this payload."""

    key: Key
    payload: Payload


@dataclass(frozen=True, slots=True)
class Put:
    """Insert the row or replace its payload."""

    key: Key
    payload: Payload


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the row if it is there."""

    key: Key


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove every row of `table` whose key starts with `prefix`."""

    table: str
    prefix: str


Requirement = Absent | Equals
Update = Put | Delete | Sweep


class Conflict(LedgerError):
    """A requirement does not hold; nothing was written. Never leaves `ledger` and `streams`."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"the row {self.key} is not as this commit requires"


class Store(Protocol):
    """A key-value store of three columns. Used by one process, by any number of its threads."""

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Return the rows that exist among `keys`, as of one moment."""

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Return the rows of `table` whose key starts with `prefix` and is greater than `after`, in
        key order.
        """

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold. Raises `Conflict` or `LedgerUnavailable`."""

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
