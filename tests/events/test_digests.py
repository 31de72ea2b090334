"""The same rows have one digest, and other rows another."""

from __future__ import annotations

import datetime as dt
import decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import ConfigurationError
from semel.events import Digest, digest

SMALL = st.integers(-3, 3)
WORDS = st.text("ab\0é", max_size=3)
FLOATS = st.floats(width=16)
INSTANTS = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2030, 1, 1))  # noqa: DTZ001

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), SMALL),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), SMALL),
    (pa.float16(), FLOATS.map(np.float16)),
    (pa.float32(), FLOATS),
    (pa.float64(), FLOATS),
    (pa.decimal128(9, 2), SMALL.map(lambda n: decimal.Decimal(n).scaleb(-2))),
    (pa.decimal256(50, 2), SMALL.map(lambda n: decimal.Decimal(n).scaleb(-2))),
    (pa.date32(), st.dates(dt.date(1990, 1, 1), dt.date(2030, 1, 1))),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), INSTANTS),
    (pa.duration("us"), st.integers(0, 9).map(lambda n: dt.timedelta(microseconds=n))),
    (pa.string(), WORDS),
    (pa.large_string(), WORDS),
    (pa.binary(), st.binary(max_size=3)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.list_(pa.string()), st.lists(st.none() | WORDS, max_size=3)),
    (pa.large_list(pa.int64()), st.lists(st.none() | SMALL, max_size=3)),
    (pa.list_(pa.int64(), 2), st.lists(st.none() | SMALL, min_size=2, max_size=2)),
    (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        st.fixed_dictionaries(
            {"a": st.none() | SMALL, "b": st.none() | st.lists(WORDS, max_size=2)}
        ),
    ),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(WORDS, st.none() | SMALL, max_size=2)),
    (pa.dictionary(pa.int32(), pa.string()), WORDS),
    (
        pa.month_day_nano_interval(),
        st.tuples(SMALL, SMALL, SMALL).map(pa.MonthDayNano),
    ),
]


def array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    plain = [
        list(each.items()) if isinstance(each, dict) and pa.types.is_map(kind) else each
        for each in values
    ]
    return pa.array(plain, kind)


@st.composite
def columns_of(draw: st.DrawFn) -> tuple[int, list[list[Any]], list[int]]:
    """A number of rows, one column of each of three types, and which types."""
    rows = draw(st.integers(1, 8))
    which = draw(st.lists(st.integers(0, len(TYPES) - 1), min_size=3, max_size=3))
    cells = [draw(st.lists(st.none() | TYPES[at][1], min_size=rows, max_size=rows)) for at in which]
    return rows, cells, which


def batch_of(cells: list[list[Any]], which: list[int]) -> pa.RecordBatch:
    arrays = [array(TYPES[at][0], values) for at, values in zip(which, cells, strict=True)]
    return pa.record_batch(arrays, names=[f"c{at}" for at in range(len(arrays))])


def same(one: Any, other: Any) -> bool:
    """Whether two cells are one value, NaN being one."""
    nan = isinstance(one, (float, np.floating)) and isinstance(other, (float, np.floating))
    return bool(one is None and other is None) or bool(
        one is not None
        and other is not None
        and (one == other or (nan and np.isnan(one) and np.isnan(other)))
    )


@settings(max_examples=300)
@given(columns_of(), st.data())
def test_two_rebatchings_of_the_same_rows_have_one_digest(
    table: tuple[int, list[list[Any]], list[int]], data: st.DataObject
) -> None:
    rows, cells, which = table
    whole = batch_of(cells, which)
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, rows), max_size=4))), rows]
    running = Digest(whole.schema)
    for start, stop in pairwise(edges):
        running.update(whole.slice(start, stop - start))
        running.hexdigest()
    assert running.hexdigest() == digest(whole)


@pytest.mark.parametrize("at", range(len(TYPES)), ids=lambda at: str(TYPES[at][0]))
@settings(max_examples=30)
@given(data=st.data())
def test_rows_of_any_type_one_at_a_time_have_the_digest_of_the_whole(
    at: int, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.none() | TYPES[at][1], min_size=2, max_size=5))
    whole = batch_of([cells], [at])
    running = Digest(whole.schema)
    for row in range(whole.num_rows):
        running.update(whole.slice(row, 1))
    assert running.hexdigest() == digest(whole)


