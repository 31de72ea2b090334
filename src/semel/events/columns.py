"""Columns for identity and order: lookup by path, text form, ids and sort keys.

- An id is an int64 or a text; any other value is converted to one of them without loss, or refused.
- A refusal names the column, the problem and what to do.
- Nothing here processes single rows in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return the column at `path`: a name, or a dotted path into structs such as `window.start`."""
    found = [at for at, name in enumerate(batch.schema.names) if name == path]
    if len(found) > 1:
        raise ConfigurationError(f"{len(found)} columns are named {path!r}; rename one of them")
    if found:
        return _decoded(batch.column(found[0]))
    outer, _, inner = path.rpartition(".")
    if not outer:
        raise ConfigurationError(
            f"there is no column {path!r}; the query has {', '.join(batch.schema.names)}"
        )
    parent = column(batch, outer)
    if not pa.types.is_struct(parent.type) or parent.type.get_field_index(inner) < 0:
        raise ConfigurationError(
            f"there is no field {inner!r} in {outer!r}, which is {parent.type}"
        )
    return _decoded(pc.struct_field(parent, parent.type.get_field_index(inner)))


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with Arrow's views as plain strings and binaries, which Arrow can filter."""
    types = [_without_views(kind) for kind in batch.schema.types]
    if types == batch.schema.types:
        return batch
    schema = pa.schema(
        [field.with_type(kind) for field, kind in zip(batch.schema, types, strict=True)]
    )
    return batch.cast(schema)


def has_views(schema: pa.Schema) -> bool:
    """Whether a column, or a field within one, is one of Arrow's views."""
    return any(_without_views(kind) != kind for kind in schema.types)


def put_together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches, which all have one schema."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    if not schema.names:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    arrays = [
        pa.concat_arrays([batch.column(at) for batch in batches]) for at in range(len(schema))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def required(
    batch: pa.RecordBatch, path: str, partition: str, role: str, first: int = 0
) -> pa.Array:
    """Return a column that an event's identity needs. Refuse a null, or a text that is not UTF-8;
    `first` is the position of the first row in its partition.
    """
    array = column(batch, path)
    if array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise ConfigurationError(
            f"{role} column {path!r} is null (row {row} of a batch of partition {partition!r}); "
            f"filter such rows out, or coalesce({path}, ...) before delivering"
        )
    if is_text(array.type) and (row := _not_utf8(array)) is not None:
        raise ConfigurationError(
            f"{role} column {path!r} is a text that is not UTF-8, {_raw(array, row)!r} (the event "
            f"at position {first + row} of partition {partition!r}); filter such rows out, or use "
            f"hex({path}) or base64({path}) before delivering"
        )
    return array


def _not_utf8(array: pa.Array) -> int | None:
    """Return the first row whose text is not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row in range(len(array)):
            try:
                if array[row].is_valid:
                    _raw(array, row).decode()
            except UnicodeDecodeError:
                return row
        raise
    return None


def _raw(array: pa.Array, row: int) -> bytes:
    wide = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
    text: bytes = array.slice(row, 1).cast(wide)[0].as_py()
    return text


def encoded_texts(array: pa.Array, path: str) -> tuple[pa.Array, pa.Array]:
    """Return an entity's codes and the text form of each code; an entity is a string, an integer or
    a boolean.
    """
    kind, types = array.type, pa.types
    plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)
    if not (plain or is_text(kind)):
        raise ConfigurationError(
            f"entity column {path!r} is {kind}; an entity is a string, an integer or a boolean: "
            f"cast({path} as string)"
        )
    encoded = array.dictionary_encode()
    return encoded.indices, encoded.dictionary.cast(pa.string())


def ids(array: pa.Array, path: str) -> pa.Array:
    """Return the event ids in a column, as int64 or string."""
    kind = array.type
    try:
        if pa.types.is_null(kind) or pa.types.is_integer(kind):
            return array.cast(pa.int64())
        if pa.types.is_decimal(kind) and kind.scale == 0:
            return array.cast(pa.int64())
        if pa.types.is_timestamp(kind):
            return array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        if pa.types.is_date(kind):
            return array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"event id column {path!r} holds a {kind} that does not fit a 64-bit id ({error}); "
            f"cast({path} as string)"
        ) from error
    if is_text(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        raise ConfigurationError(
            f"event id column {path!r} is {kind}, and floats that should be equal may "
            f"differ: use an integer, or cast({path} as string)"
        )
    raise ConfigurationError(
        f"event id column {path!r} is {kind}; an id is an integer, a text, a date or a timestamp: "
        f"cast({path} as string)"
    )


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Return ids of several parts as texts separated by commas; a comma or a backslash within a
    part is escaped with a backslash. A single part is returned unchanged.
    """
    if len(parts) == 1:
        return parts[0]
    texts_ = [
        _escape_commas(part) if is_text(part.type) else part.cast(pa.string()) for part in parts
    ]
    return pc.binary_join_element_wise(*texts_, ",")


