"""The kinds of values in a pipeline file: what each accepts, its message, and its JSON Schema.

Always true: nothing is converted silently: `"5"` is not a number, and `1` is not a flag.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_SHORT = re.compile(r"[\w. -]{0,20}")


def wrong(expected: str, value: object) -> PydanticCustomError:
    """Return the error for a value of another kind."""
    return PydanticCustomError(
        "kind",
        "expected {expected}, found {found}",
        {"expected": expected, "found": kind_of(value)},
    )


def wrong_within(path: Sequence[str | int], message: str) -> PydanticCustomError:
    """Return the error for a part of a value, at `path` within it."""
    return PydanticCustomError("within", "{message}", {"message": message, "at": tuple(path)})


def kind_of(value: object) -> str:
    """Name the kind of a value, with the value if it is short and cannot be a password."""
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "table"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, str):
        return f"the text {value!r}" if _SHORT.fullmatch(value) else "a text"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    return f"the date or time {value}"


def is_reference(value: object) -> bool:
    """Return whether a value looks like `module:object`."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def is_integer(value: object) -> bool:
    """Return whether a value is an integer; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_texts(value: object) -> bool:
    """Return whether a value is a list of texts, with one at least."""
    return isinstance(value, list) and bool(value) and all(isinstance(e, str) for e in value)


def seconds_of(value: Any) -> float | None:
    """Return the seconds of a duration: a number, or a text such as `5s`; else None."""
    if is_number(value):
        return float(value) if value >= 0 else None
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else float(found[1]) * _UNITS[found[2]]


def _checked(
    accepts: Callable[[Any], bool],
    expected: str,
    schema: dict[str, Any],
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the type of a field that accepts such values."""

    def validate(value: Any) -> Any:
        if not accepts(value):
            raise wrong(expected, value)
        return value if convert is None else convert(value)

    return Annotated[Any, PlainValidator(validate), WithJsonSchema(schema)]


def _table_of(
    accepts: Callable[[Any], bool],
    expected: str,
    schema: dict[str, Any],
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the type of a field that is a table of such values."""

    def validate(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong(f"a table of {expected}", value)
        for name, each in value.items():
            if not accepts(each):
                raise wrong_within((name,), f"{name}: expected {expected}, found {kind_of(each)}")
        return value if convert is None else convert(value)

    whole = {"type": "object", "additionalProperties": schema}
    return Annotated[Any, PlainValidator(validate), WithJsonSchema(whole)]


def one_of(words: Sequence[str]) -> Any:
    """Return the type of a field that is one of these words."""
    known = list(words)
    return _checked(
        lambda value: isinstance(value, str) and value in known,
        f"one of {', '.join(repr(word) for word in known)}",
        {"enum": known},
    )


def _is_table_of(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(of, value.values()))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or is_number(value)


def _is_json(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_json, value.values() if isinstance(value, dict) else value))
    return _is_scalar(value)


def option_text(value: Any) -> str:
    """Return the text of an option, as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _option_texts(value: dict[str, Any]) -> dict[str, str]:
    return {name: option_text(each) for name, each in value.items()}


_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_TEXTS_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_REFERENCE_SCHEMA = {"type": "string", "pattern": f"^{_REFERENCE.pattern}$"}
_SCALAR_SCHEMA = {"type": ["string", "number", "boolean"]}
_DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(_UNITS)})$"},
    ]
}

Text = _checked(lambda v: isinstance(v, str) and v != "", "a non-empty text", _TEXT_SCHEMA)
AnyText = _checked(lambda v: isinstance(v, str), "a text", {"type": "string"})
Texts = _checked(is_texts, "a list of texts", _TEXTS_SCHEMA, tuple)
TextOrTexts = _checked(
    lambda v: is_texts(v) or (isinstance(v, str) and v != ""),
    "a text or a list of texts",
    {"anyOf": [_TEXT_SCHEMA, _TEXTS_SCHEMA]},
    lambda v: tuple(v) if isinstance(v, list) else v,
)
Flag = _checked(lambda v: isinstance(v, bool), "true or false", {"type": "boolean"})
Integer = _checked(is_integer, "an integer", {"type": "integer"})
Count = _checked(
    lambda v: is_integer(v) and v >= 1,
    "an integer of at least 1",
    {"type": "integer", "minimum": 1},
)
Address = _checked(
    lambda v: is_integer(v) or (isinstance(v, str) and v != ""),
    'a port, or an address such as "127.0.0.1:9108"',
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, _TEXT_SCHEMA]},
)
Number = _checked(is_number, "a number", {"type": "number"}, float)
Duration = _checked(
    lambda v: seconds_of(v) is not None,
    'a duration such as "5s" (ms, s, min, h or d), or a number of seconds',
    _DURATION_SCHEMA,
    seconds_of,
)
Reference = _checked(is_reference, '"module:object"', _REFERENCE_SCHEMA)
Options = _table_of(_is_scalar, "a text, a number, true or false", _SCALAR_SCHEMA, _option_texts)
Values = _table_of(_is_scalar, "a text, a number, true or false", _SCALAR_SCHEMA)
TextTable = _table_of(lambda v: isinstance(v, str), "a text", {"type": "string"})
Columns = _checked(
    lambda v: is_texts(v) or (bool(v) and _is_table_of(v, lambda each: isinstance(each, str))),
    "a list of texts, or a table of texts",
    {"anyOf": [_TEXTS_SCHEMA, {"type": "object", "additionalProperties": {"type": "string"}}]},
)
Json = _checked(
    _is_json,
    "a text, a number, a list or a table of them (no dates)",
    {"type": ["string", "number", "boolean", "array", "object"]},
)
Bounds = _checked(
    lambda v: is_texts(v) or (isinstance(v, list) and bool(v) and all(map(is_integer, v))),
    "a list of integers, or a list of texts",
    {"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 1},
    tuple,
)
Directory = _checked(
    lambda v: is_reference(v) or (bool(v) and _is_table_of(v, is_integer)),
    'a table of entities and partition numbers, or "module:function"',
    {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, _REFERENCE_SCHEMA]},
)
Statements = _checked(
    lambda v: is_texts(v) or (isinstance(v, str) and v.strip() != ""),
    "a statement, or a list of statements",
    {"anyOf": [_TEXT_SCHEMA, _TEXTS_SCHEMA]},
    lambda v: tuple(v) if isinstance(v, list) else (v,),
)
