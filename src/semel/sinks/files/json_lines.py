"""Columns as lines of JSON, made by Arrow and NumPy: no row becomes a Python object.

- Integers, floats and booleans are JSON values; NaN, Infinity and -Infinity are strings.
- A decimal is a string with all its digits; binary is base64; a duration is its microseconds.
- Dates, times and timestamps are strings in ISO 8601, with a Z if the column has a time zone.
- A list is an array, a struct and a map are objects; a missing value is null.
- Bytes of a string that are not UTF-8 become U+FFFD, because one would make the file unreadable.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.events.encoding import ascii_json, moment_texts

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = pa.large_binary()
NULL = pa.scalar(b"null", BYTES)
QUOTE = pa.scalar(b'"', BYTES)
NOTHING = pa.scalar(b"", BYTES)
_SHORT = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}


def lines(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the rows of a batch, each as a line."""
    if not batch.num_rows:
        return pa.py_buffer(b"")
    fields = [(field.name, batch.column(at)) for at, field in enumerate(batch.schema)]
    made = _object(fields, batch.num_rows, b"}\n")
    return _joined_bytes(made)


def refuse(schema: pa.Schema) -> None:
    """Raise `ConfigurationError` for a column that cannot be written as JSON."""
    for field in schema:
        _refuse(field.type, field.name)


def texts(array: pa.Array) -> pa.Array:
    """Return a column that is neither text nor nested as plain strings, null where it is null."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _cast(_base64(array), pa.large_string())
    if pa.types.is_fixed_size_binary(kind):
        return _cast(_base64(array.cast(pa.binary())), pa.large_string())
    if pa.types.is_timestamp(kind):
        at = array.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz else array
        return pc.replace_substring(moment_texts(at), " ", "T")
    if pa.types.is_date(kind):
        return moment_texts(array)
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("us"), safe=False).cast(pa.int64()).cast(pa.large_string())
    return array.cast(pa.large_string())


def valid(array: pa.Array) -> pa.Array:
    """Return a column of strings with bytes that are not UTF-8 replaced."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(BYTES)
        found = [
            None if each is None else each.decode(errors="replace") for each in raw.to_pylist()
        ]
        return pa.array(found, pa.large_string())
    return array


def _refuse(kind: pa.DataType, name: str) -> None:
    if pa.types.is_map(kind):
        if pa.types.is_nested(kind.key_type):
            raise ConfigurationError(
                f"column {name!r}: a map with keys of type {kind.key_type} cannot be a JSON "
                "object. Cast the keys to string, or write Parquet"
            )
        _refuse(kind.key_type, name)
        _refuse(kind.item_type, name)
    elif _is_list(kind):
        _refuse(kind.value_type, name)
    elif pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"column {name!r}: two of its fields have the same name; rename one"
            )
        for field in kind:
            _refuse(field.type, f"{name}.{field.name}")
    elif pa.types.is_dictionary(kind):
        _refuse(kind.value_type, name)
    elif not any(test(kind) for test, _ in _MAKERS):
        raise ConfigurationError(
            f"column {name!r} has type {kind}, which JSON and CSV cannot represent. Cast it, or "
            "write Parquet"
        )


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_binary(kind: pa.DataType) -> bool:
    """Whether its values are bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _value(array: pa.Array) -> pa.Array:
    """Return each value of a column as JSON."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _value(array.dictionary_decode())
    if pa.types.is_null(kind):
        return pa.array([b"null"] * len(array), BYTES)
    if pa.types.is_struct(kind):
        children = zip(kind, array.flatten(), strict=True)
        made = _object([(field.name, child) for field, child in children], len(array))
    elif pa.types.is_map(kind):
        made = _map(array)
    elif _is_list(kind):
        made = _list(array)
    else:
        made = next(make for test, make in _MAKERS if test(kind))(array)
    return pc.if_else(array.is_valid(), made, NULL)


def _object(fields: list[tuple[str, pa.Array]], count: int, end: bytes = b"}") -> pa.Array:
    """Put columns together as objects."""
    if not fields:
        return pa.array([b"{" + end] * count, BYTES)
    parts: list[Any] = []
    for at, (name, column) in enumerate(fields):
        start = "{" if at == 0 else ","
        parts += [pa.scalar(f"{start}{ascii_json(name)}:".encode(), BYTES), _value(column)]
    return _joined(*parts, pa.scalar(end, BYTES))


