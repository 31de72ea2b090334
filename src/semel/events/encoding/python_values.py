"""Values that Arrow can hold and Python cannot: how they are found and reported.

A timestamp of the year 9999 has no Python value in a zone east of Greenwich; nor has text that is
not UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events.encoding.moments import moment_texts
from semel.events.encoding.tagged_values import ArrowValue, encode_value

if TYPE_CHECKING:
    from semel.events.rows import Rows

CANNOT = (OverflowError, ValueError)
"""What Arrow raises for a value that Python cannot hold; not UTF-8 is a ValueError too."""


def kept_value(array: pa.Array) -> Any:
    """Return the value of an array of one value as the ledger keeps it: as Python has it, or as
    Arrow has it if Python cannot hold it.
    """
    try:
        value = array[0].as_py()
        encode_value(value)
        pa.array([value], array.type)  # a value that Python holds may not convert back to Arrow
    except (pa.ArrowException, *CANNOT, TypeError):
        return arrow_value(array)
    return value


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
            return str(moment_texts(array)[0].as_py())
        return str(array.cast(pa.string())[0].as_py())
    except (pa.ArrowException, *CANNOT):
        pass
    try:
        return " ".join(str(array.to_string()).split())
    except (pa.ArrowException, *CANNOT):
        return f"a value of type {kind}"


def value_error(rows: Rows, state: str = "") -> ConfigurationError:
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
