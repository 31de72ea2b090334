"""Events as JSON, as Spark's `to_json` writes them, for every destination that takes JSON.

- NaN and the infinities of a column are the strings "NaN", "Infinity" and "-Infinity"; binary is
  base64; dates, times and timestamps are strings in ISO 8601; an interval is
  `"INTERVAL '1 02:03:04.5' DAY TO SECOND"`. docs/sinks/kafka.md lists the differences from Spark.
- A decimal of a column is a number. In a body that is made of Python values it is a string, because
  most readers take a number for a float and lose its digits.

JSON lines of files are made by `semel.sinks.files` in the same way, but an interval is its
microseconds there: existing files have that, and loads read them back.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.events.columns import is_bytes, is_text
from semel.events.encoding.canonical_json import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SPECIAL = '["\\\\\\x00-\\x1f]'


def plain_value(value: Any) -> Any:
    """Return a Python value that JSON has no form for as a string. Raises TypeError for a type that
    no column has.
    """
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return interval_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} cannot be represented in JSON")


json_value: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain_value
).encode
"""Returns the JSON of a Python value. Raises TypeError or ValueError, for NaN too: no number stands
for it, and a reader that expects a number cannot use a string.
"""


def json_column(array: pa.Array) -> pa.Array:
    """Each value of a column as JSON; null stays null. docs/sinks/kafka.md lists the differences
    from Spark's `to_json`.
    """
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is not False:
        return array.cast(pa.string())
    if is_text(kind):
        array = array.cast(pa.string())
        if pc.any(pc.match_substring_regex(array, _SPECIAL)).as_py() is not True:
            return pc.binary_join_element_wise('"', array, '"', "")
    return pa.array(map(_json_of(kind), array.to_pylist()), pa.string())


def _json_of(kind: pa.DataType) -> Callable[[Any], str | None]:
    """How a value of a column is written, which may be None."""
    write = _writer(kind)
    return lambda value: None if value is None else write(value)


def _inner(kind: pa.DataType) -> Callable[[Any], str]:
    """How a value inside another one is written, which may be None."""
    write = _writer(kind)
    return lambda value: "null" if value is None else write(value)


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    """How a value of a type is written. The Python value does not always show it: an empty map is
    an empty list.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return _writer(kind.value_type)
    if types.is_struct(kind):
        fields = [(each.name, f"{_quoted(each.name)}:", _inner(each.type)) for each in kind]
        return lambda value: _braced(f"{head}{write(value[name])}" for name, head, write in fields)
    if types.is_map(kind):
        key, item = _key(kind.key_type), _inner(kind.item_type)
        return lambda value: _braced(f"{key(name)}:{item(each)}" for name, each in value)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _inner(kind.value_type)
        return lambda value: f"[{','.join(map(element, value))}]"
    return next((write for holds, write in _WRITERS if holds(kind)), _quoted)


def _braced(entries: Iterable[str]) -> str:
    return "{" + ",".join(entries) + "}"


def _key(kind: pa.DataType) -> Callable[[Any], str]:
    """How a key of a map is written: like its value, converted to a string if it is not one."""
    write = _writer(kind)

    def text(value: Any) -> str:
        made = write(value)
        return made if made.startswith('"') else _quoted(made)

    return text


def _quoted(value: object) -> str:
    return json_text(str(value))


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]


def interval_text(value: timedelta) -> str:
    """An interval from days to seconds, as Spark writes it."""
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    minutes, seconds = divmod(value.seconds, 60)
    part = f"{value.microseconds:06d}".rstrip("0")
    time = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{'.' if part else ''}{part}"
    return f"INTERVAL '{sign}{value.days} {time}' DAY TO SECOND"


_WRITERS: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]]] = [
    (pa.types.is_boolean, lambda value: "true" if value else "false"),
    (pa.types.is_integer, str),
    (pa.types.is_decimal, str),
    (pa.types.is_floating, _float),
    (is_text, _quoted),
    (is_bytes, lambda value: f'"{base64.b64encode(value).decode()}"'),
    (pa.types.is_duration, lambda value: f'"{interval_text(value)}"'),
    (pa.types.is_temporal, lambda value: f'"{value.isoformat()}"'),
]
