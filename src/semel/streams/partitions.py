"""The partitions of a stream: which entity belongs to which, and their parents and children.

Always true:
- the partitions that are not final have every hash exactly once;
- a number is used once: new partitions continue the numbers, and name as parents the partitions
  that had their hashes before.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger import (
    HASHES,
    INBOX_ENDS_TABLE,
    INBOX_READERS_TABLE,
    DamagedRow,
    InboxEndRow,
    InboxRegisteredRow,
    key_text,
    make_key,
    make_prefix,
    partition_key,
    same_hashes,
    split_key,
)
from semel.ledger.store import Absent, Equals, Put

if TYPE_CHECKING:
    from semel.ledger import LedgerClient
    from semel.ledger.store import Requirement, Store, Update

PARTITIONS = 4
"""How many partitions a stream has if nothing else is said."""
PARTITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class InboxPartition:
    """One partition of a stream, as its readers see it.

    Attributes:
        begin: the first offset that is kept.
        end: the offset behind its newest event; it stays so if `final`.
        parents: the partitions that had its entities before: all their events come before its own.
        time_us: when its newest event was stored, in microseconds since 1970; 0 if none was.
    """

    partition: int
    begin: int
    end: int
    final: bool
    parents: tuple[int, ...]
    time_us: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a stream as they were read or written: their rows, and their texts."""

    rows: dict[int, InboxEndRow]
    texts: dict[int, str]
    lows: list[int]
    numbers: list[int]
    """The partitions that are not final, in the order of their hashes, and where each begins."""

    @classmethod
    def read(cls, client: LedgerClient, stream: str) -> Partitions | None:
        """Return the partitions of a stream; None if there is no such stream."""
        rows, texts = {}, {}
        for at, text in client.scan(INBOX_ENDS_TABLE, make_prefix(stream)):
            row = InboxEndRow.load(text, at)
            rows[row.partition], texts[row.partition] = row, text
        if not rows:
            return None
        if not same_hashes(list(rows.values())):
            raise DamagedRow(
                INBOX_ENDS_TABLE,
                None,
                f"the partitions of the stream {stream!r} do not have every hash once",
            )
        found = sorted((each for each in rows.values() if not each.final), key=lambda row: row.low)
        return cls(rows, texts, [row.low for row in found], [row.partition for row in found])

    def partition_of(self, hashed: int) -> int:
        """Return the partition that has the entities with this hash."""
        return self.numbers[bisect_right(self.lows, hashed) - 1]

    def put(self, row: InboxEndRow, text: str) -> None:
        """Note the new row of a partition."""
        self.rows[row.partition], self.texts[row.partition] = row, text

    def layout(self) -> list[InboxPartition]:
        """Return all partitions, parents before their children."""
        return [
            InboxPartition(row.partition, row.begin, row.end, row.final, row.parents, row.time_us)
            for _, row in sorted(self.rows.items())
        ]


def list_streams(store: Store) -> list[str]:
    """Return the names of the streams of a ledger, ordered by name."""
    found = store.scan(INBOX_ENDS_TABLE, "")
    return sorted({key_text(split_key(at.key)[0]) for at, _ in found})


def require_count(partitions: object) -> int:
    """Return a number of partitions. Raises `ConfigurationError`."""
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigurationError(
            f"partitions must be an integer from 1 to {PARTITIONS_MAX}, got {partitions!r}"
        )
    return partitions


def first_partitions(stream: str, count: int) -> tuple[list[Requirement], list[Update]]:
    """Return the commit that creates a stream."""
    requirements, updates = _added(stream, count, [])
    at = make_key(INBOX_READERS_TABLE, stream)
    requirements.append(Absent(at))
    updates.append(Put(at, InboxRegisteredRow(0).dump()))
    return requirements, updates


def other_partitions(
    stream: str, now: Partitions, count: int
) -> tuple[list[Requirement], list[Update]]:
    """Return the commit that gives the hashes of a stream to `count` new partitions."""
    parents = [now.rows[number] for number in now.numbers]
    requirements, updates = _added(stream, count, parents, max(now.rows) + 1)
    for row in parents:
        at = partition_key(stream, row.partition)
        requirements.append(Equals(at, now.texts[row.partition]))
        updates.append(Put(at, replace(row, final=True).dump()))
    return requirements, updates


def _added(
    stream: str, count: int, parents: list[InboxEndRow], first: int = 0
) -> tuple[list[Requirement], list[Update]]:
    requirements: list[Requirement] = []
    updates: list[Update] = []
    for each in range(count):
        low, high = -(-each * HASHES // count), -(-(each + 1) * HASHES // count)
        row = InboxEndRow(
            begin=0,
            end=0,
            final=False,
            high=high,
            low=low,
            parents=tuple(row.partition for row in parents if row.low < high and low < row.high),
            partition=first + each,
            remembered=0,
            time_us=0,
        )
        at = partition_key(stream, row.partition)
        requirements.append(Absent(at))
        updates.append(Put(at, row.dump()))
    return requirements, updates
