"""A column that changes under a half-delivered minibatch is named, and not only a digest of it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.ledger.rows import PartitionRow
from semel.ledger.store.commit import Put
from support.destinations import Crash, Post, crash, fine
from support.pipeline import KINDS, World, events, world_like, world_of

INPUT = "a1 b2 c3 d4 e5 f6"


def added(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("tip", pa.array([1] * len(batch), pa.int64()))


def removed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.remove_column(batch.schema.get_field_index("v"))


def retyped(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("v")
    return batch.set_column(at, "v", batch.column(at).cast(pa.string()))


def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([*batch.schema.names[1:], batch.schema.names[0]])


def nested(batch: pa.RecordBatch) -> pa.RecordBatch:
    kind = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))])
    return batch.append_column("n", pa.array([None] * len(batch), kind))


CHANGES: list[tuple[Callable[[pa.RecordBatch], pa.RecordBatch], str]] = [
    (added, "added: tip int64"),
    (removed, "removed: v int64"),
    (retyped, "other type: v int64 -> string"),
    (moved, "the order of the columns changed"),
    (nested, "added: n struct<x int64, y list<string>>"),
    (lambda batch: retyped(added(batch)), "added: tip int64; other type: v int64 -> string"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[says for _, says in CHANGES])
def test_the_columns_that_changed_in_a_half_delivered_minibatch_are_named(
    kind: str, change: Callable[[pa.RecordBatch], pa.RecordBatch], says: str
) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=1)
    half_delivered(world)
    effects = len(world.out.effects)
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged) as stopped:
        world.task(opening, [change(events(INPUT))])
    assert f"The columns changed ({says})" in str(stopped.value)
    assert "`semel resolve pay/1.0 as-recorded|as-replayed --reason ...`" in str(stopped.value)
    assert len(world.out.effects) == effects


def half_delivered(world: World) -> None:
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, INPUT)
    world.out.script.clear()


@pytest.mark.parametrize(("change", "says"), CHANGES, ids=[says for _, says in CHANGES])
def test_the_columns_that_changed_in_a_complete_minibatch_are_named(
    change: Callable[[pa.RecordBatch], pa.RecordBatch], says: str
) -> None:
    world = world_of(Post())
    world.minibatch(0, INPUT)
    world.start()
    opening = world.open(0)
    reports = world.task(opening, [change(events(INPUT))])
    with pytest.raises(Diverged) as stopped:
        world.driver.end(opening, reports)
    assert f"The columns changed ({says})" in str(stopped.value)


def test_where_no_column_changed_none_is_named() -> None:
    world = world_of(Post())
    half_delivered(world)
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged, match="digest") as stopped:
        world.task(opening, "a1=9 b2 c3 d4 e5 f6")
    assert "olumn" not in str(stopped.value)


def test_a_row_of_an_older_version_says_nothing_of_columns() -> None:
    world = world_of(Post())
    half_delivered(world)
    for at, text in list(world.store.memory.scan("streams", "")):
        row = PartitionRow.load(text, at)
        assert row.columns == {
            "topic": "string",
            "partition": "int32",
            "offset": "int64",
            "c": "string",
            "id": "int64",
            "v": "int64",
        }
        object.__setattr__(row, "columns", None)
        assert "columns" not in row.dump()
        world.store.memory.commit([], [Put(at, row.dump())])
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged, match="digest"):
        world.task(opening, [added(events(INPUT))])


def test_very_many_columns_are_not_recorded() -> None:
    batch = events("a1")
    for number in range(1_000):
        batch = batch.append_column(f"c{number}", pa.array([1]))
    world = world_of(Post())
    opening = world.open(0)
    world.task(opening, [batch])
    [row] = world.streams()
    assert row.columns is None
