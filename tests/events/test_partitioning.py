"""Buckets depend on the entity alone, and a partition has one order."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Position, bucket, cuts, digest, sort
from semel.events.partitioning import SEED


def test_an_entity_keeps_its_bucket_when_its_column_changes_type() -> None:
    numbers = list(range(-50, 50))
    by_integer = bucket(pa.array(numbers, pa.int64()), 7).tolist()
    assert by_integer == bucket(pa.array(numbers, pa.int8()), 7).tolist()
    assert by_integer == bucket(pa.array(map(str, numbers)), 7).tolist()
    assert by_integer == bucket(pa.array(map(str, numbers)).dictionary_encode(), 7).tolist()
    assert (
        bucket(pa.array([True, False]), 7).tolist()
        == bucket(pa.array(["true", "false"]), 7).tolist()
    )


def test_the_hash_is_the_one_in_the_documentation_of_spark() -> None:
    """SELECT xxhash64('Spark', array(123), 2); each value is the seed of the next."""
    word = xxhash.xxh64_intdigest(b"Spark", SEED)
    for number in (123, 2):
        word = xxhash.xxh64_intdigest(number.to_bytes(4, "little"), word)
    assert word == 5602566077635097486


def test_the_bucket_of_a_known_entity_never_changes() -> None:
    """Pinned from this code: a changed rule moves every entity, and needs a new number."""
    texts = pa.array(["", "a", "42", "customer-1", "é", "x" * 100])
    assert bucket(texts, 1000).tolist() == [652, 716, 943, 74, 100, 591]


def test_entities_spread_over_all_buckets() -> None:
    counts = [0] * 16
    for each in bucket(pa.array([f"customer-{at}" for at in range(16_000)]), 16).tolist():
        counts[each] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


def test_what_has_no_bucket_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="null"):
        bucket(pa.array(["a", None]), 4)
    with pytest.raises(ConfigurationError, match="an entity is a string"):
        bucket(pa.array([1.5]), 4)
    with pytest.raises(ValueError, match="buckets must be at least 1, got 0"):
        bucket(pa.array(["a"]), 0)


def test_each_identity_has_its_total_order() -> None:
    schema = pa.schema({"n": pa.int64(), "who": pa.string(), "at": pa.int64()})
    assert Position().order_columns(schema) == ["offset"]
    assert Position(ordinals=("part",)).order_columns(schema) == ["offset", "part"]
    assert Given("who", ("n",)).order_columns(schema) == ["n", "who"]
    assert Given("who", ("n",), order_by=("at",)).order_columns(schema) == ["at", "who", "n"]
    assert Counter("who").order_columns(schema) == ["who", "n", "at"]
    assert Counter("who", order_by=("at",)).order_columns(schema) == ["at", "who", "n"]


def test_a_map_cannot_decide_ties() -> None:
    schema = pa.schema({"who": pa.string(), "tags": pa.map_(pa.string(), pa.string())})
    with pytest.raises(ConfigurationError, match=r"'tags' is a map.*map_entries\(tags\)"):
        Counter("who").order_columns(schema)
    assert Given("who", ("id",)).order_columns(schema) == ["id", "who"]


def test_nulls_come_first_text_is_by_bytes_and_nan_is_last() -> None:
    def sorted_by(kind: pa.DataType, *cells: Any) -> list[Any]:
        batch = pa.record_batch({"who": ["a"] * len(cells), "c": pa.array(cells, kind)})
        return [str(each) for each in sort(batch, Counter("who"))["c"].to_pylist()]

    assert sorted_by(pa.string(), "a", "Z", None, "é", "") == ["None", "", "Z", "a", "é"]
    assert sorted_by(pa.float64(), float("nan"), 1.0, None, -1.0) == ["None", "-1.0", "1.0", "nan"]
    assert sorted_by(pa.list_(pa.int64()), [2], [1, None], None, [1, 0], []) == [
        "None",
        "[]",
        "[1, None]",
        "[1, 0]",
        "[2]",
    ]
    struct = pa.struct({"x": pa.int64()})
    assert sorted_by(struct, {"x": 1}, {"x": None}, None) == ["None", "{'x': None}", "{'x': 1}"]


@pytest.mark.rows("O21")
@pytest.mark.parametrize("seed", range(20))
def test_any_arrival_of_the_same_rows_gives_the_same_order(seed: int) -> None:
    dice = random.Random(seed)
    rows = [
        {
            "who": f"e{dice.randrange(3)}",
            "n": dice.choice([None, 1, 2]),
            "f": dice.choice([None, 0.0, -0.0, float("nan"), 2.5]),
            "l": dice.choice([None, [], ["a", None], ["b"]]),
            "s": dice.choice([None, {"x": None, "y": "é"}, {"x": 1, "y": ""}]),
        }
        for _ in range(60)
    ]
    first = pa.RecordBatch.from_pylist(rows)
    dice.shuffle(rows)
    again = pa.RecordBatch.from_pylist(rows, first.schema)
    assert digest(first) != digest(again)
    for identity in (Counter("who"), Counter("s.y", order_by=("n",))):
        kept = [batch.filter(batch["s"].is_valid()) for batch in (first, again)]
        assert len({digest(sort(batch, identity)) for batch in kept}) == 1


def test_cuts_cover_the_range_once_and_in_order() -> None:
    assert cuts(0, 10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert cuts(5, 9, 4) == [(5, 9)]
    assert cuts(3, 3, 4) == []
    with pytest.raises(ValueError, match="at least 1 event, got 0"):
        cuts(0, 1, 0)
