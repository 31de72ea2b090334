"""Which partition an event belongs to, and the one total order of a partition's events.

- A bucket depends only on the entity's text form and N: integer 42 and text '42' share one.
- It equals Spark's `pmod(xxhash64(cast(entity as string)), N)`, so no row needs Python for it.
- Rows that tie in the order are identical, and interchangeable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from semel.errors import ConfigurationError
from semel.events import columns
from semel.events.ids.id_columns import Labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semel.events.identity import Identity

SEED = 42


def bucket(entities: pa.Array, n: int) -> NDArray[np.int64]:
    """Return the bucket of each entity among `n`; entities are strings, integers or booleans."""
    if n < 1:
        raise ValueError(f"the number of buckets must be at least 1, got {n}")
    if entities.null_count:
        raise ConfigurationError("an entity is null; filter such rows out before delivering")
    plain = entities.dictionary_decode() if pa.types.is_dictionary(entities.type) else entities
    labels = Labels.of(plain, "entity")
    hashed = [xxhash.xxh64_intdigest(text.encode(), SEED) for text in labels.texts]
    buckets: NDArray[np.int64] = np.array(hashed, np.uint64).view(np.int64) % np.int64(n)
    placed: NDArray[np.int64] = buckets[labels.codes]
    return placed


def bucket_name(number: int, buckets: int) -> str:
    """Return the name of a bucket's partition, which includes the number of buckets: `3of8`."""
    return f"{number}of{buckets}"


def sort(batch: pa.RecordBatch, identity: Identity) -> pa.RecordBatch:
    """Sort a batch in partition order without Spark: nulls first, text by bytes, NaN last."""
    batch = columns.without_views(batch)
    keys: list[pa.Array] = []
    for path in identity.order_columns(batch.schema):
        keys.extend(_keys(columns.column(batch, path), path))
    names = [str(at) for at in range(len(keys))]
    ascending = [(name, "ascending") for name in names]
    order = pc.sort_indices(pa.table(keys, names=names), sort_keys=ascending)
    return batch.take(order)


def _keys(array: pa.Array, path: str) -> list[pa.Array]:
    """Return a column as columns that Arrow can sort by."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(array.type):
        keys = [array.is_valid().cast(pa.int64())]
        for field, inner in zip(array.type, array.flatten(), strict=True):
            keys.extend(_keys(inner, f"{path}.{field.name}"))
        return keys
    if pa.types.is_nested(array.type):
        return [_ranks(array)]
    values = columns.sortable(array, path)
    return [values.is_valid().cast(pa.int64()), values] if values.null_count else [values]


def _ranks(array: pa.Array) -> pa.Array:
    """Return the rank of each list within the batch; not on the hot path, so row by row."""
    keys = [_comparable(value) for value in array.to_pylist()]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    return pa.array([places[key] for key in keys], pa.int64())


def _comparable(value: Any) -> tuple[Any, ...]:
    """Return a form in which any two values of a column compare: nulls first, NaN last."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return (0, *(_comparable(each) for each in value.values()))
    if isinstance(value, (list, tuple)):
        return (0, *(_comparable(each) for each in value))
    if isinstance(value, float):
        return (1, 0.0) if value != value else (0, value)  # noqa: PLR0124 - true only for NaN
    return (0, value)
