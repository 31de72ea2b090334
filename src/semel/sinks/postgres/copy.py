"""Arrow columns as PostgreSQL's COPY reads them: CSV text, made a column at a time.

- A null is an empty field, an empty string a quoted one: every string is quoted, so that nothing in
  it is taken for anything else. The server refuses invalid text (NUL, not UTF-8).
- Instants are written in UTC, single floats as the double they are, bytes as hexadecimal. A day
  before the year 1 is refused; a year that Arrow cannot format is written nevertheless.
- Lists, structs and maps become JSON, or a list an array if the table has one; only these are made
  value by value.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from semel.errors import ConfigurationError, Rejected
from semel.events.encoding import CANNOT, json_text, moment_texts, plain_value, unwritable_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_FORM = csv.WriteOptions(include_header=False, quoting_style="needed")
PIECE = 5_000
"""Rows that are written at a time."""

_FIRST_DAY = -719_162
"""The first of January of the year 1, in days; before it Arrow writes years that are misread."""

_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_HEX: NDArray[np.uint8] = np.frombuffer(
    b"".join(b"%02x" % byte for byte in range(256)), np.uint8
).reshape(256, 2)


def type_of(kind: pa.DataType) -> str | None:
    """PostgreSQL's type for a column of the staged chunk; None if it has none."""
    if pa.types.is_dictionary(kind):
        return type_of(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return next((name for holds, name in _TYPES if holds(kind)), None)


def _without_type(kind: pa.DataType) -> pa.DataType | None:
    """The type, or the first within it, for which PostgreSQL has no type; None if there is none."""
    if type_of(kind) is None:
        return kind
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return next(filter(None, map(_without_type, inner)), None)


def is_binary(kind: pa.DataType) -> bool:
    """Whether its values are bytes."""
    is_sized = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_sized or pa.types.is_fixed_size_binary(kind))


