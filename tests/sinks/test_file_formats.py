"""Parquet, JSON lines and CSV: what each type becomes, and that nothing odd is lost on the way."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import ConfigurationError
from semel.sinks.files import Files, committed, json_lines, read, writers
from semel.sinks.files.storage import Folder
from support.pipeline import World

AT = datetime(2026, 11, 14, 12, 30, 15, 123456, UTC)


def parsed(batch: pa.RecordBatch) -> list[Any]:
    return [json.loads(line) for line in bytes(json_lines.lines(batch)).split(b"\n")[:-1]]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.uint8(), 255, 255),
        (pa.bool_(), True, True),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), 1e300, 1e300),
        (pa.float32(), 0.1, 0.1),
        (pa.float64(), math.nan, "NaN"),
        (pa.float64(), math.inf, "Infinity"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.decimal128(38, 2), Decimal("-" + "9" * 36 + ".99"), "-" + "9" * 36 + ".99"),
        (pa.string(), 'a"b\\c\n\x00\x7f\u2028ä😀', 'a"b\\c\n\x00\x7f\u2028ä😀'),
        (pa.string(), "", ""),
        (pa.binary(), b"\x00\xff\x10", "AP8Q"),
        (pa.binary(3), b"abc", "YWJj"),
        (pa.timestamp("us", "Europe/Berlin"), AT, "2026-11-14T12:30:15.123456Z"),
        (pa.timestamp("us"), AT.replace(tzinfo=None), "2026-11-14T12:30:15.123456"),
        (pa.date32(), date(2026, 11, 14), "2026-11-14"),
        (pa.duration("us"), timedelta(seconds=-1), -1_000_000),
        (pa.list_(pa.int32()), [1, None, 3], [1, None, 3]),
        (pa.list_(pa.int32()), [], []),
        (pa.list_(pa.list_(pa.string())), [["a"], None, []], [["a"], None, []]),
        (pa.list_(pa.int32(), 2), [1, 2], [1, 2]),
        (pa.struct({"x": pa.int32(), 'y"': pa.string()}), {"x": 1, 'y"': None}, None),
        (pa.map_(pa.string(), pa.int32()), [("a", 1), ('"', None)], {"a": 1, '"': None}),
        (pa.map_(pa.int32(), pa.binary()), [(7, b"x")], {"7": "eA=="}),
        (pa.dictionary(pa.int8(), pa.string()), "word", "word"),
        (pa.null(), None, None),
    ],
)
def test_each_type_has_one_form_in_json(kind: pa.DataType, value: Any, written: Any) -> None:
    written = value if isinstance(value, dict) else written
    array = pa.array([None, value, None, value], kind)
    batch = pa.record_batch([array, pa.array(range(4))], names=["v", 'n"\n'])
    assert [row["v"] for row in parsed(batch)] == [None, written, None, written]
    assert [row['n"\n'] for row in parsed(batch.slice(1, 2))] == [1, 2]
    assert [row["v"] for row in parsed(batch.slice(3))] == [written]
    json_lines.refuse(batch.schema)


def test_bytes_that_are_no_text_do_not_spoil_a_file() -> None:
    raw = pa.array([b"good", b"\xff\xfe", None], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    batch = pa.record_batch([texts], names=["s"])
    assert [row["s"] for row in parsed(batch)] == ["good", "\ufffd\ufffd", None]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | st.binary(max_size=9)), st.integers(0, 5))
def test_base64_of_all_values_at_once_is_that_of_each(values: list[Any], start: int) -> None:
    array = pa.array(values, pa.binary()).slice(start)
    wanted = [None if each is None else base64.b64encode(each).decode() for each in values[start:]]
    assert json_lines.texts(array).to_pylist() == wanted


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.none() | st.text(max_size=9)),
    st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3)),
)
def test_any_text_and_list_of_texts_can_be_read_back_from_json(
    texts: list[Any], lists: list[Any]
) -> None:
    count = min(len(texts), len(lists))
    kinds = [("s", pa.string()), ("l", pa.list_(pa.string()))]
    rows = [{"s": s, "l": each} for s, each in zip(texts, lists, strict=False)]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds))
    assert parsed(batch) == rows[:count]


@pytest.mark.parametrize(
    ("form", "kind", "told"),
    [
        ("csv", pa.list_(pa.int32()), "CSV holds plain"),
        ("csv", pa.struct({"x": pa.int32()}), "CSV holds plain"),
        ("csv", pa.map_(pa.string(), pa.int32()), "CSV holds plain"),
        ("csv", pa.month_day_nano_interval(), "which JSON and CSV cannot represent"),
        ("json", pa.month_day_nano_interval(), "which JSON and CSV cannot represent"),
        ("json", pa.list_(pa.month_day_nano_interval()), "cannot represent"),
        ("json", pa.map_(pa.list_(pa.int8()), pa.int32()), "cannot be a JSON object"),
        ("parquet", pa.month_day_nano_interval(), "cannot be written as Parquet"),
    ],
)
def test_columns_that_a_format_cannot_hold_are_refused_before_an_event_moves(
    tmp_path: Path, form: str, kind: pa.DataType, told: str
) -> None:
    sink = Files(url=str(tmp_path), format=form)
    with pytest.raises(ConfigurationError, match=told) as caught:
        sink.refuse(pa.schema([("id", pa.int64()), ("v", kind)]))
    assert "sink 'files'" in str(caught.value)


def test_two_columns_of_one_name_are_refused_where_they_could_not_be_told_apart() -> None:
    schema = pa.schema([("a", pa.int64()), ("a", pa.string())])
    for form in ("json", "csv"):
        with pytest.raises(ConfigurationError, match="two columns have the name 'a'"):
            writers.refuse(schema, form)


# -- ten thousand odd records, through the engine

ODD_TEXTS = [
    None, "", "null", "\x00", '"', "'", "\\", ",", ";", "\n", "\r\n", "a\rb", "=1+1", "ä", "😀",
    "\u2028", "\ufeff", "../../x", "%s", "{}", "[1]", "NaN", " ", "\t", "x" * 5_000, "\ud7ff",
]  # fmt: skip


def odd_batches(seed: int = 7, count: int = 10_000) -> Iterator[pa.RecordBatch]:
    chance = random.Random(seed)
    schema = pa.schema(
        [
            ("c", pa.string()),
            ("id", pa.int64()),
            ("text", pa.string()),
            ("number", pa.float64()),
            ("amount", pa.decimal128(38, 6)),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("flag", pa.bool_()),
        ]
    )
    rows = [
        {
            "c": f"e{number % 97}",
            "id": number,
            "text": chance.choice(ODD_TEXTS),
            "number": chance.choice([None, 0.0, -0.0, 5e-324, 1.7e308, math.nan, math.inf, 0.1]),
            "amount": chance.choice([None, Decimal("0.000001"), Decimal("-" + "9" * 32)]),
            "raw": chance.choice([None, b"", b"\x00", bytes(range(256)), b"\xff\xfe"]),
            "at": chance.choice([None, datetime(1, 1, 1, tzinfo=UTC), AT]),
            "day": chance.choice([None, date(1, 1, 1), date(9999, 12, 31)]),
            "flag": chance.choice([None, True, False]),
        }
        for number in range(1, count + 1)
    ]
    for start in range(0, count, 999):
        yield pa.RecordBatch.from_pylist(rows[start : start + 999], schema=schema)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_ten_thousand_odd_records_arrive_each_once_and_in_order(tmp_path: Path, form: str) -> None:
    world = World()
    world.sinks.append(Files(name="out", url=str(tmp_path), format=form, row_group_rows=4_096))
    world.start()
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, odd_batches()))
    assert world.parked() == []
    sent = pa.Table.from_batches(list(odd_batches()))
    [manifest] = committed(f"{tmp_path}/pay/out")
    content = manifest.content(manifest.parts[0])
    assert manifest.rows == 10_000
    if form == "parquet":
        table = pa.concat_tables(read(f"{tmp_path}/pay/out"))
        assert repr(table.to_pylist()) == repr(sent.to_pylist())
        assert pq.ParquetFile(pa.BufferReader(content)).num_row_groups == 3
        return
    if form == "json":
        found = [json.loads(line) for line in content.split(b"\n")[:-1]]
        typed = pa.json.read_json(
            pa.BufferReader(content),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema([("amount", pa.decimal128(38, 6))]),
                unexpected_field_behavior="ignore",
            ),
        )
        assert typed["amount"].to_pylist() == sent["amount"].to_pylist()
    else:
        found = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    ids = [int(row["id"]) for row in found]
    assert ids == list(range(1, 10_001))
    for row, wanted in zip(found, sent.to_pylist(), strict=True):
        assert (row["text"] or "") == (wanted["text"] or "")
        raw = None if not row["raw"] else base64.b64decode(row["raw"])
        assert (raw or b"") == (wanted["raw"] or b"")
        amount = None if not row["amount"] else Decimal(row["amount"])
        assert amount == wanted["amount"]
        at = None if not row["at"] else datetime.fromisoformat(row["at"])
        assert at == wanted["at"]
        if wanted["number"] is not None:
            assert repr(float(row["number"])) == repr(wanted["number"])


def test_csv_tells_null_from_an_empty_text_where_it_is_read_as_documented(tmp_path: Path) -> None:
    world = World()
    world.sinks.append(Files(name="out", url=str(tmp_path), format="csv"))
    world.start()
    opening = world.open(0)
    batch = pa.record_batch(
        {"c": ["a", "a", "a"], "id": [1, 2, 3], "text": pa.array([None, "", "a\nb"])}
    )
    world.driver.end(opening, world.task(opening, [batch]))
    [table] = read(f"{tmp_path}/pay/out")
    assert table["text"].to_pylist() == [None, "", "a\nb"]


def test_parquet_has_a_dictionary_only_for_columns_whose_values_repeat(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "id": list(range(40_000)),
            "kind": ["card", "cash"] * 20_000,
            "amount": [at * 0.5 for at in range(40_000)],
            "empty": pa.nulls(40_000, pa.string()),
        }
    )
    files = []
    for step in (40_000, 999):
        file = io.BytesIO()
        writer = writers.ParquetRows(file, batch.schema, 20_000, "snappy")  # type: ignore[arg-type]
        for start in range(0, 40_000, step):
            writer.write(batch.slice(start, step))
        writer.close()
        files.append(file.getvalue())
    assert files[0] == files[1]
    group = pq.ParquetFile(io.BytesIO(files[0])).metadata.row_group(0)
    has = [group.column(at).has_dictionary_page for at in range(4)]
    assert has == [False, True, False, True]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_a_writer_cuts_where_it_was_told_and_not_where_batches_end(
    tmp_path: Path, form: str
) -> None:
    whole = pa.Table.from_batches(list(odd_batches(count=1_000))).combine_chunks().to_batches()[0]
    folder = Folder.at(str(tmp_path))
    digests = set()
    for cut in (1_000, 999, 512, 100, 7):
        writing = folder.write_aside("file")
        writer = writers.FORMATS[form][1](writing, whole.schema, 100, "zstd")
        for start in range(0, 1_000, cut):
            writer.write(whole.slice(start, cut))
        writer.close()
        writing.keep()
        digests.add(writing.digest())
    assert len(digests) == 1
    if form == "parquet":
        assert pq.ParquetFile(tmp_path / "file").num_row_groups == 10
