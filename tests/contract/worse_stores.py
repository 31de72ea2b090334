"""Stores that break one promise each, on purpose: the contract has to find every one of them."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from threading import Lock

from contract.memory_store import SharedMemoryStore, SharedRows
from semel.errors import LedgerUnavailable
from semel.ledger.store import (
    Absent,
    Arranged,
    Conflict,
    Delete,
    Equals,
    Key,
    Payload,
    Put,
    Requirement,
    Sweep,
    Update,
    arrange,
)

MOMENT_S = 0.001


class ChecksThenActs(SharedMemoryStore):
    """Lost update: another commit can pass between the check and the writes."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        arranged = arrange(requirements, updates)
        self.check(arranged)
        time.sleep(MOMENT_S)
        with self.memory.lock:
            self.apply(arranged)


class WritesBeforeItChecks(SharedMemoryStore):
    """Not atomic: a refused commit leaves its writes."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        arranged = arrange(requirements, updates)
        with self.memory.lock:
            before = SharedMemoryStore(SharedRows(dict(self.memory.rows)))
            self.apply(arranged)
            before.check(arranged)


class ShowsHalfACommit(SharedMemoryStore):
    """Not isolated: a read sees rows of a commit that is still at work."""

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        return {key: self.memory.rows[key] for key in keys if key in self.memory.rows}

    def put(self, key: Key, payload: Payload) -> None:
        time.sleep(MOMENT_S / 10)
        super().put(key, payload)


class IgnoresEquals(SharedMemoryStore):
    """Missing check: a payload that is required may be another."""

    def check(self, arranged: Arranged) -> None:
        super().check(replace(arranged, equals=()))


class IgnoresAbsent(SharedMemoryStore):
    """Missing check: a row that must be absent is replaced."""

    def check(self, arranged: Arranged) -> None:
        super().check(replace(arranged, absent=frozenset()))


class ChecksNothingWithoutWrites(SharedMemoryStore):
    """Missing check: a commit without updates passes always."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if updates:
            super().commit(requirements, updates)


class ChecksTheLastOfAKey(SharedMemoryStore):
    """Missing check: of two requirements of one key the first is forgotten."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        super().commit(list({each.key: each for each in requirements}.values()), updates)


class NamesAnotherRow(SharedMemoryStore):
    """The Conflict does not say which row it is about."""

    def check(self, arranged: Arranged) -> None:
        try:
            super().check(arranged)
        except Conflict as conflict:
            raise Conflict(Key(conflict.key.table, "?")) from None


class TakesEverything(SharedMemoryStore):
    """Refuses no commit that cannot be kept, and no text that a store cannot hold."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        with self.memory.lock:
            absent = frozenset(each.key for each in requirements if isinstance(each, Absent))
            equals = tuple(each for each in requirements if isinstance(each, Equals))
            self.check(Arranged(absent, equals, (), {}))
            for update in updates:
                match update:
                    case Put(key, payload):
                        self.memory.rows[key] = payload
                    case Delete(key):
                        self.memory.rows.pop(key, None)
                    case Sweep():
                        self.sweep(Arranged(frozenset(), (), (update,), {}))


class SweepsAtTheEnd(SharedMemoryStore):
    """Updates do not apply in their order."""

    def apply(self, arranged: Arranged) -> None:
        super().apply(replace(arranged, sweeps=()))
        self.sweep(arranged)


class SweepsBeforeItChecks(SharedMemoryStore):
    """Requirements are checked against rows that the commit has changed already."""

    def check(self, arranged: Arranged) -> None:
        self.sweep(arranged)
        super().check(arranged)


class RefusesToDeleteNothing(SharedMemoryStore):
    """A delete of a row that is not there is an error."""

    def apply(self, arranged: Arranged) -> None:
        for key, payload in arranged.writes.items():
            if payload is None and key not in self.memory.rows:
                raise KeyError(key)
        super().apply(arranged)


class SharesTables(SharedMemoryStore):
    """Tables whose names begin alike share their rows."""

    def selects(self, key: Key, table: str, prefix: str) -> bool:
        return key.table.startswith(table) and key.key.startswith(prefix)


class SortsAsPeopleDo(SharedMemoryStore):
    """Wrong order: by letters, as the collation of a database does, instead of by bytes."""

    def ordered(self, keys: list[Key]) -> list[Key]:
        return sorted(keys, key=lambda each: each.key.casefold())


class ScansTheNeighbours(SharedMemoryStore):
    """The end of a prefix is not looked at."""

    def selects(self, key: Key, table: str, prefix: str) -> bool:
        return super().selects(key, table, prefix.removesuffix("/"))


class MatchesPatterns(SharedMemoryStore):
    """A prefix is a pattern, as LIKE has it."""

    def selects(self, key: Key, table: str, prefix: str) -> bool:
        pattern = prefix.replace("_", "?").replace("%", "*") + "*"
        return key.table == table and fnmatchcase(key.key, pattern)


