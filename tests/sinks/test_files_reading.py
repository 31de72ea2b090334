"""Part files read back: every value has the type and the digits that it was delivered with."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import ConfigurationError, NotDelivered
from semel.sinks.files import Files, read, readers, writers
from semel.sinks.files.storage import Folder
from sinks.test_file_formats import AT, odd_batches
from support.pipeline import World


def round_trip(folder: Path, form: str, batch: pa.RecordBatch) -> pa.Table:
    writers.refuse(batch.schema, form)
    writing = Folder.at(str(folder)).write_aside("file")
    writer = writers.FORMATS[form][1](writing, batch.schema, 100, "none")
    writer.write(batch)
    writer.close()
    writing.keep()
    content = (folder / "file").read_bytes()
    return readers.table(content, form, readers.schema_text(batch.schema))


PLAIN: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127]),
    (pa.int64(), [2**63 - 1, -(2**63)]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.bool_(), [True, False]),
    (pa.float64(), [1.5, math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308, 0.1, 3.0]),
    (pa.float32(), [0.10000000149011612, math.nan, math.inf]),
    (pa.decimal128(38, 2), [Decimal("-" + "9" * 36 + ".99"), Decimal("12.50")]),
    (pa.decimal128(38, 20), [Decimal("0.00000000000000000001")]),
    (pa.decimal256(70, 3), [Decimal("1" * 60 + ".125")]),
    (
        pa.string(),
        ["007", "2026-11-14", "1e3", "true", "", "null", "NaN", "NA", "a\r\nb", '"', "😀"],
    ),
    (pa.large_string(), ["x", ""]),
    (pa.binary(), [b"", b"\x00\xff\x10"]),
    (pa.large_binary(), [b"\x00"]),
    (pa.binary(3), [b"abc"]),
    (pa.timestamp("us", "Europe/Berlin"), [AT, datetime(1, 1, 1, 12, tzinfo=UTC)]),
    (pa.timestamp("us"), [AT.replace(tzinfo=None)]),
    (pa.timestamp("ns"), [AT.replace(tzinfo=None)]),
    (pa.timestamp("s", "UTC"), [AT.replace(microsecond=0)]),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    (pa.date64(), [date(2026, 11, 14)]),
    (pa.time64("us"), [time(12, 30, 15, 123456)]),
    (pa.time32("ms"), [time(0, 0, 0, 1000)]),
    (pa.duration("us"), [timedelta(seconds=-1), timedelta(days=400)]),
    (pa.dictionary(pa.int8(), pa.string()), ["word", "007"]),
    (pa.dictionary(pa.int8(), pa.int64()), [7, 8]),
    (pa.null(), [None]),
]
NESTED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.list_(pa.string()), [["007", None], [], None, ["a"]]),
    (pa.list_(pa.field("element", pa.float64())), [[1.5, math.nan], None]),
    (pa.list_(pa.list_(pa.decimal128(9, 2))), [[[Decimal("1.50")], None, []], None]),
    (pa.large_list(pa.binary()), [[b"x"], None, []]),
    (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None]]),
    (pa.struct({"x": pa.date32(), 'y"': pa.string()}), [{"x": date(2026, 1, 1), 'y"': None}, None]),
    (pa.struct([]), [{}, None]),
    (pa.map_(pa.string(), pa.decimal128(9, 2)), [[("007", Decimal("1.50")), ("", None)], None, []]),
    (pa.map_(pa.int32(), pa.binary()), [[(7, b"x")]]),
    (pa.map_(pa.bool_(), pa.string()), [[(True, "007")]]),
    (pa.map_(pa.float64(), pa.string()), [[(1.5, "a"), (math.inf, "b")]]),
    (pa.map_(pa.date32(), pa.list_(pa.string())), [[(date(2026, 1, 1), ["a"])]]),
]


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [("csv", *each) for each in PLAIN] + [("json", *each) for each in PLAIN + NESTED],
)
def test_each_type_is_read_as_it_was_written(
    tmp_path: Path, form: str, kind: pa.DataType, values: list[Any]
) -> None:
    array = pa.array([None, *values, None, *values], kind)
    batch = pa.record_batch([array, pa.array(range(len(array)))], names=["v", 'n"\n'])
    found = round_trip(tmp_path, form, batch)
    assert found.schema == batch.schema
    assert repr(found.to_pylist()) == repr(batch.to_pylist())
    found.validate(full=True)


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(("days", "kind"), [(3_000_000, "after 9999"), (-719_600, "before 1")])
def test_a_day_that_python_has_no_word_for_is_read_back(
    tmp_path: Path, form: str, days: int, kind: str
) -> None:
    del kind
    at = pa.array([days * 86_400_000_000 + 1, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"at": at, "day": pa.array([days, None], pa.int32()).cast(pa.date32())})
    found = round_trip(tmp_path, form, batch).combine_chunks().to_batches()[0]
    assert found.equals(batch)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_file_of_one_column_keeps_the_lines_of_its_nulls(tmp_path: Path, form: str) -> None:
    for values in (pa.array([None, "", None, "a", None]), pa.array([None, 1, None])):
        batch = pa.record_batch({"v": values})
        assert round_trip(tmp_path, form, batch)["v"].to_pylist() == values.to_pylist()


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_line_may_be_as_long_as_it_likes(tmp_path: Path, form: str) -> None:
    texts = ["short", "x" * 20_000_000, "\n" * 3_000_000, "short"] * 2
    found = round_trip(tmp_path, form, pa.record_batch({"v": pa.array(texts)}))
    assert found["v"].to_pylist() == texts


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=9),
            st.none() | st.floats(),
            st.none() | st.floats(width=32),
            st.none() | st.decimals(places=4, min_value=-(10**9), max_value=10**9),
            st.none() | st.binary(max_size=9),
            st.none() | st.datetimes(),
        )
    ),
    st.sampled_from(["json", "csv"]),
)
def test_any_row_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], form: str
) -> None:
    kinds = [
        pa.string(), pa.float64(), pa.float32(), pa.decimal128(38, 4), pa.binary(),
        pa.timestamp("us"),
    ]  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(list(each), kind) for each, kind in zip(columns, kinds, strict=True)]
    batch = pa.record_batch(arrays, names=list("abcdef"))
    found = round_trip(tmp_path_factory.mktemp("file"), form, batch)
    assert repr(found.to_pylist()) == repr(batch.to_pylist())


def world_at(folder: Path, form: str) -> World:
    world = World()
    world.sinks.append(Files(name="out", url=folder, format=form))
    world.start()
    return world


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_ten_thousand_odd_records_are_read_as_they_were_delivered(
    tmp_path: Path, form: str
) -> None:
    world = world_at(tmp_path, form)
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, odd_batches()))
    found = pa.concat_tables(read(tmp_path / "pay/out"))
    sent = pa.Table.from_batches(list(odd_batches()))
    assert found.schema == sent.schema
    for row, wanted in zip(found.to_pylist(), sent.to_pylist(), strict=True):
        assert repr(row) == repr(wanted)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_file_without_its_types_or_with_other_rows_is_told(tmp_path: Path, form: str) -> None:
    world_at(tmp_path, form).minibatch(0, "a1 b2")
    path = tmp_path / "pay/out/_manifests/0001-0000000000.json"
    value = json.loads(path.read_text())
    value["parts"][0]["rows"] = 3
    path.write_text(json.dumps(value))
    with pytest.raises(NotDelivered, match="delivered with 3 rows but 2 rows were read"):
        list(read(tmp_path / "pay/out"))
    del value["parts"][0]["schema"]
    path.write_text(json.dumps(value))
    with pytest.raises(ConfigurationError, match="does not have its column types"):
        list(read(tmp_path / "pay/out"))


def test_a_struct_with_two_fields_of_one_name_is_refused_in_json() -> None:
    twice = pa.struct([("x", pa.int32()), ("x", pa.string())])
    with pytest.raises(
        ConfigurationError, match="column 'v': two of its fields have the same name"
    ):
        writers.refuse(pa.schema([("v", twice)]), "json")
