"""Values of columns as JSON that can be read back: what JSON has no form for gets a tag.

A value without a JSON form becomes an object of one key that starts with `$`, such as
`{"$decimal": "1.10"}`. `decode_value` returns what `encode_value` was given; only the name of a
time zone is lost. The ledger keeps parked events so, and an older ledger is continued: a tag never
changes its meaning.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


@dataclass(frozen=True, slots=True, repr=False)
class ArrowValue:
    """A value that Python cannot hold: a text to read, and the value as Arrow holds it."""

    text: str
    content: bytes

    def __repr__(self) -> str:
        return self.text

    def array(self) -> pa.Array:
        """Return the array of one value."""
        from pyarrow import ipc

        return ipc.open_stream(self.content).read_next_batch().column(0)


def encode_value(value: Any) -> Any:
    """Turn the value of a column into a JSON value. Raises TypeError for a type that no column
    has.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {"$int": str(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, list):
        return [encode_value(each) for each in value]
    for kind, tag, encode in _ENCODERS:
        if isinstance(value, kind):
            return {tag: encode(value)} if tag else encode(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in the ledger")


def decode_value(value: Any) -> Any:
    """Turn the result of `encode_value` back into the value."""
    if isinstance(value, list):
        return [decode_value(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _is_tagged(value):
        [(tag, content)] = value.items()
        return _DECODERS[tag](content)
    return {name: decode_value(each) for name, each in value.items()}


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and str(next(iter(value))).startswith("$")


def _encode_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if _is_tagged(value) or not all(isinstance(name, str) for name in value):
        return {"$map": [[encode_value(name), encode_value(each)] for name, each in value.items()]}
    return {name: encode_value(each) for name, each in value.items()}


def _encode_datetime(value: datetime | time) -> list[Any] | str:
    if getattr(value, "nanosecond", 0):
        raise TypeError("the ledger cannot keep nanoseconds; cast the value to microseconds")
    return [value.isoformat(), value.fold] if value.fold else value.isoformat()


def _encode_timedelta(value: timedelta) -> list[int]:
    if getattr(value, "nanoseconds", 0):
        raise TypeError("the ledger cannot keep nanoseconds; cast the value to microseconds")
    return [value.days, value.seconds, value.microseconds]


def _decode_datetime(content: Any) -> datetime:
    if isinstance(content, str):
        return datetime.fromisoformat(content)
    return datetime.fromisoformat(content[0]).replace(fold=content[1])


def _decode_time(content: Any) -> time:
    if isinstance(content, str):
        return time.fromisoformat(content)
    return time.fromisoformat(content[0]).replace(fold=content[1])


_ENCODERS: list[tuple[type | tuple[type, ...], str, Callable[[Any], Any]]] = [
    (dict, "", _encode_dict),  # tags itself where it has to
    ((bytes, bytearray, memoryview), "$bytes", lambda v: base64.b64encode(v).decode("ascii")),
    (Decimal, "$decimal", str),
    (datetime, "$datetime", _encode_datetime),  # before date, which it is a kind of
    (date, "$date", date.isoformat),
    (time, "$time", _encode_datetime),
    (timedelta, "$timedelta", _encode_timedelta),
    (ArrowValue, "$arrow", lambda v: [v.text, base64.b64encode(v.content).decode("ascii")]),
    (tuple, "$tuple", lambda v: [encode_value(each) for each in v]),
]

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$map": lambda v: {decode_value(name): decode_value(each) for name, each in v},
    "$int": int,
    "$float": float,
    "$bytes": base64.b64decode,
    "$decimal": Decimal,
    "$datetime": _decode_datetime,
    "$date": date.fromisoformat,
    "$time": _decode_time,
    "$timedelta": lambda v: timedelta(*v),
    "$arrow": lambda v: ArrowValue(v[0], base64.b64decode(v[1])),
    "$tuple": lambda v: tuple(decode_value(each) for each in v),
}