@settings(max_examples=300)
@given(columns_of(), st.data())
def test_a_change_of_one_cell_changes_the_digest(
    table: tuple[int, list[list[Any]], list[int]], data: st.DataObject
) -> None:
    rows, cells, which = table
    column = data.draw(st.integers(0, 2))
    row = data.draw(st.integers(0, rows - 1))
    other = data.draw(st.none() | TYPES[which[column]][1])
    before = digest(batch_of(cells, which))
    unchanged = same(cells[column][row], other)
    cells[column][row] = other
    assert (digest(batch_of(cells, which)) == before) == unchanged


@given(columns_of())
def test_a_digest_is_the_same_after_a_copy_of_the_rows(
    table: tuple[int, list[list[Any]], list[int]],
) -> None:
    """Taking rows apart and together again rewrites every buffer."""
    rows, cells, which = table
    whole = batch_of(cells, which)
    padded = pa.Table.from_batches([whole, whole]).combine_chunks().to_batches()[0]
    assert digest(padded.slice(rows)) == digest(whole)
    assert digest(padded) != digest(whole)


def values(kind: pa.DataType, *cells: Any) -> str:
    return digest(pa.record_batch([pa.array(list(cells), kind)], names=["c"]))


def rows_of(**columns: list[Any]) -> str:
    return digest(pa.record_batch(columns))


def test_null_and_value_in_two_columns_do_not_trade_places() -> None:
    assert rows_of(a=pa.array([5], pa.int64()), b=pa.array([None], pa.int64())) != rows_of(
        a=pa.array([None], pa.int64()), b=pa.array([5], pa.int64())
    )
    assert values(pa.int64(), 5, None) != values(pa.int64(), None, 5)


def test_the_border_between_two_texts_is_content() -> None:
    assert values(pa.string(), "ab", "c") != values(pa.string(), "a", "bc")
    assert rows_of(a=["ab"], b=["c"]) != rows_of(a=["a"], b=["bc"])
    nested = pa.list_(pa.string())
    assert values(nested, ["ab", "c"]) != values(nested, ["a", "bc"])
    assert values(nested, ["a"], ["b"]) != values(nested, ["a", "b"], [])


def test_an_empty_list_a_null_and_a_list_of_null_are_three_things() -> None:
    assert len({values(pa.list_(pa.int64()), each) for each in ([], None, [None])}) == 3
    assert len({values(pa.string(), each) for each in ("", None)}) == 2
    struct = pa.struct({"a": pa.int64()})
    assert len({values(struct, each) for each in ({"a": None}, None, {"a": 0})}) == 3


def test_what_lies_under_a_null_does_not_matter() -> None:
    clean = pa.array([1, None, 3], pa.int64())
    dirty = pa.Array.from_buffers(
        pa.int64(), 3, [clean.buffers()[0], pa.py_buffer(np.array([1, 99, 3]))]
    )
    assert digest(pa.record_batch({"c": dirty})) == digest(pa.record_batch({"c": clean}))
    validity = pa.array([True, False, True]).buffers()[1]
    text = pa.array(["a", "bb", "c"])
    hidden = pa.Array.from_buffers(pa.string(), 3, [validity, *text.buffers()[1:]])
    assert digest(pa.record_batch({"c": hidden})) == values(pa.string(), "a", None, "c")
    inner = pa.array([1, 99, 3])
    struct = pa.StructArray.from_arrays([inner], ["a"], mask=pa.array([False, True, False]))
    assert digest(pa.record_batch({"c": struct})) == values(
        pa.struct({"a": pa.int64()}), {"a": 1}, None, {"a": 3}
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), inner, mask=pa.array([False, True, False])
    )
    assert digest(pa.record_batch({"c": lists})) == values(pa.list_(pa.int64()), [1], None, [3])


def test_an_all_valid_bitmap_is_no_bitmap() -> None:
    validity = pa.array([True] * 3).buffers()[1]
    marked = pa.Array.from_buffers(pa.int64(), 3, [validity, pa.array([1, 2, 3]).buffers()[1]])
    assert digest(pa.record_batch({"c": marked})) == values(pa.int64(), 1, 2, 3)


