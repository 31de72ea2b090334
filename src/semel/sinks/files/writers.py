"""Parquet, JSON lines and CSV: the same rows produce the same bytes, wherever Arrow batches end.

Row groups have a fixed number of rows, each from one piece of memory, and nothing that differs
between two attempts (a time, a name) is written into a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.sinks.files import json_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.sinks.files.storage import Writing

LINES_AT_ONCE = 16_384
SAMPLE_ROWS = 16_384
"""How many rows of a file decide which of its columns get a dictionary."""


class RowWriter(Protocol):
    """Writes batches of one schema to one file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""

    def close(self) -> None:
        """Write the rest; the caller closes the file itself."""


class ParquetRows:
    """Writes row groups of a fixed number of rows."""

    def __init__(self, file: Writing, schema: pa.Schema, group: int, compression: str) -> None:
        self._file, self._schema, self._compression = file, schema, compression
        self._writer: Any = None
        self._group = group
        self._held: list[pa.RecordBatch] = []
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next rows; whole groups are written."""
        self._held.append(batch)
        self._count += batch.num_rows
        while self._count >= self._group:
            self._write(self._group)

    def close(self) -> None:
        """Write the last group and the footer."""
        if self._count:
            self._write(self._count)
        if self._writer is not None:
            self._writer.close()

    def _write(self, rows: int) -> None:
        import pyarrow.parquet as pq

        held = pa.Table.from_batches(self._held)
        group = held.slice(0, rows).combine_chunks()
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression=self._compression,
                use_dictionary=repeating(group.slice(0, SAMPLE_ROWS)),
            )
        self._writer.write_table(group, row_group_size=rows)
        self._count -= rows
        self._held = held.slice(rows).to_batches() if self._count else []


def repeating(sample: pa.Table) -> bool | list[str]:
    """Return the columns whose values repeat, for which Parquet makes a dictionary: for a column of
    ids or amounts that costs more than all the rest of writing it, and makes the file larger. All
    columns if some are nested.
    """
    if any(pa.types.is_nested(field.type) for field in sample.schema):
        return True
    return [
        name
        for name, values in zip(sample.schema.names, sample.columns, strict=True)
        if not _differ(values)
    ]


def _differ(values: pa.ChunkedArray) -> bool:
    """Return whether most values differ from each other."""
    try:
        distinct: int = pc.count_distinct(values, mode="all").as_py()
    except pa.ArrowNotImplementedError:
        return False
    return distinct * 2 > len(values)


class JsonRows:
    """Writes an object per row and line."""

    def __init__(self, file: Writing, schema: pa.Schema, group: int, compression: str) -> None:
        del schema, group, compression
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows."""
        for start in range(0, batch.num_rows, LINES_AT_ONCE):
            self._file.write(json_lines.lines(batch.slice(start, LINES_AT_ONCE)))

    def close(self) -> None:
        """Nothing is left."""


class CsvRows:
    """Writes a line per row, with the names of the columns first; a text is quoted, null is not."""

    def __init__(self, file: Writing, schema: pa.Schema, group: int, compression: str) -> None:
        from pyarrow import csv

        del group, compression
        self._schema = pa.schema([(each.name, in_csv(each.type)) for each in schema])
        self._writer: Any = csv.CSVWriter(file, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows."""
        columns = [
            _csv_column(batch.column(at), field.type) for at, field in enumerate(self._schema)
        ]
        self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Nothing is left."""
        self._writer.close()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether CSV has a representation of its own for these values."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    )


def in_csv(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is written as: its own, or string."""
    return kind if is_plain(kind) else pa.large_string()


def _csv_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind and not _is_text(kind):
        return array
    made = json_lines.valid(array) if _is_text(array.type) else json_lines.texts(array)
    return pc.cast(made, kind)


FORMATS: dict[str, tuple[str, Callable[[Writing, pa.Schema, int, str], RowWriter]]] = {
    "parquet": (".parquet", ParquetRows),
    "json": (".jsonl", JsonRows),
    "csv": (".csv", CsvRows),
}
"""By name: how a file's name ends, and what writes it."""


def refuse(schema: pa.Schema, form: str) -> None:
    """Raise `ConfigurationError` for columns that files of this form cannot hold."""
    if form == "parquet":
        _refuse_in_parquet(schema)
        return
    if form == "csv":
        for field in schema:
            if pa.types.is_nested(field.type):
                raise ConfigurationError(
                    f"column {field.name!r} has type {field.type}, but CSV holds plain values "
                    'only. Drop it, convert it with to_json, or use format="json" or '
                    'format="parquet"'
                )
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two columns have the name {name!r}; rename one")
    json_lines.refuse(schema)


def _refuse_in_parquet(schema: pa.Schema) -> None:
    import pyarrow.parquet as pq

    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigurationError(
            f"these columns cannot be written as Parquet: {error}. Cast or drop the columns that "
            "are named"
        ) from None
