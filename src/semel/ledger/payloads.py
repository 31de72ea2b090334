"""Payloads of rows: canonical JSON, which a person can read and a store can compare.

Always true of a payload:
- equal values make equal text: keys are sorted, separators compact;
- it is text that every store takes: NUL and lone surrogates are written as escapes, and all other
  characters as they are;
- `load` returns what `dump` was given: above `EXPANDED_BYTES_MAX`, without packed sets of ids, it
  is compressed, and `load` expands it; packed sets stay packed until `EntityIds.from_json` reads
  them.

Compressors differ between machines: let `Equals` require the text that was read, not a new one.
"""

from __future__ import annotations

import base64
import json
import math
import secrets
import zlib
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from semel.events.encoding import ArrowValue, PreEncoded, canonical, compressed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXPANDED_BYTES_MAX = 64 * 1024
DEFLATED_BYTES_MIN = 4 * 1024

_COMPRESSED = "z"
_MARK = secrets.token_hex(16)
"""Stands for an encoded part while the rest is encoded; random, so that no value equals it."""


WORDS_MAX = 2_000
"""How many characters of a reason are kept: the text of an exception may have 50 MB."""


def _cut(text: str) -> str:
    """Return the beginning of a reason, and how much was cut."""
    if len(text) <= WORDS_MAX:
        return text
    left = f"... ({len(text) - WORDS_MAX} more characters)"
    return text[: WORDS_MAX - len(left)] + left


def cut_fields(row: Any, *names: str) -> None:
    """Cut texts of people and destinations to `WORDS_MAX` where they enter the ledger."""
    for name in names:
        text = getattr(row, name)
        if text is not None and len(text) > WORDS_MAX:
            object.__setattr__(row, name, _cut(text))


def dump(value: Mapping[str, Any]) -> str:
    """Write a payload. Raises ValueError or TypeError for values without a JSON form."""
    parts = _parts(value)
    # A value that looks like a compressed one is compressed too, so that `load` never has to guess.
    if sum(map(_loose, parts)) <= EXPANDED_BYTES_MAX and value.keys() != {_COMPRESSED}:
        return b"".join(map(_content, parts)).decode()
    deflated = base64.b64encode(compressed(_larger(parts))).decode("ascii")
    return f'{{"{_COMPRESSED}":"{deflated}"}}'


def load(text: str) -> dict[str, Any]:
    """Read a payload that `dump` wrote, expanded. Raises ValueError, TypeError or `zlib.error` for
    anything else; `damage.decoded` turns those into an error that names the row.
    """
    value = _loaded(text)
    if value.keys() == {_COMPRESSED}:
        packed = base64.b64decode(value[_COMPRESSED], validate=True)
        value = _loaded(zlib.decompress(packed).decode())
    return value


def _loaded(text: str) -> dict[str, Any]:
    if not text.isascii():
        text.encode()  # a store returns bytes that are not UTF-8 as lone surrogates
    value = _DECODER.decode(text)
    if not isinstance(value, dict):
        raise TypeError("a payload is a JSON object")
    return cast("dict[str, Any]", value)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def encode_value(value: Any) -> Any:
    """Turn the value of a column into a JSON value; only the name of a time zone is lost.

    A value without a JSON form becomes an object of one key that starts with `$`. Raises TypeError
    for a type that no column has.
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


def _parts(value: Mapping[str, Any]) -> list[bytes | PreEncoded]:
    """Return the text of a payload in parts: newly encoded ones, and between them ready ones."""
    ready: list[PreEncoded] = []

    def default(each: object) -> str:
        if not isinstance(each, PreEncoded):
            raise TypeError(f"a value of type {type(each).__name__} has no form in JSON")
        ready.append(each)
        return _MARK

    encoded = canonical(dict(value), default).encode().split(f'"{_MARK}"'.encode())
    parts: list[bytes | PreEncoded] = [encoded[0]]
    for each, rest in zip(ready, encoded[1:], strict=True):
        parts += [each, rest]
    return parts


def _larger(parts: list[bytes | PreEncoded]) -> list[bytes | PreEncoded]:
    """Return the parts with small ones joined: only a large one is worth a stream of its own."""
    made: list[bytes | PreEncoded] = [b""]
    for part in parts:
        if isinstance(part, PreEncoded) and len(part) >= DEFLATED_BYTES_MIN:
            made += [part, b""]
        else:
            made[-1] = _content(made[-1]) + _content(part)
    return made


def _loose(part: bytes | PreEncoded) -> int:
    """Return how many bytes of a part compression would reduce."""
    return 0 if isinstance(part, PreEncoded) and part.dense else len(part)


def _content(part: bytes | PreEncoded) -> bytes:
    return part.content if isinstance(part, PreEncoded) else part


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and str(next(iter(value))).startswith("$")


def _encode_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if _is_tagged(value) or not all(isinstance(name, str) for name in value):
        return {"$map": [[encode_value(name), encode_value(each)] for name, each in value.items()]}
    return {name: encode_value(each) for name, each in value.items()}


def _encode_datetime(value: datetime | time) -> list[Any] | str:
    if getattr(value, "nanosecond", 0):
        raise TypeError("nanoseconds have no form in the ledger; make it microseconds")
    return [value.isoformat(), value.fold] if value.fold else value.isoformat()


def _encode_timedelta(value: timedelta) -> list[int]:
    if getattr(value, "nanoseconds", 0):
        raise TypeError("nanoseconds have no form in the ledger; make it microseconds")
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