def test_a_text_is_a_text_however_arrow_keeps_it() -> None:
    cells = ["a", None, "", "a", "a text longer than a view holds inline"]
    kinds = [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ]
    assert len({values(kind, *cells) for kind in kinds}) == 1
    raw = [b"a", None, b"", b"a longer one than twelve"]
    assert (
        len({values(kind, *raw) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())})
        == 1
    )
    lists = [["a", None], None, []]
    inner = pa.dictionary(pa.int32(), pa.string())
    assert values(pa.list_(inner), *lists) == values(pa.large_list(pa.large_string()), *lists)
    views = pa.struct({"a": pa.list_(pa.string_view())})
    plain = pa.struct({"a": pa.list_(pa.string())})
    structs = [{"a": ["x", None]}, None, {"a": None}]
    assert values(views, *structs) == values(plain, *structs)
    mapped = [[("a", "b")], None, [("c", None)]]
    assert values(pa.map_(pa.string_view(), pa.string_view()), *mapped) == values(
        pa.map_(pa.string(), pa.string()), *mapped
    )
    assert values(pa.string(), "a") != values(pa.binary(), b"a")


def test_a_null_inside_a_dictionary_is_a_null() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["a", None]))
    assert digest(pa.record_batch({"c": encoded})) == values(pa.string(), "a", None, "a")


def test_all_nan_are_one_and_so_are_both_zeros() -> None:
    odd = np.array([0x7FF8_0000_0000_0001, 0xFFF8_0000_0000_0000], np.uint64).view(np.float64)
    assert digest(pa.record_batch({"c": odd})) == values(pa.float64(), float("nan"), float("nan"))
    assert values(pa.float64(), -0.0) == values(pa.float64(), 0.0)


def test_names_and_types_are_content() -> None:
    assert rows_of(a=[1]) != rows_of(b=[1])
    assert values(pa.int32(), 1) != values(pa.int64(), 1)
    assert values(pa.timestamp("us"), 1) != values(pa.timestamp("ms"), 1)
    assert values(pa.decimal128(9, 2), None) != values(pa.decimal128(9, 3), None)
    assert rows_of(a=[1], b=[1]) != rows_of(b=[1], a=[1])


def test_a_timestamp_is_its_instant_and_not_the_zone_of_the_session() -> None:
    assert values(pa.timestamp("us", "UTC"), 1) == values(pa.timestamp("us", "Europe/Berlin"), 1)
    assert values(pa.timestamp("us", "UTC"), 1) != values(pa.timestamp("us"), 1)


def test_rows_without_columns_are_counted() -> None:
    one = pa.record_batch({"a": [1, 2]})
    assert digest(one.select([])) != digest(one.slice(0, 1).select([]))


def test_a_copy_goes_on_by_itself() -> None:
    batch = pa.record_batch({"a": ["x", "y"], "b": [[1], None]})
    first = Digest(batch.schema)
    first.update(batch)
    second = first.copy()
    second.update(batch)
    assert first.hexdigest() == digest(batch)
    assert second.hexdigest() == digest(
        pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    )


def test_the_digest_of_known_rows_never_changes() -> None:
    """The rule is recorded in ledgers: whoever changes it has to give it a new number."""
    batch = pa.record_batch(
        {
            "n": [1, None, 3],
            "t": ["a", None, "ccc"],
            "l": [[1], [], None],
            "f": [0.5, None, float("nan")],
        }
    )
    assert digest(batch) == "d6d87c5d93d387633ca3cf7f3ad737c3"


@pytest.mark.parametrize(
    "kind",
    [
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_view(pa.int64()),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.uuid(),
        pa.struct({"a": pa.list_(pa.list_view(pa.int64()))}),
    ],
)
def test_a_type_without_a_digest_is_refused_by_the_name_of_its_column(kind: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"column 'strange.*cast"):
        Digest(pa.schema({"fine": pa.int64(), "strange": kind}))


def test_a_batch_with_other_columns_is_refused() -> None:
    running = Digest(pa.schema({"a": pa.int64()}))
    with pytest.raises(ConfigurationError, match="one minibatch has one schema"):
        running.update(pa.record_batch({"b": [1]}))
    with pytest.raises(ConfigurationError, match="one minibatch has one schema"):
        running.update(pa.record_batch({"a": [1], "b": [1]}))