def _list(array: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    offsets, first, count = _offsets(array)
    made = _value(array.values.slice(first, count))
    return _joined(pa.scalar(b"[", BYTES), _gathered(made, offsets), pa.scalar(b"]", BYTES))


def _map(array: pa.Array) -> pa.Array:
    offsets, first, count = _offsets(array)
    keys = _value(array.keys.slice(first, count))
    quoted = pc.starts_with(keys, b'"')
    keys = pc.if_else(quoted, keys, _joined(QUOTE, keys, QUOTE))
    entries = _joined(keys, pa.scalar(b":", BYTES), _value(array.items.slice(first, count)))
    return _joined(pa.scalar(b"{", BYTES), _gathered(entries, offsets), pa.scalar(b"}", BYTES))


def _offsets(array: pa.Array) -> tuple[np.ndarray[Any, Any], int, int]:
    """Return where each list starts among its values, counted from the first value in use."""
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, first, last - first


def _gathered(values: pa.Array, offsets: np.ndarray[Any, Any]) -> pa.Array:
    """Put the values of each list together, with commas between."""
    held = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return pc.binary_join(held, pa.scalar(b",", BYTES))


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, NOTHING)


def _joined_bytes(array: pa.Array) -> pa.Buffer:
    """Return the bytes of all values, one after the other, without a copy."""
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return values.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array.cast(kind)


def _plain(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_string()).cast(BYTES)


def _floating(array: pa.Array) -> pa.Array:
    names = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.less(array, 0), *_INFINITE))
    plain = _plain(array)
    whole = pc.match_substring_regex(plain, b"^-?[0-9]+$")  # else readers take it for an integer
    plain = pc.if_else(whole, _joined(plain, pa.scalar(b".0", BYTES)), plain)
    return pc.if_else(pc.is_finite(array), plain, names.cast(BYTES))


_INFINITE = ('"-Infinity"', '"Infinity"')


def _quoted(array: pa.Array) -> pa.Array:
    return _joined(QUOTE, texts(array).cast(BYTES), QUOTE)


def _text(array: pa.Array) -> pa.Array:
    """Quote texts; what has to be escaped is looked for in all of them at once."""
    raw = valid(array).cast(BYTES)
    present = np.bincount(np.frombuffer(_joined_bytes(raw), np.uint8), minlength=128)
    for code in [0x5C, 0x22, *range(0x20)]:  # the backslash first: the others bring some
        if present[code]:
            escape = _SHORT.get(code, f"\\u{code:04x}") if code < 0x20 else "\\" + chr(code)
            raw = pc.replace_substring(raw, bytes([code]), escape.encode())
    return _joined(QUOTE, raw, QUOTE)


def _base64(array: pa.Array) -> pa.Array:
    """Encode every value in one call: each is padded to whole groups of three bytes, and the
    letters of the padding are overwritten.
    """
    raw = array.cast(BYTES)
    lengths = pc.binary_length(raw).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    groups = (lengths + 2) // 3
    starts = np.concatenate([[0], np.cumsum(groups)])
    filled = np.zeros(int(starts[-1]) * 3, np.uint8)
    content = np.frombuffer(_joined_bytes(raw.fill_null(b"")), np.uint8)
    before = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    filled[np.arange(len(content)) + np.repeat(starts[:-1] * 3 - before, lengths)] = content
    encoded = np.frombuffer(base64.b64encode(filled.data), np.uint8).copy()
    ends = starts[1:] * 4
    encoded[ends[lengths % 3 == 1] - 2] = ord("=")
    encoded[ends[lengths % 3 != 0] - 1] = ord("=")
    made = pa.Array.from_buffers(
        BYTES, len(raw), [None, pa.py_buffer((starts * 4).astype(np.int64)), pa.py_buffer(encoded)]
    )
    return pc.if_else(raw.is_valid(), made, pa.scalar(None, BYTES))


def _any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


_MAKERS = cast(
    "list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]]",
    [
        (_any_of(pa.types.is_string, pa.types.is_large_string), _text),
        (
            _any_of(pa.types.is_integer, pa.types.is_boolean, pa.types.is_duration),
            lambda array: texts(array).cast(BYTES),
        ),
        (pa.types.is_floating, _floating),
        (
            _any_of(
                pa.types.is_decimal,
                is_binary,
                pa.types.is_timestamp,
                pa.types.is_date,
                pa.types.is_time,
            ),
            _quoted,
        ),
        (pa.types.is_null, _plain),
    ],
)
