"""Large sets of ids as a compressed Arrow stream in one JSON text: `{"packed": "..."}`.

- A set of ids by scope has a list for each scope, so an object whose value is a text is not one.
- Packed sets are read back as the same columns; they are displayed unpacked (`unpacked`).
- Several streams in one text, separated by spaces, are a set that has not been united yet.
- A stream is preceded by its CRC-32 (`1a2b3c4d:...`), so that a damaged one is not read as other
  ids. Version 0.1 wrote none: such a stream is validated as a whole before it is used.
"""

from __future__ import annotations

import base64
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

Columns = tuple[pa.Array, "NDArray[np.int64]", pa.Array, pa.Array]

PACKED_MIN = 1024
"""From so many rows on: digit by digit they would cost more than delivering them."""

PACKED = "packed"
_OPENED, _CLOSED = b'{"%s":"' % PACKED.encode(), b'"}'
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def is_packed(value: Mapping[str, Any]) -> bool:
    """Return whether this JSON object is a packed set."""
    return value.keys() == {PACKED} and isinstance(value[PACKED], str)


def pack(names: pa.Array, borders: NDArray[np.int64], firsts: pa.Array, lasts: pa.Array) -> bytes:
    """Return the JSON text of columns; integers are stored as steps, which are small and repeat."""
    columns = [names, _listed(borders, _steps(firsts))]
    if lasts is not firsts:
        beyond = lasts.to_numpy().view(np.uint64) - firsts.to_numpy().view(np.uint64)
        columns.append(_listed(borders, pa.array(beyond)))
    batch = pa.RecordBatch.from_arrays(columns, names=["scope", "first", "more"][: len(columns)])
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, batch.schema, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    content = written.getvalue()
    check = b"%08x:" % zlib.crc32(content)
    return _OPENED + check + base64.b64encode(content) + _CLOSED


def joined(packed: Iterable[bytes]) -> bytes:
    """Join packed sets into one, without reading them."""
    return _OPENED + b" ".join(each[len(_OPENED) : -len(_CLOSED)] for each in packed) + _CLOSED


def unpack(value: Mapping[str, Any]) -> list[Columns]:
    """Return the columns of each stream of a packed set. Raises ValueError if it is not one."""
    try:
        return [_unpack(text) for text in value[PACKED].split(" ")]
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OSError,
        pa.ArrowException,
    ) as error:
        why = type(error).__name__
        raise ValueError(f"a packed set of ids is damaged ({why})") from None


def _unpack(text: str) -> Columns:
    check, colon, packed = text.rpartition(":")
    content = base64.b64decode(packed, validate=True)
    if colon and check != f"{zlib.crc32(content):08x}":
        raise ValueError("the checksum does not match")
    with pa.ipc.open_stream(content) as stream:
        batch = stream.read_next_batch()
    if not colon:
        _require_whole(batch)
    listed = batch.column("first")
    borders = listed.offsets.to_numpy().astype(np.int64)
    firsts = listed.values
    if pa.types.is_int64(firsts.type):
        firsts = pa.array(np.cumsum(firsts.to_numpy(), dtype=np.int64))
    lasts = firsts
    if "more" in batch.schema.names:
        more = batch.column("more").values.to_numpy()
        lasts = pa.array((firsts.to_numpy().view(np.uint64) + more).view(np.int64))
    return batch.column("scope"), borders, firsts, lasts


def _require_whole(batch: pa.RecordBatch) -> None:
    """Require that `pack` may have written this stream, which has no checksum."""
    batch.validate(full=True)
    scopes, firsts = batch.column("scope"), batch.column("first")
    lists = [firsts, *([batch.column("more")] if "more" in batch.schema.names else [])]
    numbers = pa.types.is_int64(firsts.type.value_type)
    kinds = [pa.string(), pa.list_(pa.int64() if numbers else pa.string()), pa.list_(pa.uint64())]
    if [each.type for each in batch.columns] != kinds[: len(batch.columns)]:
        raise ValueError("the columns are others")
    if any(each.null_count or each.values.null_count for each in lists) or scopes.null_count:
        raise ValueError("a value is missing")
    names = scopes.to_pylist()
    if not names or any(one >= other for one, other in pairwise(names)):
        raise ValueError("scopes are not sorted")
    if any(not each.equals(firsts.offsets) for each in [one.offsets for one in lists]):
        raise ValueError("the columns have other borders")
    if (np.diff(firsts.offsets.to_numpy()) < 1).any():
        raise ValueError("a scope has no ids")


def _steps(firsts: pa.Array) -> pa.Array:
    """Return integers as the step from the previous one, modulo 2**64; texts unchanged."""
    if not pa.types.is_int64(firsts.type):
        return firsts
    words = firsts.to_numpy().view(np.uint64)
    steps = words.copy()
    steps[1:] -= words[:-1]
    return pa.array(steps.view(np.int64))


def _listed(borders: NDArray[np.int64], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(borders.astype(np.int32)), values)
