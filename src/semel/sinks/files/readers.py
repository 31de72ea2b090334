"""Reads part files as tables, with the types that were delivered, never with guessed ones.

- Parquet has its types. The manifest has the Arrow schema of a JSON or CSV file, which takes
  precedence over what a value looks like: `007` of a string stays a string, a decimal has all its
  digits.
- A line may have any length, and a column of floats has numbers and `"NaN"`.
"""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.errors import ConfigurationError
from semel.sinks.files.json_lines import is_binary
from semel.sinks.files.writers import in_csv, is_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_AT_ONCE = 16 << 20
_BLOCK_BYTES_MAX = 2**31 - 1


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as the manifest keeps it: Arrow's serialized bytes, as base64."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def table(content: bytes, form: str, schema: str) -> pa.Table:
    """Read a file of any form; `schema` is the text that was kept, and of no use to Parquet.

    Raises `ConfigurationError` if none was kept.
    """
    if form == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(pa.BufferReader(content))
    if not schema:
        raise ConfigurationError(
            f"the manifest of this {form} file does not have its column types, so 007 cannot be "
            "distinguished from 7: read it with the version of semel that wrote it"
        )
    kept = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
    return _from_json(content, kept) if form == "json" else _from_csv(content, kept)


# -- JSON


def _from_json(content: bytes, schema: pa.Schema) -> pa.Table:
    lines = io.BytesIO(content)
    batches = []
    while held := lines.readlines(BYTES_AT_ONCE):
        rows = [json.loads(line) for line in held]
        columns = [_array([row[field.name] for row in rows], field.type) for field in schema]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values that JSON has of a column with the column's type."""
    if pa.types.is_dictionary(kind):
        return _array(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_nested(kind):
        return _nested(values, kind)
    if pa.types.is_floating(kind):  # `float` reads "NaN" and "Infinity" too
        read = [None if value is None else float(value) for value in values]
        return pa.array(read, pa.float64()).cast(kind)
    if is_plain(kind):
        return pa.array(values, kind)
    if pa.types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(pa.duration("us")).cast(kind)
    return _from_texts(pa.array(values, pa.large_string()), kind)


def _nested(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    missing = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return pa.array(values, kind)
        children = [
            _array([None if value is None else value[field.name] for value in values], field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_fixed_size_list(kind):
        empty = [None] * kind.list_size
        held = [each for value in values for each in (empty if value is None else value)]
        made = _array(held, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(made, type=kind, mask=missing)
    offsets = np.cumsum([0, *(len(value or ()) for value in values)])
    if pa.types.is_map(kind):
        names = [name for value in values for name in value or ()]
        items = [each for value in values for each in (value or {}).values()]
        starts = pa.array(offsets, pa.int32())
        made = (_keys(names, kind.key_type), _array(items, kind.item_type))
        return pa.MapArray.from_arrays(starts, *made, kind, mask=missing)
    made = _array([each for value in values for each in value or ()], kind.value_type)
    if pa.types.is_large_list(kind):
        starts = pa.array(offsets, pa.int64())
        return pa.LargeListArray.from_arrays(starts, made, type=kind, mask=missing)
    starts = pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(starts, made, type=kind, mask=missing)


def _keys(names: list[str], kind: pa.DataType) -> pa.Array:
    """Read the keys of a map, which JSON has as texts only."""
    if pa.types.is_dictionary(kind):
        return _keys(names, kind.value_type).dictionary_encode().cast(kind)
    is_number = is_plain(kind) or pa.types.is_duration(kind)
    return _array([json.loads(name) for name in names] if is_number else names, kind)


# -- CSV


def _from_csv(content: bytes, schema: pa.Schema) -> pa.Table:
    from pyarrow import csv

    read = csv.read_csv(
        pa.BufferReader(content),
        # A line has to fit into a block, and the longest line is not known.
        csv.ReadOptions(block_size=min(len(content) + 1, _BLOCK_BYTES_MAX)),
        # With one column, a line of a null is empty.
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types={field.name: in_csv(field.type) for field in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    columns = []
    for field, column in zip(schema, read.columns, strict=True):
        same = column.type == field.type
        chunks = [chunk if same else _from_texts(chunk, field.type) for chunk in column.chunks]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


# -- texts


def _from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read what `json_lines.texts` wrote."""
    if pa.types.is_dictionary(kind):
        return _from_texts(texts, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    if is_binary(kind):
        read = [None if each is None else base64.b64decode(each) for each in texts.to_pylist()]
        return pa.array(read, kind)
    if pa.types.is_duration(kind):
        return texts.cast(pa.int64()).cast(pa.duration("us")).cast(kind)
    if pa.types.is_temporal(kind):
        return _dated(texts, kind)
    return texts.cast(kind)


def _dated(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read ISO 8601 by NumPy, which also knows years of more than four digits."""
    is_date, is_time = pa.types.is_date(kind), pa.types.is_time(kind)
    unit = "D" if is_date else kind.unit
    day = "1970-01-01T" if is_time else ""
    read = ["NaT" if each is None else day + each.removesuffix("Z") for each in texts.to_pylist()]
    numbers = np.array(read, f"datetime64[{unit}]").astype(np.int64)
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    made = pa.array(numbers, mask=missing)
    if is_date:
        return made.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return made.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(kind)
