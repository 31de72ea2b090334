"""Values that Arrow can hold and Python cannot: how they are found and reported.

- A timestamp of the year 9999 has no Python value in a zone east of Greenwich; nor has text that is
  not UTF-8.
- A column whose values are certain to convert is not converted: only its bounds are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.events.encoding import moments
from semel.events.encoding.tagged_values import ArrowValue

if TYPE_CHECKING:
    from semel.events.rows import Rows

DAY_S = 86_400
FIRST_S = -62_135_596_800 + 2 * DAY_S
LAST_S = 253_402_300_799 - 2 * DAY_S
"""Two days within the years 1 and 9999: inside them every zone has a Python value."""

UNITS = {"s": 1, "ms": 10**3, "us": 10**6}

CANNOT = (OverflowError, ValueError)
"""What Arrow raises for a value that Python cannot hold; not UTF-8 is a ValueError too."""


def arrow_value(array: pa.Array) -> ArrowValue:
    """Return the value of an array of one value, as Arrow holds it."""
    out = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], names=[""])
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return ArrowValue(_text(array), out.getvalue().to_pybytes())


def _text(array: pa.Array) -> str:
    """Return the most readable text of a value."""
    kind = array.type
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            wide = array.cast(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
            return str(wide[0].as_py().decode(errors="backslashreplace"))
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return str(moments.texts(array)[0].as_py())
        return str(array.cast(pa.string())[0].as_py())
    except (pa.ArrowException, *CANNOT):
        pass
    try:
        return " ".join(str(array.to_string()).split())
    except (pa.ArrowException, *CANNOT):
        return f"a value of type {kind}"


def require_values(rows: Rows) -> None:
    """Raise `ConfigurationError` for the first row with a value that Python cannot hold."""
    if not all(map(_surely, rows.batch.columns)):
        try:
            rows.batch.to_pylist()
        except CANNOT as error:
            raise refusal(rows, "; nothing of these rows was sent") from error


def refusal(rows: Rows, state: str = "") -> ConfigurationError:
    """Return the error that names the first value that cannot be converted, and its event."""
    for at in range(len(rows)):
        for name, array in zip(rows.batch.schema.names, rows.batch.columns, strict=True):
            try:
                array[at].as_py()
            except CANNOT as error:
                return ConfigurationError(
                    f"column {name!r} ({array.type}) of event {_named(rows, at)} holds a value "
                    f"that Python cannot hold ({type(error).__name__}: {error}). Cast the column "
                    "(for example to text or binary), filter the row out before semel.deliver, "
                    f"or use a sink that takes Arrow batches{state}"
                )
    raise AssertionError("some value could not be made")


def _named(rows: Rows, at: int) -> str:
    try:
        return f"{rows.id(at)} of {rows.scope(at)!r}"
    except CANNOT:
        return f"at position {int(rows.positions[at])}"


def _surely(array: pa.Array) -> bool:
    """Return whether Python can certainly hold every value of a column."""
    kind = array.type
    if _is_plain(kind):
        return True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _is_valid(array)
    if pa.types.is_date32(kind):
        return _is_within(array.cast(pa.int32()), FIRST_S // DAY_S, LAST_S // DAY_S)
    if pa.types.is_timestamp(kind) and kind.unit in UNITS:
        unit = UNITS[kind.unit]
        return _is_within(array.cast(pa.int64()), FIRST_S * unit, LAST_S * unit)
    inner = _inner(array)
    return inner is not None and all(map(_surely, inner))


def _inner(array: pa.Array) -> list[pa.Array] | None:
    """Return the child arrays of a struct or a list; None for any other type."""
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return [array.flatten()]
    return None


def _is_plain(kind: pa.DataType) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_number or is_bytes or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_within(numbers: pa.Array, least: int, greatest: int) -> bool:
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (found["min"] >= least and found["max"] <= greatest)
