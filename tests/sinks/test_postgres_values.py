"""Every value arrives in PostgreSQL as it was, or is refused with a reason; none is run as SQL."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Rejected
from semel.sinks.postgres.copy import PIECE, copy_text, type_of
from semel.verify.servers.postgres import PostgresServer
from support.sinks.postgres_pipeline import PostgresDesk, batch, chunk_of

SLY = [
    "'); drop table things; --",
    '"); drop table things; --',
    "%(id)s %s %% %",
    "\\. ",
    "\\.",
    "\n\\.\n",
    "\\N",
    "\\",
    'a,"b"\r\nc',
    "$1; select pg_sleep(9)",
    "",
    " ",
    "NULL",
    "null",
    "{semel}",
    "ﬁ ß 漢字 🙂 \u202e \ufeff",
    "\x01\x1b\x7f",
]

INSTANT = datetime(2026, 3, 29, 1, 30, 0, 123456, UTC)
COLUMNS: dict[str, tuple[pa.Array, str]] = {
    "yes": (pa.array([True, False, None]), "boolean"),
    "tiny": (pa.array([-128, 127, None], pa.int8()), "smallint"),
    "large": (pa.array([-(2**63), 2**63 - 1, None], pa.int64()), "bigint"),
    "huge": (pa.array([0, 2**64 - 1, None], pa.uint64()), "numeric"),
    "single": (pa.array([0.1, float("inf"), None], pa.float32()), "real"),
    "double": (pa.array([1e-300, float("nan"), None]), "double precision"),
    "exact": (pa.array([Decimal("-0.0000001"), Decimal("12345678901234567890.1234567"), None],
                       pa.decimal128(30, 7)), "numeric(30, 7)"),
    "text": (pa.array(["", "a'\"\\,\n", None]), "text"),
    "long": (pa.array(["x" * 100_000, "ü", None], pa.large_string()), "text"),
    "named": (pa.array(["a", "b", None]).dictionary_encode(), "text"),
    "raw": (pa.array([b"", b"\x00\xff\\x", None]), "bytea"),
    "fixed": (pa.array([b"ab", b"\x00\x01", None], pa.binary(2)), "bytea"),
    "day": (pa.array([date(1, 1, 1), date(9999, 12, 31), None]), "date"),
    "instant": (pa.array([INSTANT, datetime(1, 1, 2, tzinfo=UTC), None],
                         pa.timestamp("us", "Europe/Berlin")), "timestamptz"),
    "wall": (pa.array([1_774_751_400_000_000, 253_370_764_800_000_000, None],
                      pa.timestamp("us")), "timestamp"),
    "clock": (pa.array([time(0, 0), time(23, 59, 59, 999999), None]), "time"),
    "took": (pa.array([timedelta(days=-1, microseconds=1), timedelta(weeks=900), None],
                      pa.duration("us")), "interval"),
    "nothing": (pa.nulls(3), "text"),
}  # fmt: skip
PARTS: dict[str, tuple[pa.Array, list[Any]]] = {
    "list": (pa.array([[1, None], [], None]), [[1, None], [], None]),
    "struct": (
        pa.array([{"a": 'q"', "at": date(2026, 1, 1)}, {"a": None, "at": None}, None]),
        [{"a": 'q"', "at": "2026-01-01"}, {"a": None, "at": None}, None],
    ),
    "map": (
        pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        [{"k": 1}, {}, None],
    ),
}


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    yield made
    made.close()


def frame() -> pa.RecordBatch:
    return batch([1, 2, 3], **{name: array for name, (array, _) in COLUMNS.items()})


def shown(desk: PostgresDesk, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(desk.url) as connection:
        connection.execute("set timezone = 'UTC'")
        return connection.execute(statement.encode()).fetchall()


def expected() -> list[tuple[Any, ...]]:
    wanted = [array.to_pylist() for array, _ in COLUMNS.values()]
    return list(zip(*wanted, strict=True))


# -- types


@pytest.mark.rows("S17")
@pytest.mark.parametrize("way", ["append", "apply", "each"])
def test_every_type_arrives_as_it_was(desk: PostgresDesk, way: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (_, kind) in COLUMNS.items())
    desk.execute(f"create table things (id bigint, customer text, amount bigint, {columns})")
    names = ", ".join(["id", *COLUMNS])
    holes = ", ".join(f"%({name})s" for name in ["id", *COLUMNS])
    ways = {
        "append": {"table": "things"},
        "apply": {"apply": f"insert into things ({names}) select {names} from semel_batch"},
        "each": {"each": f"insert into things ({names}) values ({holes})"},
    }
    desk.deliver(desk.open(desk.sink(**ways[way])), chunk_of(frame()))
    found = shown(desk, f"select {', '.join(COLUMNS)} from things order by id")
    for row, wanted in zip(found, expected(), strict=True):
        for name, value, other in zip(COLUMNS, row, wanted, strict=True):
            if isinstance(other, float) and math.isnan(other):
                assert math.isnan(value), name
            elif name == "single" and value is not None:
                assert np.float32(value) == np.float32(other)
            else:
                assert value == other, name


@pytest.mark.parametrize("way", ["append", "apply", "each"])
def test_values_with_parts_arrive_as_json(desk: PostgresDesk, way: str) -> None:
    desk.execute("create table things (list jsonb, struct jsonb, map jsonb)")
    names = ", ".join(PARTS)
    ways: dict[str, dict[str, Any]] = {
        "append": {"table": "things", "columns": list(PARTS)},
        "apply": {"apply": f"insert into things ({names}) select {names} from semel_batch"},
        "each": {"each": "insert into things values (%(list)s, %(struct)s, %(map)s)"},
    }
    rows = batch([1, 2, 3], **{name: array for name, (array, _) in PARTS.items()})
    desk.deliver(desk.open(desk.sink(**ways[way])), chunk_of(rows))
    found = shown(desk, "select * from things order by ctid")
    assert found == list(zip(*(wanted for _, wanted in PARTS.values()), strict=True))


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (pa.array([date(2026, 1, 1)]), ["2026-01-01"]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array([datetime(2026, 1, 1, tzinfo=UTC)]), ["2026-01-01T00:00:00+00:00"]),
        (pa.array([b"ab"]), ["YWI="]),
        (pa.array([True, False]), ["true", "false"]),
        (pa.array([7]), ["7"]),
        (pa.array(['"q"']), ['"q"']),
        (pa.array([{"a": 1, "at": date(2026, 1, 1)}]), ['{"a": 1, "at": "2026-01-01"}']),
    ],
)
def test_the_keys_of_a_map_are_the_names_of_an_object_without_quotes_of_their_own(
    desk: PostgresDesk, keys: pa.Array, names: list[str]
) -> None:
    desk.execute("create table things (odd jsonb)")
    of = pa.map_(keys.type, pa.int64())
    odd = pa.array([[(key, 1) for key in keys.to_pylist()]], of)
    session = desk.open(desk.sink(table="things", columns=["odd"]))
    desk.deliver(session, chunk_of(batch([1], odd=odd)))
    assert shown(desk, "select odd from things") == [(dict.fromkeys(names, 1),)]


@pytest.mark.parametrize(
    ("took", "text"),
    [
        (timedelta(days=200_000, microseconds=1), "200000 00:00:00.000001"),
        (-timedelta(days=200_000, microseconds=1), "-200000 00:00:00.000001"),
        (timedelta(microseconds=-5), "-0 00:00:00.000005"),
        (timedelta(seconds=90, milliseconds=500), "0 00:01:30.5"),
        (timedelta(), "0 00:00:00"),
    ],
)
def test_an_interval_inside_of_a_value_keeps_its_microseconds(
    desk: PostgresDesk, took: timedelta, text: str
) -> None:
    desk.execute("create table things (odd jsonb, several interval[])")
    odd = pa.array([{"took": took}], pa.struct([("took", pa.duration("us"))]))
    several = pa.array([[took]], pa.list_(pa.duration("us")))
    session = desk.open(desk.sink(table="things", columns=["odd", "several"]))
    desk.deliver(session, chunk_of(batch([1], odd=odd, several=several)))
    written = f"INTERVAL '{text}' DAY TO SECOND"
    assert shown(desk, "select odd, several from things") == [({"took": written}, [took])]


def test_a_list_goes_into_an_array_where_the_table_has_one(desk: PostgresDesk) -> None:
    desk.execute(
        "create table things (id bigint, tags text[], grid int[], days date[], raws bytea[])"
    )
    rows = batch(
        [1, 2],
        tags=pa.array([['a"\\,{}', None, "NULL", ""], None]),
        grid=pa.array([[[1, 2], [3, None]], []]),
        days=pa.array([[date(2026, 1, 1)], None]),
        raws=pa.array([[b"hello", b"\x00\xff\\x", b"", None], []]),
    )
    sink = desk.sink(table="things", columns=["id", "tags", "grid", "days", "raws"])
    desk.deliver(desk.open(sink), chunk_of(rows))
    assert shown(desk, "select * from things order by id") == [
        (
            1,
            ['a"\\,{}', None, "NULL", ""],
            [[1, 2], [3, None]],
            [date(2026, 1, 1)],
            [b"hello", b"\x00\xff\\x", b"", None],
        ),
        (2, None, [], None, []),
    ]


@pytest.mark.parametrize(
    ("array", "into", "said"),
    [
        (pa.array([b"x"]), "text", "make that bytea"),
        (pa.array([{"a": 1}]), "int", "make that jsonb"),
        (pa.array([[1]]), "int", "or an array"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "text", "has no type for"),
        (
            pa.array([[(1, 2, 3)]], pa.list_(pa.month_day_nano_interval())),
            "jsonb",
            "has no type for",
        ),
    ],
)
def test_a_column_that_does_not_go_where_it_is_to_go_stops_the_pipeline(
    desk: PostgresDesk, array: pa.Array, into: str, said: str
) -> None:
    desk.execute(f"create table things (odd {into})")
    session = desk.open(desk.sink(table="things", columns=["odd"]))
    with pytest.raises(ConfigurationError, match=said):
        desk.deliver(session, chunk_of(batch([1], odd=array)))


@pytest.mark.parametrize(
    ("array", "into", "said"),
    [
        (pa.array(["a\0b"]), "text", "0x00"),
        (pa.array(["x" * 11]), "varchar(10)", "too long"),
        (pa.array([2**40]), "int", "out of range"),
        (pa.array(["maybe"]), "boolean", "invalid input syntax"),
        (pa.array([None], pa.string()), "text not null", "null value"),
        (pa.array([[float("nan")]]), "jsonb", "not JSON compliant"),
        (pa.array([["a\0"]]), "jsonb", "NUL|Unicode escape"),
        (pa.array([-(2**40)], pa.int64()).cast(pa.timestamp("s")), "timestamp", "before the year"),
        (pa.array([-800_000], pa.int32()).cast(pa.date32()), "date", "before the year 1"),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "date", "out of range"),
        (pa.array([1], pa.duration("ns")), "interval", "would lose data"),
        (pa.array(["x" * 3_000_000]), "text unique", "index row"),
        (pa.array([b"\xff\xfe"]).view(pa.string()), "text", "encoding|UTF"),
    ],
)
def test_a_value_that_cannot_be_held_is_rejected_with_the_reason(
    desk: PostgresDesk, array: pa.Array, into: str, said: str
) -> None:
    desk.execute(f"create table things (odd {into})")
    if "unique" in into:  # random text does not compress below an index's limit
        luck = random.Random(1)
        array = pa.array(["".join(chr(luck.randrange(33, 0xD000)) for _ in range(20_000))])
    session = desk.open(desk.sink(table="things", columns=["odd"]))
    with pytest.raises(Rejected, match=said):
        desk.deliver(session, chunk_of(batch([1], odd=array)))
    assert desk.execute("select count(*) from things") == [(0,)]


def test_a_slice_of_a_column_is_written_without_its_neighbours() -> None:
    for array, _ in (*COLUMNS.values(), *PARTS.values()):
        kind = type_of(array.type) or ""
        whole = [written(array.slice(at, 1), kind) for at in range(3)]
        assert b"".join(whole) == written(array, kind)


@pytest.mark.parametrize("rows", [PIECE, PIECE + 1, 2 * PIECE + 3])
def test_a_chunk_of_several_pieces_arrives_whole_and_in_order(
    desk: PostgresDesk, rows: int
) -> None:
    desk.execute("create table things (at bigserial, id bigint)")
    desk.deliver(desk.open(desk.sink(table="things", columns=["id"])), chunk_of(batch(range(rows))))
    found = desk.execute("select array_agg(id order by at) from things")
    assert found == [(list(range(rows)),)]


def test_a_value_of_the_last_piece_that_cannot_be_written_is_refused_with_all_of_them(
    desk: PostgresDesk,
) -> None:
    desk.execute("create table things (id bigint, day date)")
    days = pa.array([0] * PIECE + [-800_000], pa.int32()).cast(pa.date32())
    session = desk.open(desk.sink(table="things", columns=["id", "day"]))
    with pytest.raises(Rejected, match="before the year 1"):
        desk.deliver(session, chunk_of(batch(range(PIECE + 1), day=days)))
    assert desk.execute("select count(*) from things") == [(0,)]


def written(array: pa.Array, kind: str) -> bytes:
    return b"".join(piece.to_pybytes() for piece in copy_text([array], ["a"], [kind]))


# -- words that look like commands


@pytest.mark.parametrize("way", ["append", "apply", "each"])
def test_no_value_is_ever_taken_for_sql_or_for_the_end_of_the_rows(
    desk: PostgresDesk, way: str
) -> None:
    desk.execute("create table things (said text, id bigint)")
    ways: dict[str, dict[str, Any]] = {
        "append": {"table": "things", "columns": ["said", "id"]},
        "apply": {"apply": "insert into things select said, id from semel_batch"},
        "each": {"each": "insert into things values (%(said)s, %(id)s)"},
    }
    rows = batch(range(len(SLY)), said=pa.array(SLY))
    desk.deliver(desk.open(desk.sink(**ways[way])), chunk_of(rows))
    assert [each for (each,) in shown(desk, "select said from things order by id")] == SLY


@pytest.mark.parametrize("word", [word for word in SLY if word])
def test_names_are_quoted_too(desk: PostgresDesk, word: str) -> None:
    quoted = '"' + word.replace('"', '""') + '"'
    desk.execute(f"create table {quoted} ({quoted} text)")
    rows = batch([1], **{word: pa.array(["x"])})
    session = desk.open(desk.sink(table=quoted, columns=[word]))
    desk.deliver(session, chunk_of(rows))
    staged = f"insert into {quoted} select {quoted} from semel_batch"
    desk.deliver(desk.open(desk.sink(apply=staged, name="staged")), chunk_of(rows))
    assert desk.execute(f"select count(*) from {quoted}") == [(2,)]


def test_rows_of_one_column_that_are_all_null_arrive(desk: PostgresDesk) -> None:
    desk.execute("create table things (odd text)")
    session = desk.open(desk.sink(table="things", columns=["odd"]))
    desk.deliver(session, chunk_of(batch([1, 2, 3], odd=pa.array([None, "", None], pa.string()))))
    assert shown(desk, "select odd from things order by ctid") == [(None,), ("",), (None,)]


# -- ten thousand of them


def malformed(count: int) -> pa.RecordBatch:
    """Rows of which some cannot be held: wrong, oversized, null, out of range, with NUL."""
    luck = random.Random(7)
    good = ["1", " 2 ", "-3", "40", "+5"]
    bad = ["", "x", "1.5", "99999999999", "1\0", "null", "٣", "1;drop table things", "0x" * 9]
    words: list[str | None] = []
    notes: list[str | None] = []
    for _ in range(count):
        words.append(luck.choice(bad) if luck.random() < 0.01 else luck.choice(good))
        notes.append(luck.choice([*SLY, None]))
        if luck.random() < 0.0025:
            notes[-1] = luck.choice(["n" * 200, "\0", "🙂" * 101])
        if luck.random() < 0.0025:
            words[-1] = None
    return batch(range(count), number=pa.array(words), note=pa.array(notes))


@pytest.mark.rows("S17")
@pytest.mark.parametrize("way", ["append", "apply", "each"])
def test_ten_thousand_malformed_events_are_delivered_or_parked_with_a_reason(
    desk: PostgresDesk, way: str
) -> None:
    desk.execute(
        "create table things (customer text, id bigint primary key, number int not null,"
        " note varchar(100), at bigserial)"
    )
    names = "customer, id, number, note"
    ways: dict[str, dict[str, Any]] = {
        "append": {"table": "things", "columns": names.split(", ")},
        "apply": {
            "apply": f"insert into things ({names}) select customer, id, number::int, note"
            " from semel_batch order by semel_osn"
        },
        "each": {
            "each": f"insert into things ({names}) values (%(customer)s, %(id)s,"
            " %(number)s::int, %(note)s)"
        },
    }
    count = 10_000 if way == "append" else 1_000
    rows = malformed(count)
    desk.minibatch(desk.sink(**ways[way], chunk_rows=100), [rows])
    parked = {row.event: row for row in desk.parked()}
    arrived = [each for (each,) in desk.execute("select id from things order by at")]
    assert sorted([*arrived, *parked]) == list(range(count))
    assert arrived == sorted(arrived)
    assert count // 200 < len(parked) < count // 40
    assert all(row.why and row.value is not None for row in parked.values())
    assert PostgresServer.password not in desk.ledger_text()
    values = dict(desk.execute("select id, note from things"))
    notes = rows.column("note").to_pylist()
    assert all(values[each] == notes[each] for each in arrived)
