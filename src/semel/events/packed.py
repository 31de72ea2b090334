"""Large sets of ids as a compressed Arrow stream in one JSON text: `{"packed": "..."}`.

- A set of ids by scope has a list for each scope, so a single text in its place is never one.
- What is packed is read back as the same columns; people see it unpacked (`unpacked`).
- Several streams in one text, with spaces between them, are a set that nobody has united yet.
"""

from __future__ import annotations

import base64
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
    """Whether this JSON object is a packed set."""
    return value.keys() == {PACKED} and isinstance(value[PACKED], str)


def pack(names: pa.Array, borders: NDArray[np.int64], firsts: pa.Array, lasts: pa.Array) -> bytes:
    """The JSON text of columns; numbers are kept as steps, which are small and repeat."""
    columns = [names, _listed(borders, _steps(firsts))]
    if lasts is not firsts:
        beyond = lasts.to_numpy().view(np.uint64) - firsts.to_numpy().view(np.uint64)
        columns.append(_listed(borders, pa.array(beyond)))
    batch = pa.RecordBatch.from_arrays(columns, names=["scope", "first", "more"][: len(columns)])
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, batch.schema, options=_OPTIONS) as stream:
        stream.write_batch(batch)
    return _OPENED + base64.b64encode(written.getvalue()) + _CLOSED


def joined(packed: Iterable[bytes]) -> bytes:
    """Packed sets as one, without a look into them."""
    return _OPENED + b" ".join(each[len(_OPENED) : -len(_CLOSED)] for each in packed) + _CLOSED


def unpack(value: Mapping[str, Any]) -> list[Columns]:
    """The columns of a packed set, of each stream its own. Raises ValueError for what is none."""
    return [_unpack(text) for text in value[PACKED].split(" ")]


def _unpack(text: str) -> Columns:
    with pa.ipc.open_stream(base64.b64decode(text, validate=True)) as stream:
        batch = stream.read_next_batch()
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


def _steps(firsts: pa.Array) -> pa.Array:
    """Integers as the step from the one before, modulo 2**64; texts as they are."""
    if not pa.types.is_int64(firsts.type):
        return firsts
    words = firsts.to_numpy().view(np.uint64)
    steps = words.copy()
    steps[1:] -= words[:-1]
    return pa.array(steps.view(np.int64))


def _listed(borders: NDArray[np.int64], values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(borders.astype(np.int32)), values)