class EndsPrefixesTooEarly(SharedMemoryStore):
    """The end of a prefix is guessed."""

    def selects(self, key: Key, table: str, prefix: str) -> bool:
        return key.table == table and prefix <= key.key < prefix + "\uffff"


class RepeatsThePageEnd(SharedMemoryStore):
    """`after` includes the row that it names."""

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        found = [each for each in super().scan(table, prefix) if each[0].key >= after]
        return iter(found[:limit])


class ScansOnePage(SharedMemoryStore):
    """A scan ends after its first page."""

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        return super().scan(table, prefix, after=after, limit=min(limit or 500, 500))


class SweepsAThousand(SharedMemoryStore):
    """A sweep ends after a thousand rows."""

    def sweep(self, arranged: Arranged) -> None:
        for each in arranged.sweeps:
            for key in [k for k in self.memory.rows if self.selects(k, *_of(each))][:1000]:
                del self.memory.rows[key]


class ReadsAThousand(SharedMemoryStore):
    """A read leaves out what is above the number of parameters of a statement."""

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        return super().read(keys[:999])


class Normalises(SharedMemoryStore):
    """Keys are changed on their way in."""

    def put(self, key: Key, payload: Payload) -> None:
        super().put(Key(key.table, unicodedata.normalize("NFD", key.key)), payload)


class CutsPayloads(SharedMemoryStore):
    """Payloads end after 64 KiB."""

    def put(self, key: Key, payload: Payload) -> None:
        super().put(key, payload[:65_535])


class LocksAsTheyCome(SharedMemoryStore):
    """Rows are locked in the order of the commit, so that two commits wait for each other."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        touched = [each.key for each in (*requirements, *updates) if not isinstance(each, Sweep)]
        with ExitStack() as held:
            for key in dict.fromkeys(touched):
                held.enter_context(_lock_of(self.memory, key))
                time.sleep(MOMENT_S)
            super().commit(requirements, updates)


class KeepsToItself(SharedMemoryStore):
    """Each opening has rows of its own."""

    def __init__(self, memory: SharedRows) -> None:
        super().__init__(SharedRows())


class StaysClosed(SharedMemoryStore):
    """A store that was closed does not open itself again."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if self.closed:
            raise LedgerUnavailable("closed")
        super().commit(requirements, updates)


def _of(sweep: Sweep) -> tuple[str, str]:
    return sweep.table, sweep.prefix


_locks: dict[int, dict[Key, Lock]] = {}


def _lock_of(memory: SharedRows, key: Key) -> Lock:
    with memory.lock:
        return _locks.setdefault(id(memory), {}).setdefault(key, Lock())


FOUND_BY: dict[type[SharedMemoryStore], tuple[str, ...]] = {
    ChecksThenActs: (
        "crossed-commits",
        "a-ring-of-commits",
        "a-sweep-crosses-a-requirement",
        "one-of-many-inserts",
        "threads-lose-no-update",
        "openings-lose-no-update",
    ),
    WritesBeforeItChecks: ("false-equals-writes-nothing", "false-absent-writes-nothing"),
    ShowsHalfACommit: ("reads-are-consistent",),
    IgnoresEquals: ("false-equals-writes-nothing", "requirements-without-updates"),
    IgnoresAbsent: ("false-absent-writes-nothing", "one-of-many-inserts"),
    ChecksNothingWithoutWrites: ("requirements-without-updates",),
    ChecksTheLastOfAKey: ("contradictory-requirements",),
    NamesAnotherRow: ("false-equals-writes-nothing", "false-absent-writes-nothing"),
    TakesEverything: ("absent-needs-a-put", "unstorable-rows-are-refused"),
    SweepsAtTheEnd: ("updates-apply-in-order",),
    SweepsBeforeItChecks: ("requirements-see-the-rows-before",),
    RefusesToDeleteNothing: ("delete-of-a-missing-row",),
    SharesTables: ("tables-are-separate",),
    SortsAsPeopleDo: ("rows-come-in-byte-order",),
    ScansTheNeighbours: ("scan-keeps-to-its-prefix",),
    MatchesPatterns: ("wildcards-are-characters",),
    EndsPrefixesTooEarly: ("prefixes-end-in-any-character",),
    RepeatsThePageEnd: ("scans-by-page",),
    ScansOnePage: ("scan-while-others-write",),
    SweepsAThousand: ("sweeps-keep-to-their-prefix",),
    ReadsAThousand: ("reads-many-rows",),
    Normalises: ("every-text-survives",),
    CutsPayloads: ("a-megabyte-is-a-payload",),
    LocksAsTheyCome: ("threads-do-not-deadlock",),
    KeepsToItself: ("openings-share-rows", "openings-start-at-once"),
    StaysClosed: ("a-closed-store-opens-again",),
}
"""By which cases each of them has to be found."""
