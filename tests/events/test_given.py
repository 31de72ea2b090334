"""Given ids: one id is one event, and an id with two contents is seen."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged
from semel.events import EntityIds, Given, Rows, sort

PAYMENT = Given("who", ("id",))


def stamp(identity: Given, batch: pa.RecordBatch, *edges: int) -> Rows:
    stamper = identity.stamper("0")
    cuts = [0, *edges, batch.num_rows]
    return Rows.concat([stamper.stamp(batch.slice(a, b - a)) for a, b in pairwise(cuts)])


def payments(*rows: tuple[Any, Any, Any], at: list[Any] | None = None) -> pa.RecordBatch:
    who, ids, amounts = ([row[place] for row in rows] for place in range(3))
    times = {} if at is None else {"at": at}
    return pa.record_batch({"who": who, "id": ids, "amount": amounts} | times)


def test_an_event_is_its_entity_and_id() -> None:
    rows = stamp(PAYMENT, payments(("a", 1, 9), ("b", 1, 9), ("a", 2, 9)))
    assert rows.id_sets() == EntityIds.of({"a": [1, 2], "b": [1]})
    assert [rows.sort_key(at) for at in range(3)] == [[1, "a"], [1, "b"], [2, "a"]]


@pytest.mark.parametrize("edge", range(5))
def test_the_same_id_with_the_same_content_is_one_event(edge: int) -> None:
    batch = payments(("a", 1, 5), ("a", 1, 5), ("a", 1, 5), ("b", 1, 5))
    stamper = PAYMENT.stamper("0")
    rows = Rows.concat([stamper.stamp(batch.slice(0, edge)), stamper.stamp(batch.slice(edge))])
    assert [(rows.scope(at), rows.id(at)) for at in range(len(rows))] == [("a", 1), ("b", 1)]
    assert rows.positions.tolist() == [0, 1]
    assert stamper.repeats == 2


@pytest.mark.rows("O24")
@pytest.mark.parametrize("edge", range(4))
def test_the_same_id_with_other_content_diverges(edge: int) -> None:
    batch = payments(("a", 1, 5), ("a", 1, 5), ("a", 1, 6))
    with pytest.raises(Diverged, match=r"event 1 of entity 'a' in partition '0' .*\(amount differ"):
        stamp(PAYMENT, batch, edge)


@pytest.mark.rows("O24")
@pytest.mark.parametrize("edge", range(4))
@pytest.mark.parametrize("ids", [[1, 2, 1], ["x", "y", "x"]])
def test_an_id_that_comes_again_at_another_time_diverges(edge: int, ids: list[Any]) -> None:
    identity = Given("who", ("id",), order_by=("at",))
    batch = payments(*(("a", each, 5) for each in ids), at=[1, 2, 3])
    with pytest.raises(Diverged, match=r"entity 'a' .* twice, with another at, who, id"):
        stamp(identity, batch, edge)


@pytest.mark.parametrize("seed", range(10))
def test_repeats_are_dropped_and_nothing_else_whatever_the_order(seed: int) -> None:
    dice = random.Random(seed)
    events = [(f"e{n % 7}", f"id-{n}" if seed % 2 else n, n * 1.5) for n in range(300)]
    repeated = events + dice.choices(events, k=100)
    times = [hash_of(event) for event in repeated]
    identity = Given("who", ("id",), order_by=("at",))
    batch = sort(payments(*repeated, at=times), identity)
    rows = stamp(identity, batch, *sorted(dice.choices(range(400), k=5)))
    assert {(rows.scope(at), rows.id(at)) for at in range(len(rows))} == {e[:2] for e in events}
    assert len(rows) == len(events)
    keys = [rows.sort_key(at) for at in range(len(rows))]
    assert keys == sorted(keys)
    assert rows.positions.tolist() == list(range(len(events)))


def hash_of(event: tuple[Any, ...]) -> int:
    return int(event[2] * 7) % 31


@pytest.mark.parametrize("edge", range(3))
def test_rows_out_of_the_declared_order_diverge(edge: int) -> None:
    with pytest.raises(
        Diverged, match=r"event 1 of entity 'b' .* not in the declared order \(id, who\)"
    ):
        stamp(PAYMENT, payments(("a", 2, 5), ("b", 1, 5)), edge)
    with pytest.raises(Diverged, match="not in the declared order"):
        stamp(PAYMENT, payments(("b", 1, 5), ("a", 1, 5)), edge)


@pytest.mark.parametrize("edge", range(5))
@pytest.mark.parametrize("ids", [[1, 9, 3, 2], ["a", "z", "c", "b"]])
def test_ids_declared_as_increasing_increase(edge: int, ids: list[Any]) -> None:
    batch = payments(*zip("abaa", ids, [0] * 4, strict=True), at=[1, 2, 3, 4])
    identity = Given("who", ("id",), order_by=("at",), increasing=True)
    assert len(stamp(identity, batch.slice(0, 3), min(edge, 3))) == 3
    with pytest.raises(Diverged, match=f"event {ids[3]!r} of entity 'a' .* is not greater than"):
        stamp(identity, batch, edge)


def test_increasing_tuples_increase_as_tuples_do() -> None:
    identity = Given("who", ("day", "n"), order_by=("at",), increasing=True)

    def days(*pairs: tuple[int, int]) -> pa.RecordBatch:
        day, n = ([pair[place] for pair in pairs] for place in range(2))
        return pa.record_batch({"who": ["a"] * len(day), "day": day, "n": n, "at": range(len(day))})

    rows = stamp(identity, days((1, 9), (2, 1), (2, 2)), 1)
    assert rows.all_ids() == [(1, 9), (2, 1), (2, 2)]
    with pytest.raises(Diverged, match=r"\(2, 0\)"):
        stamp(identity, days((1, 9), (2, 1), (2, 0)), 1)


def test_a_window_of_an_aggregate_is_an_id() -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    windows = [{"start": start, "end": start}, {"start": start + dt.timedelta(1), "end": start}]
    kind = pa.struct({"start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")})
    batch = pa.record_batch({"who": ["a", "a"], "window": pa.array(windows, kind)})
    rows = stamp(Given("who", ("window.start",)), batch)
    first = int(start.timestamp()) * 1_000_000
    assert rows.all_ids() == [first, first + 86_400_000_000]


def test_ids_are_integers_and_texts_whatever_the_column() -> None:
    def id_of(cell: Any, kind: pa.DataType) -> Any:
        return stamp(PAYMENT, pa.record_batch({"who": ["a"], "id": pa.array([cell], kind)})).id(0)

    assert id_of(7, pa.int8()) == 7
    assert id_of(2**62, pa.uint64()) == 2**62
    assert id_of(decimal.Decimal(7), pa.decimal128(20, 0)) == 7
    assert id_of(dt.date(1970, 1, 11), pa.date32()) == 10
    assert id_of(5, pa.timestamp("ms")) == 5_000
    assert id_of("x", pa.large_string()) == "x"
    assert id_of("x", pa.dictionary(pa.int8(), pa.string())) == "x"
    assert id_of("x", pa.string_view()) == "x"


@pytest.mark.parametrize(
    ("cell", "kind", "message"),
    [
        (1.0, pa.float64(), "is double, and floats"),
        (decimal.Decimal("1.5"), pa.decimal128(3, 1), "an id is an integer, a text"),
        (True, pa.bool_(), "an id is an integer"),
        (b"x", pa.binary(), "an id is an integer"),
        (2**64 - 1, pa.uint64(), "does not fit"),
        (1, pa.timestamp("ns"), "does not fit"),
        (None, pa.int64(), "event id column 'id' is null"),
        (None, pa.null(), "event id column 'id' is null"),
    ],
)
def test_what_is_no_id_is_refused(cell: Any, kind: pa.DataType, message: str) -> None:
    batch = pa.record_batch({"who": ["a"], "id": pa.array([cell], kind)})
    with pytest.raises(ConfigurationError, match=message):
        stamp(PAYMENT, batch)


def test_missing_and_ambiguous_columns_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no field 'x' in 'who'"):
        stamp(Given("who.x", ("id",)), payments(("a", 1, 5)))
    with pytest.raises(ConfigurationError, match="2 columns are named 'id'"):
        stamp(PAYMENT, pa.record_batch([["a"], [1], [2]], names=["who", "id", "id"]))
    with pytest.raises(ConfigurationError, match="order column 'at' is null"):
        stamp(Given("who", ("id",), order_by=("at",)), payments(("a", 1, 5), at=[None]))
    with pytest.raises(ConfigurationError, match="needs an event column"):
        Given("who", ())


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        (pa.float64(), [float("-inf"), -1.5, -0.0, 0.25, 7.0, float("nan")]),
        (pa.float32(), [-1.5, 0.0, 3.0]),
        (pa.decimal128(30, 2), [decimal.Decimal(n).scaleb(-2) for n in (-(10**27), -5, 0, 10**27)]),
        (pa.binary(), [b"", b"\0", b"a", b"\xff"]),
        (pa.string(), ["", "Z", "a", "é", "\uffff", "\U00010000"]),
        (pa.bool_(), [False, True]),
        (pa.date32(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1)]),
        (pa.time32("s"), [dt.time(1), dt.time(2)]),
        (pa.timestamp("ns"), [-5, 5]),
        (pa.duration("us"), [-5, 5]),
        (pa.uint64(), [0, 2**64 - 1]),
    ],
)
def test_sort_keys_are_json_and_compare_as_the_partition_is_ordered(
    kind: pa.DataType, ordered: list[Any]
) -> None:
    identity = Given("who", ("id",), order_by=("at",))
    shuffled = list(enumerate(ordered))[::-1]
    batch = pa.record_batch(
        {
            "who": ["a"] * len(ordered),
            "id": [place for place, _ in shuffled],
            "at": pa.array([cell for _, cell in shuffled], kind),
        }
    )
    rows = stamp(identity, sort(batch, identity), 1)
    assert rows.all_ids() == list(range(len(ordered)))
    keys = [json.loads(json.dumps(rows.sort_key(at))) for at in range(len(rows))]
    assert keys == sorted(keys)
    assert all(before < after for before, after in pairwise(keys))


def test_integer_entities_are_ordered_as_integers() -> None:
    rows = stamp(PAYMENT, payments((9, 1, 5), (10, 1, 5)))
    assert [rows.sort_key(at) for at in range(2)] == [[1, 9], [1, 10]]
    assert [rows.scope(at) for at in range(2)] == ["9", "10"]


def test_a_description_travels() -> None:
    identity = Given("who", ("id",), increasing=True, order_by=("at",))
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert json.loads(json.dumps(identity.describe())) == identity.describe()
    assert identity.columns() == ["at", "who", "id"]
    assert identity != Given("who", ("id",), order_by=("at",))
    assert identity.survives_lost_checkpoint
    assert Given("who", "id") == Given("who", ("id",))  # type: ignore[arg-type]