def is_nested(kind: pa.DataType) -> bool:
    """Whether its values have parts."""
    return bool(is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether its values are lists; a map is not."""
    is_sized = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_sized or pa.types.is_fixed_size_list(kind))


_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_uint64, "numeric"),
    (lambda kind: kind in (pa.uint32(), pa.int64()), "bigint"),
    (lambda kind: kind in (pa.uint16(), pa.int32()), "integer"),
    (pa.types.is_integer, "smallint"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_floating, "real"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "text"),
    (pa.types.is_null, "text"),
    (is_binary, "bytea"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamptz"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (is_nested, "jsonb"),
)


def copy_text(
    columns: Sequence[pa.Array], names: Sequence[str], types: Sequence[str]
) -> Iterator[pa.Buffer]:
    """Write columns for COPY, in pieces that are made on demand, so that the server reads one while
    the next is made; `types` are those of the target columns.

    Raises `Rejected` for a value that PostgreSQL cannot store, and `ConfigurationError` for a
    column that cannot go to its target; both before the first piece.
    """
    made = [_made(*each) for each in zip(columns, names, types, strict=True)]
    batch = pa.RecordBatch.from_arrays(made, names=[str(at) for at in range(len(made))])
    return (_piece(batch.slice(at, PIECE)) for at in range(0, batch.num_rows, PIECE))


def text_column(array: pa.Array, name: str, into: str) -> pa.Array:
    """Return each value as the text that PostgreSQL reads; null stays null. Raises what `copy_text`
    raises.
    """
    made = _made(array, name, into)
    is_text = pa.types.is_string(made.type) or pa.types.is_large_string(made.type)
    return made if is_text else made.cast(pa.large_string())


def _made(array: pa.Array, name: str, into: str) -> pa.Array:
    try:
        return _column(array, name, into)
    except pa.ArrowInvalid as error:
        raise Rejected(f"column {name!r}: {error}") from error


def _piece(batch: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    csv.write_csv(batch, out, _FORM)
    return out.getvalue()


def _column(array: pa.Array, name: str, into: str) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _column(array.dictionary_decode(), name, into)
    if (odd := _without_type(kind)) is not None:
        raise ConfigurationError(
            f"column {name!r} is of Arrow's type {odd}, or contains values of it, which PostgreSQL "
            "has no type for; cast or drop it in the query"
        )
    if is_nested(kind):
        return _nested(array, name, into)
    if is_binary(kind):
        return _hexadecimal(array, name, into)
    return _scalars(array, name)


def _scalars(array: pa.Array, name: str) -> pa.Array:
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _dated(array, name)
    if pa.types.is_duration(kind):
        return _interval(array)
    return array.cast(pa.float64()) if pa.types.is_floating(kind) else array


def _dated(array: pa.Array, name: str) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        least = _FIRST_DAY * _PER_DAY[kind.unit]
        if kind.tz is not None:
            array = array.cast(pa.timestamp(kind.unit, "UTC"))
    else:
        least = _FIRST_DAY
        array = array.cast(pa.date32())
    number = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    first = pc.min(array.cast(number)).as_py()
    if first is not None and first < least:
        raise Rejected(f"column {name!r} contains a day before the year 1")
    return array if unwritable_moments(array) is None else moment_texts(array)


def _interval(array: pa.Array) -> pa.Array:
    number = array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(number, pa.scalar("microseconds"), " ")


def _hexadecimal(array: pa.Array, name: str, into: str) -> pa.Array:
    """Write bytes as `\\x...`, all of them at once."""
    if into != "bytea":
        raise ConfigurationError(
            f"column {name!r} is binary but goes to a column of type {into}; make that bytea, or "
            "cast it in the query"
        )
    plain = array.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(plain), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) * 2 + 2)])
    text = np.empty(int(offsets[-1]), np.uint8)
    starts = offsets[:-1]
    text[starts], text[starts + 1] = ord("\\"), ord("x")
    is_digit = np.ones(len(text), np.bool_)
    is_digit[starts] = is_digit[starts + 1] = False
    text[is_digit] = _HEX[_bytes_of(plain)].reshape(-1)
    made = pa.LargeStringArray.from_buffers(len(plain), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(pc.is_valid(plain), made, pa.scalar(None, pa.large_string()))


def _bytes_of(array: pa.Array) -> NDArray[np.uint8]:
    """The bytes of all values, one after the other; a null has none."""
    kept = array.drop_null()
    if not len(kept):
        return np.empty(0, np.uint8)
    _, borders, content = kept.buffers()
    ends = np.frombuffer(borders, np.int64)[kept.offset : kept.offset + len(kept) + 1]
    if content is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]


# -- values that have parts


def _nested(array: pa.Array, name: str, into: str) -> pa.Array:
    kind = array.type
    write: Callable[[Any], str]
    if into.endswith("[]") and is_list(kind):
        write = array_text
    elif into in ("json", "jsonb", "text", "character varying"):
        write = json_text
    else:
        raise ConfigurationError(
            f"column {name!r} ({kind}) goes to a column of type {into}; make that jsonb"
            f"{', or an array' if is_list(kind) else ''}, or select its fields in the query"
        )
    try:
        if write is array_text:
            values = [_element(value, kind, into) for value in array.to_pylist()]
        else:
            values = [plain(value, kind) for value in array.to_pylist()]
        texts = [None if value is None else write(value) for value in values]
    except CANNOT as error:
        raise Rejected(f"column {name!r}: {error}") from error
    return pa.array(texts, pa.string())


def _element(value: Any, kind: pa.DataType, into: str) -> Any:
    """A list as the texts of an array: bytes hexadecimal and intervals in seconds, as PostgreSQL
    reads them.
    """
    if value is None:
        return None
    if is_list(kind):
        return [_element(each, kind.value_type, into) for each in value]
    if isinstance(value, timedelta):
        return _seconds(value)
    return f"\\x{value.hex()}" if into == "bytea[]" and is_binary(kind) else plain(value, kind)


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value as JSON represents it: a map is an object, a value without a JSON type is a
    string.
    """
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_name(key, kind.key_type): plain(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {
            field.name: plain(value[field.name], field.type)
            for field in (kind.field(at) for at in range(kind.num_fields))
        }
    if is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    return value if isinstance(value, str | int | float | bool) else plain_value(value)


def array_text(value: Any) -> str:
    """A list as PostgreSQL writes an array: every element quoted."""
    if isinstance(value, list):
        return "{" + ",".join(map(array_text, value)) + "}"
    if value is None:
        return "NULL"
    text = json_text(value) if isinstance(value, dict | bool) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _name(key: Any, kind: pa.DataType) -> str:
    """A key of a map as the name of a member: a text as it is, else its JSON."""
    made = plain(key, kind)
    return made if isinstance(made, str) else json_text(made)


def _seconds(value: timedelta) -> str:
    """All of its seconds, exactly: a float has no microseconds beyond three centuries."""
    whole, rest = divmod(abs(value), timedelta(seconds=1))
    part = f"{rest.microseconds:06d}".rstrip("0") or "0"
    return f"{'-' if value < timedelta() else ''}{whole}.{part}"