def _escape_commas(part: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(part, r"[,\\]")).as_py():
        return part
    return pc.replace_substring(pc.replace_substring(part, "\\", "\\\\"), ",", "\\,")


def sortable(array: pa.Array, path: str) -> pa.Array:
    """Return the column as values that Arrow compares in the partition's order; nulls stay."""
    kind = array.type
    types = pa.types
    if types.is_floating(kind):
        return ordered_floats(array)
    if types.is_uint64(kind) or types.is_decimal(kind):
        return array
    if types.is_date32(kind) or types.is_time32(kind):
        return array.cast(pa.int32()).cast(pa.int64())
    if is_text(kind):
        return _utf8(array, path)
    if is_bytes(kind):
        return array.cast(pa.binary())
    timed = types.is_temporal(kind) and not types.is_interval(kind)
    if timed or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
        return array.cast(pa.int64())
    raise ConfigurationError(
        f"column {path!r} is {kind}, which has no order; name a field of it, or "
        f"cast({path} as string)"
    )


def _utf8(array: pa.Array, path: str) -> pa.Array:
    """Return a text column as strings, with nulls. Bytes that are not UTF-8 cannot be recorded."""
    if (row := _not_utf8(array)) is not None:
        raise ConfigurationError(
            f"order column {path!r} is a text that is not UTF-8, {_raw(array, row)!r}; filter such "
            f"rows out, or use hex({path}) or base64({path}) before delivering"
        )
    return array.cast(pa.string())


def ordered_floats(array: pa.Array) -> pa.Array:
    """Return floats as int64 in Spark's order: -0.0 is 0.0, NaN is the greatest."""
    valid = None if array.null_count == 0 else array.is_null().to_numpy(zero_copy_only=False)
    values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return pa.array(bits ^ ((bits >> np.int64(63)) & SIGN), mask=valid)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's string types."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's binary types."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """Where a row sorts after its predecessor, equal to it, and before it."""

    rises: NDArray[np.bool_]
    same: NDArray[np.bool_]
    falls: NDArray[np.bool_]


def steps(columns: Sequence[pa.Array], carried: Sequence[pa.Array] | None = None) -> Steps:
    """Compare every row with the one before it, column by column, nulls first. The first row is
    compared with the row carried over from before this batch, if there is one.
    """
    count = len(columns[0]) if carried is not None else max(len(columns[0]) - 1, 0)
    rises = np.zeros(count, np.bool_)
    same = np.ones(count, np.bool_)
    for at, array in enumerate(columns):
        joined = array if carried is None else pa.concat_arrays([carried[at], array])
        less, equal = _compared(joined)
        rises |= same & less
        same &= equal
        if not same.any():
            break  # later columns only break ties
    return Steps(rises, same, ~(rises | same))


def copied(columns: Sequence[pa.Array], row: int) -> list[pa.Array]:
    """Return a copy of one row of columns, which does not keep the rest of them in memory."""
    at = pa.array([row], pa.int64())
    return [array.take(at) for array in columns]


def _compared(array: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where a row is less than the next, and where they are equal."""
    if pa.types.is_int64(array.type) and not array.null_count:
        numbers = array.to_numpy()
        return numbers[:-1] < numbers[1:], numbers[:-1] == numbers[1:]
    before, later = array[:-1], array[1:]
    less, equal = _mask(pc.less(before, later)), _mask(pc.equal(before, later))
    if array.null_count:
        empty_before, empty_later = _mask(before.is_null()), _mask(later.is_null())
        less |= empty_before & ~empty_later
        equal |= empty_before & empty_later
    return less, equal


def _mask(array: pa.Array) -> NDArray[np.bool_]:
    made: NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return made if made.flags.writeable else made.copy()


def _without_views(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    inner = [kind.field(at) for at in range(kind.num_fields)] if types.is_nested(kind) else []
    made = [each.with_type(_without_views(each.type)) for each in inner]
    if made == inner:
        return kind
    rebuild = {
        pa.lib.Type_STRUCT: lambda: pa.struct(made),
        pa.lib.Type_LIST: lambda: pa.list_(made[0]),
        pa.lib.Type_LARGE_LIST: lambda: pa.large_list(made[0]),
        pa.lib.Type_FIXED_SIZE_LIST: lambda: pa.list_(made[0], kind.list_size),
        pa.lib.Type_MAP: lambda: pa.map_(made[0].type.field(0), made[0].type.field(1)),
    }
    return rebuild[kind.id]() if kind.id in rebuild else kind


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
