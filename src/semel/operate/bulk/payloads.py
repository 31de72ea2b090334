"""The payload of a parked event, edited by a person: each column has to fit its type.

Always true:
- a column whose JSON is as it was exported is returned as the ledger has it;
- an edited column can be sent: it converts to the event's own Arrow type, and back to the same.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.events.encoding import CANNOT, ArrowValue, decode_value, encode_value, kept_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.ledger import ParkedRow

_UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError),
    RecursionError,
)
_SHOWN = 80


def schema_of(row: ParkedRow) -> pa.Schema | None:
    """Return the schema that a parked event came with; None if it has no payload yet."""
    if row.schema is None:
        return None
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(row.schema)))


def columns_of(row: ParkedRow) -> dict[str, str] | None:
    """Return the type of each column of a parked event."""
    schema = schema_of(row)
    return None if schema is None else {each.name: str(each.type) for each in schema}


def edited_value(row: ParkedRow, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the value of a parked event with the columns of an edited payload; None if nothing was
    edited. Raises ValueError that names the column.
    """
    schema, known = schema_of(row), row.value
    if schema is None or known is None:
        raise ValueError("it has no payload yet")
    for name in payload:
        if name not in known:
            raise ValueError(f"it has no column {name!r}; it has {', '.join(schema.names)}")
    missing = [name for name in schema.names if name not in payload]
    if missing:
        raise ValueError(
            f"column {missing[0]!r} is missing; write null for a value that is unknown"
        )
    made: dict[str, Any] = {}
    edited = False
    for column in schema:
        try:
            decoded = decode_value(payload[column.name])
            written = encode_value(decoded)
        except _UNREADABLE as error:
            raise ValueError(
                f"column {column.name!r} cannot be read ({type(error).__name__}): "
                f"{str(payload[column.name])[:_SHOWN]}"
            ) from None
        if written == encode_value(known[column.name]):
            made[column.name] = known[column.name]
        else:
            made[column.name] = kept = _converted(decoded, column)
            edited |= encode_value(kept) != encode_value(known[column.name])
    return made if edited else None


def _converted(value: Any, column: pa.Field) -> Any:
    """Return an edited value as the ledger keeps it. Raises ValueError if it does not fit."""
    wrong = f"column {column.name!r} is {column.type}, and {_text(value)} does not fit"
    try:
        if isinstance(value, ArrowValue):
            array = value.array()
            if array.type != column.type or len(array) != 1:
                raise ValueError(wrong)
            return value
        _require_members(value, column.type, wrong)
        array = pa.array([value], column.type)
        kept = kept_value(array)
    except (pa.ArrowException, *CANNOT, TypeError) as error:
        detail = "" if str(error).startswith("column ") else f" ({error})"
        raise ValueError(wrong + detail[:200]) from None
    if array.null_count and not column.nullable:
        raise ValueError(f"column {column.name!r} must not be null")
    return kept


def _require_members(value: Any, kind: pa.DataType, wrong: str) -> None:
    """Refuse what Arrow would drop or fill in silently: other members of a struct, and text or
    numbers of another kind. Raises ValueError.
    """
    types = pa.types
    if value is None:
        return
    if types.is_struct(kind):
        names = [each.name for each in kind]
        if not isinstance(value, dict) or set(value) != set(names):
            raise ValueError(f"{wrong}: its members are {', '.join(names)}")
        for each in kind:
            _require_members(value[each.name], each.type, wrong)
    elif types.is_map(kind):
        entries = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(entries, list) or not all(
            isinstance(each, (list, tuple)) and len(each) == 2 for each in entries
        ):
            raise ValueError(f"{wrong}: a map is a list of pairs")
        for name, each in entries:
            _require_members(name, kind.key_type, wrong)
            _require_members(each, kind.item_type, wrong)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if not isinstance(value, (list, tuple)):
            raise ValueError(wrong)
        for each in value:
            _require_members(each, kind.value_type, wrong)
    else:
        _require_plain(value, kind, wrong)


def _require_plain(value: Any, kind: pa.DataType, wrong: str) -> None:
    """Refuse a value without members that Arrow would take for another. Raises ValueError."""
    types = pa.types
    if isinstance(value, bool) is not types.is_boolean(kind):
        raise ValueError(wrong)
    if types.is_integer(kind) and not isinstance(value, int):
        raise ValueError(wrong)
    if isinstance(value, str) and (types.is_binary(kind) or types.is_large_binary(kind)):
        raise ValueError(f'{wrong}; write {{"$bytes": BASE64}}')


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
