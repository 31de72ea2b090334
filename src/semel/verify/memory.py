"""A store in a dictionary, with the semantics of the real ones.

Always true:
- a commit happens as a whole or not at all; what it means is settled by `arrange`, as for every
  store;
- keys are ordered by their bytes: Python compares text by code points, which is the order of UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.ledger.store import Conflict, Key
from semel.ledger.stores import arrange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.ledger.store import Payload, Requirement, Update


class MemoryStore:
    """The ledger of one simulated world."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Payload]] = {}

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Give the rows that exist among `keys`."""
        found: dict[Key, Payload] = {}
        for key in keys:
            payload = self._tables.get(key.table, {}).get(key.key)
            if payload is not None:
                found[key] = payload
        return found

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Give the rows under `prefix` above `after`, in key order."""
        rows = self._tables.get(table)
        if not rows:
            return iter(())
        chosen = sorted(key for key in rows if key > after and key.startswith(prefix))
        return iter([(Key(table, key), rows[key]) for key in chosen[:limit]])

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold; else `Conflict`."""
        arranged = arrange(requirements, updates)
        for required in arranged.equals:
            found = self._tables.get(required.key.table, {}).get(required.key.key)
            if found != required.payload:
                raise Conflict(required.key)
        for absent in sorted(arranged.absent):
            if absent.key in self._tables.get(absent.table, ()):
                raise Conflict(absent)
        for sweep in arranged.sweeps:
            rows = self._tables.get(sweep.table, {})
            for key in [key for key in rows if key.startswith(sweep.prefix)]:
                del rows[key]
        for at, payload in arranged.writes.items():
            rows = self._tables.setdefault(at.table, {})
            if payload is None:
                rows.pop(at.key, None)
            else:
                rows[at.key] = payload

    def close(self) -> None:
        """Nothing is open."""

    def rows(self) -> dict[Key, Payload]:
        """Give everything, to be compared or shown."""
        return {
            Key(table, key): payload
            for table, rows in sorted(self._tables.items())
            for key, payload in sorted(rows.items())
        }
