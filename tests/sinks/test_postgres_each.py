"""A statement per event: the type of a parameter is its column's, whatever the value is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Rejected
from semel.events import Given
from support.sinks.postgres_pipeline import PostgresDesk, batch, chunk_of

AT = datetime(2026, 1, 1)  # noqa: DTZ001 - as Arrow reads it without a zone
TYPES: list[tuple[pa.DataType, list[Any], str]] = [
    (pa.bool_(), [True, False], "boolean"),
    (pa.int8(), [1, -128], "smallint"),
    (pa.uint8(), [1, 255], "smallint"),
    (pa.int16(), [1, 2**15 - 1], "smallint"),
    (pa.uint16(), [1, 2**16 - 1], "integer"),
    (pa.int32(), [1, 300, -(2**31)], "integer"),
    (pa.uint32(), [1, 2**32 - 1], "bigint"),
    (pa.int64(), [0, 300, 70_000, 2**63 - 1, -(2**63)], "bigint"),
    (pa.uint64(), [1, 300, 2**64 - 1], "numeric"),
    (pa.float16(), [1.0, 0.5], "real"),
    (pa.float32(), [1.0, 0.5], "real"),
    (pa.float64(), [1.0, 0.1, 1e300], "double precision"),
    (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("12345678901234567.25")], "numeric"),
    (pa.binary(), [b"", b"\x00\xff"], "bytea"),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], "date"),
    (pa.timestamp("us", "UTC"), [AT], "timestamp with time zone"),
    (pa.timestamp("us"), [AT], "timestamp without time zone"),
    (pa.time64("us"), [time(1, 2, 3)], "time without time zone"),
    (pa.duration("us"), [timedelta(days=1), timedelta(microseconds=1)], "interval"),
    (pa.list_(pa.int64()), [[1], []], "jsonb"),
    (pa.struct({"a": pa.int64()}), [{"a": 1}], "jsonb"),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)]], "jsonb"),
]


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    yield made
    made.close()


def test_the_type_of_a_parameter_follows_from_the_column_also_where_it_is_null(
    desk: PostgresDesk,
) -> None:
    desk.execute("create table types (id bigint, kind text)")
    for kind, values, wanted in TYPES:
        desk.execute("truncate types")
        array = pa.array([*values, None], kind)
        rows = chunk_of(batch(range(len(array)), x=array))
        say = "insert into types values (%(id)s, pg_typeof(%(x)s)::text)"
        desk.deliver(desk.open(desk.sink(each=say, name=str(kind))), rows)
        found = desk.execute("select kind from types order by id")
        assert found == [(wanted,)] * len(array), kind


def test_what_semel_says_of_an_event_has_one_type_too(desk: PostgresDesk) -> None:
    desk.execute("create table types (id text, osn text)")
    say = "insert into types values (pg_typeof(%(semel_event)s), pg_typeof(%(semel_osn)s))"
    desk.deliver(desk.open(desk.sink(each=say)), chunk_of(batch([1, 2**40])))
    assert desk.execute("select * from types") == [("bigint", "bigint")] * 2


def test_a_product_of_two_small_values_is_no_small_value(desk: PostgresDesk) -> None:
    desk.execute("create table products (amount bigint)")
    say = "insert into products values (%(amount)s * %(times)s)"
    rows = batch([7, 30], times=pa.array([2**33, 200]))
    desk.minibatch(desk.sink(each=say), [rows])
    assert desk.parked() == []
    assert desk.execute("select amount from products order by 1") == [(60_000,), (70 * 2**33,)]


def test_one_large_value_calls_the_function_that_the_small_ones_call(desk: PostgresDesk) -> None:
    desk.execute("create table booked (customer text, amount bigint)")
    desk.execute(
        "create function book(who text, much bigint) returns void language sql"
        " as 'insert into booked values (who, much)'"
    )
    desk.execute(
        "create function book(who text, much smallint) returns void language plpgsql"
        " as 'begin raise exception ''the wrong one''; end'"
    )
    say = "select book(%(customer)s, %(amount)s)"
    desk.minibatch(desk.sink(each=say), [batch([1, 2**40])])
    assert desk.parked() == []
    assert desk.execute("select amount from booked order by 1") == [(10,), (10 * 2**40,)]


def test_a_value_that_is_too_large_for_the_function_parks_its_event(desk: PostgresDesk) -> None:
    desk.execute("create table booked (amount int)")
    desk.execute(
        "create function book(who text, much int) returns void language sql"
        " as 'insert into booked values (much)'"
    )
    say = "select book(%(customer)s, %(amount)s::int)"
    desk.minibatch(desk.sink(each=say), [batch([1, 2, 2**40])])
    assert [(row.event, "out of range" in row.why) for row in desk.parked()] == [(2**40, True)]
    assert desk.execute("select amount from booked order by 1") == [(10,), (20,)]


def test_a_function_that_takes_another_type_stops_with_the_types_that_are_given(
    desk: PostgresDesk,
) -> None:
    desk.execute("create function book(who text, much int) returns int language sql as 'select 1'")
    session = desk.open(desk.sink(each="select book(%(customer)s, %(amount)s)"))
    for amount in (1, 2**40):
        with pytest.raises(ConfigurationError, match=r"amount bigint.*%\(column\)s::type"):
            desk.deliver(session, chunk_of(batch([amount])))


def test_a_null_chooses_no_other_function_than_a_value(desk: PostgresDesk) -> None:
    desk.execute("create table chosen (kind text)")
    for kind in ("bigint", "text"):
        desk.execute(
            f"create function book(much {kind}) returns void language sql"
            f" as 'insert into chosen values (''{kind}'')'"
        )
    rows = batch([1, 2], x=pa.array([5, None], pa.int64()))
    desk.deliver(desk.open(desk.sink(each="select book(%(x)s)")), chunk_of(rows))
    assert desk.execute("select * from chosen") == [("bigint",), ("bigint",)]


def test_a_text_takes_the_type_that_the_statement_gives_it(desk: PostgresDesk) -> None:
    desk.execute("create table things (day date, at uuid, said jsonb, number int)")
    rows = batch(
        [1, 2],
        day=pa.array(["2026-01-01", None]),
        at=pa.array(["00000000-0000-0000-0000-000000000001", None]).dictionary_encode(),
        said=pa.array(['{"a": 1}', None], pa.large_string()),
        number=pa.array(["7", None]),
    )
    say = "insert into things values (%(day)s, %(at)s, %(said)s, %(number)s)"
    desk.deliver(desk.open(desk.sink(each=say)), chunk_of(rows))
    assert desk.execute("select number, said from things where number is not null") == [
        (7, {"a": 1})
    ]


@pytest.mark.parametrize("form", ["s", "t", "b"])
def test_a_parameter_may_be_written_in_each_form_that_psycopg_has(
    desk: PostgresDesk, form: str
) -> None:
    desk.execute("create table things (id bigint, at timestamptz, raw bytea, said text)")
    rows = batch(
        [1],
        at=pa.array([AT], pa.timestamp("us", "UTC")),
        raw=pa.array([b"\x00\xff"]),
        said=pa.array(["x"]),
    )
    holes = ", ".join(f"%({name}){form}" for name in ("id", "at", "raw", "said"))
    desk.deliver(desk.open(desk.sink(each=f"insert into things values ({holes})")), chunk_of(rows))
    found = desk.execute("select id, at = '2026-01-01Z', raw, said from things")
    assert found == [(1, True, b"\x00\xff", "x")]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (pa.array(["a\0b"]), "NUL"),
        (pa.array([b"\xff\xfe"]).view(pa.string()), "'x'.*utf-8"),
        (pa.array([[float("nan")]]), "not JSON compliant"),
        (pa.array([-800_000], pa.int32()).cast(pa.date32()), "before the year 1"),
        (pa.array([2**62], pa.int64()).cast(pa.timestamp("s")), "out of range"),
    ],
)
def test_a_value_that_cannot_be_sent_is_the_fault_of_its_event(
    desk: PostgresDesk, array: pa.Array, said: str
) -> None:
    session = desk.open(desk.sink(each="select %(x)s"))
    with pytest.raises(Rejected, match=said):
        desk.deliver(session, chunk_of(batch([1], x=array)))


def test_a_column_that_the_statement_does_not_name_refuses_nothing(desk: PostgresDesk) -> None:
    desk.execute("create table things (id bigint)")
    odd = pa.array([2**62], pa.int64()).cast(pa.timestamp("s"))
    session = desk.open(desk.sink(each="insert into things values (%(id)s)"))
    desk.deliver(session, chunk_of(batch([1], odd=odd)))
    assert desk.execute("select * from things") == [(1,)]


def test_an_id_of_several_columns_is_a_text(desk: PostgresDesk) -> None:
    desk.execute("create table things (event text)")
    say = "insert into things values (%(semel_event)s)"
    rows = batch([1], part=pa.array(["a,b"]))
    identity = Given(entity="customer", event=("id", "part"))
    desk.deliver(desk.open(desk.sink(each=say)), chunk_of(rows, identity=identity))
    assert desk.execute("select * from things") == [("1,a\\,b",)]
