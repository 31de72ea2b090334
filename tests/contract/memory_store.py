"""A store as another package would write it: rows in the memory of one process, by the URL's name.

It uses public names only; `tests/contract/test_store_contract.py` installs this file as a package.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from semel.errors import ConfigurationError
from semel.ledger.store import (
    Arranged,
    Conflict,
    Key,
    Payload,
    Requirement,
    Store,
    Update,
    arrange,
)


@dataclass
class SharedRows:
    """The rows of one URL, which all its openings share."""

    rows: dict[Key, Payload] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


_memories: dict[str, SharedRows] = {}


def open_memory(url: str, *, create: bool = True) -> Store:
    """Return the store of a `memory://NAME` URL."""
    name = url.removeprefix("memory://")
    if not name:
        raise ConfigurationError("a memory store needs a name: memory://NAME")
    return SharedMemoryStore(_memories.setdefault(name, SharedRows()))


class SharedMemoryStore:
    """A store in memory."""

    def __init__(self, memory: SharedRows) -> None:
        self.memory = memory

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        with self.memory.lock:
            return {key: self.memory.rows[key] for key in keys if key in self.memory.rows}

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        with self.memory.lock:
            rows = dict(self.memory.rows)
        chosen = [key for key in rows if self.selects(key, table, prefix) and key.key > after]
        return iter([(key, rows[key]) for key in self.ordered(chosen)[:limit]])

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        arranged = arrange(requirements, updates)
        for key, payload in arranged.writes.items():
            f"{key.key}{payload}".encode()  # as a database does, before anything is written
        with self.memory.lock:
            self.check(arranged)
            self.apply(arranged)

    def close(self) -> None:
        """Nothing is connected."""

    def selects(self, key: Key, table: str, prefix: str) -> bool:
        return key.table == table and key.key.startswith(prefix)

    def ordered(self, keys: list[Key]) -> list[Key]:
        return sorted(keys, key=lambda each: each.key.encode())

    def check(self, arranged: Arranged) -> None:
        for equals in arranged.equals:
            if self.memory.rows.get(equals.key) != equals.payload:
                raise Conflict(equals.key)
        for key in arranged.absent:
            if key in self.memory.rows:
                raise Conflict(key)

    def apply(self, arranged: Arranged) -> None:
        self.sweep(arranged)
        for key, payload in arranged.writes.items():
            if payload is None:
                self.memory.rows.pop(key, None)
            else:
                self.put(key, payload)

    def sweep(self, arranged: Arranged) -> None:
        for sweep in arranged.sweeps:
            for key in [k for k in self.memory.rows if self.selects(k, sweep.table, sweep.prefix)]:
                del self.memory.rows[key]

    def put(self, key: Key, payload: Payload) -> None:
        self.memory.rows[key] = payload
