"""The input of a simulated world: numbered events of a few entities, cut into minibatches.

Always true:
- the number of an event identifies it in the world, whatever identity semel uses;
- a minibatch that is read again has the same rows; each attempt may get other Arrow batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semel.events import Counter, Given, Position, bucket, bucket_name
from semel.verify.simulator.destinations import NUMBER

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from semel.events import EventID, Identity


EXTRA = "extra"
"""A column that a later release of the query adds."""


class Identities(StrEnum):
    """The identities of the events of a world."""

    POSITION = "position"
    ORDERED_POSITION = "position with entity"
    GIVEN = "given"
    INCREASING = "given, increasing"
    COUNTER = "counter"

    @property
    def identity(self) -> Identity:
        """The identity of the pipeline."""
        return _IDENTITIES[self]

    @property
    def by_source(self) -> bool:
        """Whether partitions are the source's own."""
        return self in (Identities.POSITION, Identities.ORDERED_POSITION)

    @property
    def ordered(self) -> bool:
        """Whether an entity is named, so that its events keep their order."""
        return self is not Identities.POSITION


_IDENTITIES: dict[Identities, Identity] = {
    Identities.POSITION: Position(),
    Identities.ORDERED_POSITION: Position(entity="e"),
    Identities.GIVEN: Given(entity="e", event=("id",), order_by=(NUMBER,)),
    Identities.INCREASING: Given(entity="e", event=(NUMBER,), increasing=True),
    Identities.COUNTER: Counter(entity="e", order_by=(NUMBER,)),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One event of the world."""

    number: int
    entity: str
    partition: str
    place: int


@dataclass(frozen=True, eq=False)
class Feed:
    """All events of a world, by partition, in the order of the partition."""

    identities: Identities
    partitions: tuple[str, ...]
    rows: dict[str, pa.RecordBatch]
    facts: tuple[Fact, ...]
    numbers: dict[tuple[str, EventID], int]

    def batches(
        self, partition: str, start: int, stop: int, random: Random | None
    ) -> list[pa.RecordBatch]:
        """Return the rows [start, stop) of a partition, cut into Arrow batches at random.

        Without `random`, every batch but the last has four rows, so that none ends with a chunk.
        """
        rows = self.rows[partition].slice(start, stop - start)
        if not self.identities.by_source:
            rows = rows.take(pc.sort_indices(rows, [(NUMBER, "ascending")]))
        if random is None:
            edges = sorted({*range(0, len(rows), 4), len(rows)})
        else:
            edges = sorted({0, len(rows), *(random.randint(0, len(rows)) for _ in range(3))})
        return [rows.slice(low, high - low) for low, high in pairwise(edges)]

    def count(self, partition: str) -> int:
        """Return the number of events of a partition."""
        return int(self.rows[partition].num_rows)

    def numbers_in(self, ranges: dict[str, tuple[int, int]]) -> frozenset[int]:
        """Return the numbers of the events in some ranges."""
        return frozenset(
            number
            for name, (low, high) in ranges.items()
            for number in self.rows[name].column(NUMBER).slice(low, high - low).to_pylist()
        )

    def released(self) -> Feed:
        """Return the same events with one more column, as from a later release of the query."""
        rows = {
            name: batch.append_column(EXTRA, pa.array(batch.column(NUMBER)))
            for name, batch in self.rows.items()
        }
        return replace(self, rows=rows)

    def rescaled(self, partitions: int, done: Collection[int]) -> tuple[Feed, dict[str, int]]:
        """Return the same events over another number of partitions, those that are `done` first,
        and where the others begin in each.
        """
        everything = pa.Table.from_batches(list(self.rows.values()))
        places = bucket(everything.column("e").combine_chunks(), partitions).tolist()
        numbers = everything.column(NUMBER).to_pylist()
        rows, starts = {}, {}
        for at, name in enumerate(_names(self.identities, partitions)):
            here = [row for row, place in enumerate(places) if place == at]
            here.sort(key=lambda row: (numbers[row] not in done, numbers[row]))
            table = everything.take(pa.array(here, pa.int64())).combine_chunks()
            rows[name] = next(iter(table.to_batches()), _empty(everything.schema))
            starts[name] = sum(numbers[row] in done for row in here)
        return replace(self, partitions=tuple(rows), rows=rows), starts


Minibatches = tuple[dict[str, tuple[int, int]], ...]
"""The range of each partition in each batch."""


@lru_cache(maxsize=512)
def feed(identities: Identities, partitions: int, events: int, shape: int) -> Feed:
    """Create the events of a world; the same arguments return the same ones."""
    random = Random(shape)
    names = _names(identities, partitions)
    entities = _entities(partitions, random.choice((1, 2, 3)))
    columns: dict[str, list[tuple[int, str, int]]] = {name: [] for name in names}
    facts = []
    ids = random.sample(range(1, 10 * events), events)
    for number in range(1, events + 1):
        at = random.randrange(len(names))
        name, entity = names[at], random.choice(entities[at])
        facts.append(Fact(number, entity, name, len(columns[name])))
        columns[name].append((number, entity, ids[number - 1]))
    rows = {name: _batch(identities, at, columns[name]) for at, name in enumerate(names)}
    numbers = {_identified(identities, fact, facts, ids): fact.number for fact in facts}
    return Feed(identities, names, rows, tuple(facts), numbers)


def _identified(
    identities: Identities, fact: Fact, facts: Sequence[Fact], ids: Sequence[int]
) -> tuple[str, EventID]:
    """Return the scope and id by which semel should identify an event."""
    if identities.by_source:
        return fact.partition, fact.place
    if identities is Identities.INCREASING:
        return fact.entity, fact.number
    if identities is Identities.GIVEN:
        return fact.entity, ids[fact.number - 1]
    before = [each for each in facts if each.entity == fact.entity and each.number <= fact.number]
    return fact.entity, len(before)


def cut(
    feed: Feed, batches: int, random: Random, starts: dict[str, int] | None = None
) -> Minibatches:
    """Cut the rest of a feed into minibatches; some may lack a partition."""
    made: list[dict[str, tuple[int, int]]] = [{} for _ in range(batches)]
    for name in feed.partitions:
        start, count = (starts or {}).get(name, 0), feed.count(name)
        inner = sorted(random.randint(start, count) for _ in range(batches - 1))
        edges = [start, *inner, count]
        for at, (low, high) in enumerate(pairwise(edges)):
            if high > low:
                made[at][name] = (low, high)
    return tuple(made)


def tail_apart(
    minibatches: Minibatches, feed: Feed, starts: dict[str, int] | None = None
) -> Minibatches:
    """Move the last event of every partition to a final minibatch without faults; a partition
    without events after its start has none there.
    """
    last = {
        name: (feed.count(name) - 1, feed.count(name))
        for name in feed.partitions
        if feed.count(name) > (starts or {}).get(name, 0)
    }
    cut_short = []
    for batch in minibatches:
        kept = {
            name: (low, min(high, last[name][0]))
            for name, (low, high) in batch.items()
            if low < last[name][0]
        }
        cut_short.append(kept)
    return (*cut_short, last)


def _names(identities: Identities, partitions: int) -> tuple[str, ...]:
    if identities.by_source:
        return tuple(Position.name("t", str(at)) for at in range(partitions))
    return tuple(bucket_name(at, partitions) for at in range(partitions))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


@lru_cache(maxsize=64)
def _entities(partitions: int, each: int) -> tuple[tuple[str, ...], ...]:
    """Return names of entities for each bucket."""
    found: list[list[str]] = [[] for _ in range(partitions)]
    for number in range(1000):
        name = f"e{number}"
        [at] = bucket(pa.array([name]), partitions).tolist()
        if len(found[at]) < each:
            found[at].append(name)
    return tuple(map(tuple, found))


def _batch(identities: Identities, at: int, rows: Sequence[tuple[int, str, int]]) -> pa.RecordBatch:
    numbers = pa.array([row[0] for row in rows], pa.int64())
    entities = pa.array([row[1] for row in rows], pa.string())
    if identities.by_source:
        return pa.RecordBatch.from_arrays(
            [
                pa.array(["t"] * len(rows), pa.string()),
                pa.array([at] * len(rows), pa.int32()),
                pa.array(range(len(rows)), pa.int64()),
                entities,
                numbers,
            ],
            names=["topic", "partition", "offset", "e", NUMBER],
        )
    ids = pa.array([row[2] for row in rows], pa.int64())
    return pa.RecordBatch.from_arrays([entities, ids, numbers], names=["e", "id", NUMBER])
