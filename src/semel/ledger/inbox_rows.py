"""The rows of inboxes: tables, keys, and the fields of each payload.

Always true:
- the row of a partition in `inbox_ends` never has a payload again that it had before: its numbers
  only grow. So an append that requires it unchanged cannot give one number twice;
- a group is keyed by the offset behind its last event. The group with the event at an offset is the
  first one whose key is greater;
- rows in `counters` are kept as long as the stream is: one for each entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from semel.events.encoding import canonical
from semel.ledger import keys
from semel.ledger.payloads import LATER, Form, Row, Unfit, read_integer, read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.ledger.store.commit import Key

INBOX_TABLE = "inbox"
INBOX_ENDS_TABLE = "inbox_ends"
INBOX_READERS_TABLE = "inbox_readers"
COUNTERS_TABLE = "counters"
PRODUCERS_TABLE = "producers"

HASHES = 2**32
"""Entities are spread over [0, HASHES) by their hash; a partition has a range of it."""

GROUP_VERSION = 1


def _read_parents(value: Any, name: str) -> tuple[int, ...]:
    if type(value) is not list:
        raise Unfit(f"the field {name!r} must be a list of integers")
    return tuple(read_integer(each, name) for each in value)


def _read_positions(value: Any, name: str) -> dict[int, int]:
    """Return the positions of partitions; JSON has their numbers as texts."""
    found = read_object(value, name)
    if not all(each.isascii() and each.isdigit() for each in found):
        raise Unfit(f"the names in the field {name!r} must be numbers of partitions")
    return {int(each): read_integer(at, name) for each, at in found.items()}


def _write_positions(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): at for partition, at in positions.items()}


_PARENTS = Form(_read_parents, list)
_POSITIONS = Form(_read_positions, _write_positions)


@dataclass(frozen=True, slots=True)
class InboxEndRow(Row):
    """One partition of a stream: the range of hashes that it has, and the offsets it keeps."""

    TABLE = INBOX_ENDS_TABLE

    begin: int
    """The first offset whose event is kept."""
    end: int
    """The offset of the next event."""
    final: bool
    """Whether no event will be added: children have its hashes."""
    high: int
    low: int
    """It has the entities with low <= hash < high."""
    parents: Annotated[tuple[int, ...], _PARENTS]
    """The partitions that had these hashes before."""
    partition: int
    remembered: int
    """The first offset of a group whose ids are remembered."""
    time_us: int
    """When its newest event was stored, in microseconds since 1970; it never decreases."""

    def check(self) -> None:
        """Raise `Unfit` if the numbers contradict each other."""
        if not (self.begin <= self.end and self.remembered <= self.end):
            raise Unfit("the fields 'begin' and 'remembered' must be at most 'end'")
        if not self.low < self.high <= HASHES:
            raise Unfit("the fields 'low' and 'high' must be a range of hashes")


@dataclass(frozen=True, slots=True)
class InboxGroupRow(Row):
    """Events of one partition that were stored by one commit."""

    TABLE = INBOX_TABLE

    bytes: int
    """The size of the content before it was compressed; 0 if it is not compressed."""
    content: str
    """Arrow columns, base64."""
    count: int
    crc: int
    time_us: int
    token: str
    """Different for each commit, so that a lost reply is recognised."""
    version: int
    pruned: Annotated[bool, LATER] = False
    """Whether only the ids are left."""

    def check(self) -> None:
        """Raise `Unfit` for a group of a newer version, or an empty one."""
        if self.version != GROUP_VERSION:
            raise Unfit(f"the field 'version' must be {GROUP_VERSION}; upgrade semel")
        if not self.count:
            raise Unfit("the field 'count' must be at least 1")


@dataclass(frozen=True, slots=True)
class CounterRow(Row):
    """The last id that an entity of a stream got."""

    TABLE = COUNTERS_TABLE

    last: int


@dataclass(frozen=True, slots=True)
class ProducerRow(Row):
    """What became of an event that its producer gave an id."""

    TABLE = PRODUCERS_TABLE

    digest: str
    entity: str
    event: int
    offset: int
    partition: int


@dataclass(frozen=True, slots=True)
class InboxReaderRow(Row):
    """A reader of a stream: for each partition the offset before which it needs no event."""

    TABLE = INBOX_READERS_TABLE

    completed: Annotated[dict[int, int], _POSITIONS]
    reader: str
    time_us: int


@dataclass(frozen=True, slots=True)
class InboxRegisteredRow(Row):
    """How many readers were ever registered: it changes whenever one is."""

    TABLE = INBOX_READERS_TABLE

    registered: int


def counter_text(last: int) -> str:
    """Return what `CounterRow(last).dump()` returns, quickly."""
    return f'{{"last":{last}}}'


def producer_text(digest: str, entity: str, event: int, offset: int, partition: int) -> str:
    """Return what `dump` returns for a `ProducerRow`, quickly."""
    return (
        f'{{"digest":"{digest}","entity":{canonical(entity)},"event":{event},'
        f'"offset":{offset},"partition":{partition}}}'
    )


def group_text(content: str, count: int, crc: int, size: int, time_us: int, token: str) -> str:
    """Return what `dump` returns for an `InboxGroupRow`, without compressing it once more."""
    return (
        f'{{"bytes":{size},"content":"{content}","count":{count},"crc":{crc},'
        f'"time_us":{time_us},"token":"{token}","version":{GROUP_VERSION}}}'
    )


def partition_key(stream: str, partition: int) -> Key:
    """Return the key of a partition in `inbox_ends`."""
    return keys.make_key(INBOX_ENDS_TABLE, stream, partition)


def group_key(stream: str, partition: int, end: int) -> Key:
    """Return the key of the group whose last event is before `end`."""
    return keys.make_key(INBOX_TABLE, stream, partition, end)


def group_end(at: Key) -> int:
    """Return the offset behind the last event of a group."""
    return keys.key_number(keys.split_key(at.key)[2])


def same_hashes(rows: list[InboxEndRow]) -> bool:
    """Whether partitions that are not final have every hash once."""
    ranges = sorted((each.low, each.high) for each in rows if not each.final)
    whole = bool(ranges) and ranges[0][0] == 0 and ranges[-1][1] == HASHES
    return whole and all(one[1] == other[0] for one, other in pairwise(ranges))
