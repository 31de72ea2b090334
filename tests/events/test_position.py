"""Identity by position: the source's partition and offset, never merged, never backwards."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged
from semel.events import EntityIds, Position, Rows


def batch(offsets: list[Any], **more: list[Any]) -> pa.RecordBatch:
    places = {"topic": ["pay"] * len(offsets), "partition": [3] * len(offsets), "offset": offsets}
    return pa.record_batch(places | more)


def stamp(whole: pa.RecordBatch, edge: int) -> None:
    stamper = Position().stamper("pay/3")
    for piece in (whole.slice(0, edge), whole.slice(edge)):
        stamper.stamp(piece)


def test_a_position_is_source_partition_and_offset() -> None:
    rows = Position().stamper("pay/3").stamp(batch([5, 6, 9]))
    assert [(rows.scope(at), rows.id(at), rows.sort_key(at)) for at in range(3)] == [
        ("pay/3", 5, [5]),
        ("pay/3", 6, [6]),
        ("pay/3", 9, [9]),
    ]
    assert rows.positions.tolist() == [0, 1, 2]
    assert rows.id_sets() == EntityIds.of({"pay/3": [5, 6, 9]})
    assert rows.last_ids() == {"pay/3": 9}
    assert not rows.ordered
    assert rows.entity(0) == "pay/3"


def test_positions_go_on_from_batch_to_batch() -> None:
    stamper = Position().stamper("pay/3")
    runs = [stamper.stamp(batch(offsets)) for offsets in ([1, 2], [5])]
    rows = Rows.concat(runs)
    assert rows.positions.tolist() == [0, 1, 2]
    assert rows.all_ids() == [1, 2, 5]
    assert stamper.state() == {}


def test_an_entity_is_an_ordering_key_and_not_the_scope() -> None:
    identity = Position(entity="who")
    rows = identity.stamper("pay/3").stamp(batch([1, 2, 3], who=[7, 8, 7]))
    assert rows.ordered
    assert [rows.entity(at) for at in range(3)] == ["7", "8", "7"]
    assert rows.of_entities({"7"}).tolist() == [True, False, True]
    assert rows.id_sets() == EntityIds.of({"pay/3": [1, 2, 3]})
    assert [rows.slice(1, 3).entity(0), rows.take(rows.of_entities({"8"})).entity(0)] == ["8", "8"]
    both = Rows.concat([rows, rows])
    assert [both.entity(at) for at in range(6)] == ["7", "8", "7"] * 2


def test_an_exploded_row_is_told_apart_by_its_ordinal() -> None:
    rows = Position(ordinals=("part",)).stamper("pay/3").stamp(batch([1, 1, 2], part=[0, 1, 0]))
    assert rows.all_ids() == [(1, 0), (1, 1), (2, 0)]
    assert rows.sort_key(1) == [1, 1]
    assert rows.id_sets() == EntityIds.of({"pay/3": [(1, 0), (1, 1), (2, 0)]})


@pytest.mark.parametrize("edge", [0, 1, 2])
def test_a_position_that_repeats_is_refused_and_never_merged(edge: int) -> None:
    whole = batch([4, 5, 5])
    with pytest.raises(
        ConfigurationError, match=r'offset 5 .*twice.*event=\["offset", "ordinal"\]'
    ):
        stamp(whole, edge)


@pytest.mark.parametrize("edge", [0, 1, 2])
def test_an_offset_that_goes_backwards_diverges(edge: int) -> None:
    whole = batch([4, 6, 5])
    with pytest.raises(Diverged, match="offset 5 of source partition 'pay/3' came after offset 6"):
        stamp(whole, edge)


def test_rows_of_another_source_partition_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'pay/4' \(offset 2\) came with those of 'pay/3'"
    ):
        Position().stamper("pay/3").stamp(
            pa.record_batch({"topic": ["pay"] * 2, "partition": [3, 4], "offset": [1, 2]})
        )


def test_a_task_with_several_source_partitions_splits_them() -> None:
    whole = pa.record_batch(
        {"topic": ["a", "a", "b", "b"], "partition": [0, 1, 1, 1], "offset": [7, 1, 2, 3]}
    )
    pieces = Position().split(whole)
    assert [(name, piece["offset"].to_pylist()) for name, piece in pieces] == [
        ("a/0", [7]),
        ("a/1", [1]),
        ("b/1", [2, 3]),
    ]
    assert Position().split(whole.slice(0, 0)) == []


def test_two_source_partitions_never_share_a_name() -> None:
    assert Position.name("a/b", "c") != Position.name("a", "b/c")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (batch([1, None]), "position column 'offset' is null"),
        (batch(["1"]), "an offset is an integer"),
        (batch([1.5]), "is double"),
        (batch([1]).drop_columns(["topic"]), "no column 'topic'"),
        (pa.record_batch({"topic": [None], "partition": [3], "offset": [1]}), "'topic' is null"),
    ],
)
def test_a_position_that_is_none_is_refused(rows: pa.RecordBatch, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Position().stamper("pay/3").stamp(rows)


def test_a_null_entity_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="entity column 'who' is null"):
        Position(entity="who").stamper("pay/3").stamp(batch([1], who=pa.array([None], pa.string())))


def test_an_empty_batch_is_no_rows() -> None:
    empty = batch([1]).slice(0, 0)
    assert len(Position().stamper("pay/3").stamp(empty)) == 0


def test_a_description_travels() -> None:
    identity = Position(ordinals=("part",), entity="who")
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert identity.columns() == ["topic", "partition", "offset", "part", "who"]
    assert identity.describe()["kind"] == "position"
    assert identity.survives_lost_checkpoint
