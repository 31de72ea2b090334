"""A running hash of the content of rows in their order: the same rows have the same digest.

- Each column has its own streams for nulls (a byte per row), lengths and values, and so has each
  child of a nested column. So batch borders, slices, dictionaries and the bytes under a null do not
  matter; (5, null) differs from (null, 5), ("ab", "c") from ("a", "bc"), [] from null and [null].
- Values that are equal in Spark are equal here: all NaN are one value, -0.0 is 0.0, a timestamp is
  its instant, not its zone.
- Names and canonical types are part of the digest: a string is a string however Arrow stores it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import xxhash

from semel.errors import ConfigurationError, plain_text
from semel.events import columns, versions
from semel.events.encoding.canonical_json import ascii_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHOWN_COLUMNS_MAX = 1_000

_ONES = np.ones(65_536, np.uint8).data


class Digest:
    """The running hash of rows of one schema; batches are fed in order."""

    __slots__ = ("_count", "_form", "_has_views", "_schema", "_streams")

    def __init__(self, schema: pa.Schema) -> None:
        """Raises ConfigurationError naming the column that has no digest."""
        self._schema = schema
        self._has_views = columns.has_views(schema)
        self._form = _schema_form(schema)
        self._streams = [_stream(each.type) for each in schema]
        self._count = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next rows. Raises ConfigurationError if their columns differ."""
        known = batch.schema is self._schema or batch.schema.equals(self._schema)
        if not known and _schema_form(batch.schema) != self._form:
            raise ConfigurationError(
                f"a batch has the columns {batch.schema.names} of types {batch.schema.types}, "
                f"and those before it had {self._schema.names} of {self._schema.types}; one "
                f"minibatch has one schema"
            )
        if self._has_views or not known:
            batch = columns.without_views(batch)
        for stream, array in zip(self._streams, batch.columns, strict=True):
            stream.update(array)
        self._count += batch.num_rows

    def hexdigest(self) -> str:
        """Return the digest of all rows so far; more may follow."""
        whole = xxhash.xxh3_128(self._form)
        whole.update(self._count.to_bytes(8, "little"))
        for stream in self._streams:
            stream.finish(whole)
        return str(whole.hexdigest())

    def copy(self) -> Digest:
        """Return an independent digest of the same rows."""
        twin = copy(self)
        twin._streams = [stream.copy() for stream in self._streams]  # noqa: SLF001 - its own copy
        return twin

    def ahead(self, batch: pa.RecordBatch) -> Digest:
        """Return the digest with the next rows; this one stays as it is."""
        twin = self.copy()
        twin.update(batch)
        return twin


def digest(batch: pa.RecordBatch) -> str:
    """Return the digest of one batch."""
    whole = Digest(batch.schema)
    whole.update(batch)
    return whole.hexdigest()


@dataclass(slots=True, eq=False)
class _Stream:
    """The hashes of one column, or of one child of it."""

    feed: Callable[[_Stream, pa.Array], None]
    children: list[_Stream]
    nulls: Any = field(default_factory=xxhash.xxh3_128)
    lengths: Any = field(default_factory=xxhash.xxh3_128)
    values: Any = field(default_factory=xxhash.xxh3_128)

    def update(self, array: pa.Array) -> None:
        if kinds.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.null_count:
            valid = array.is_valid()
            self.nulls.update(valid.cast(pa.uint8()).to_numpy())
            array = array.filter(valid)
        else:
            for start in range(0, len(array), len(_ONES)):
                self.nulls.update(_ONES[: len(array) - start])
        if len(array):
            self.feed(self, array)

    def finish(self, whole: Any) -> None:
        whole.update(self.nulls.digest())
        whole.update(self.lengths.digest())
        whole.update(self.values.digest())
        for child in self.children:
            child.finish(whole)

    def copy(self) -> _Stream:
        children = [child.copy() for child in self.children]
        hashes = self.nulls.copy(), self.lengths.copy(), self.values.copy()
        return _Stream(self.feed, children, *hashes)


def _stream(kind: pa.DataType) -> _Stream:
    kind = _plain(kind)
    feed = next(feed for holds, feed in _FEEDS if holds(kind))
    return _Stream(feed, [_stream(child) for _, child in _inner(kind)])


def _feed_nothing(stream: _Stream, array: pa.Array) -> None:
    """A column of nulls has no values."""


def _feed_booleans(stream: _Stream, array: pa.Array) -> None:
    stream.values.update(array.cast(pa.uint8()).to_numpy())


def _feed_floats(stream: _Stream, array: pa.Array) -> None:
    values = array.to_numpy() + array.type.to_pandas_dtype()(0)  # -0.0 + 0.0 is 0.0
    wild = np.isnan(values)
    if wild.any():
        values[wild] = np.nan
    stream.values.update(values)


def _feed_fixed(stream: _Stream, array: pa.Array) -> None:
    width = array.type.bit_width // 8
    start = array.offset * width
    stream.values.update(memoryview(array.buffers()[1])[start : start + len(array) * width])


def _feed_texts(stream: _Stream, array: pa.Array) -> None:
    large = kinds.is_large_string(array.type) or kinds.is_large_binary(array.type)
    _, where, content = array.buffers()
    offsets = np.frombuffer(where, np.int64 if large else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    stream.lengths.update(np.diff(offsets).astype(np.int64))
    if content is not None:
        stream.values.update(memoryview(content)[offsets[0] : offsets[-1]])


def _feed_lists(stream: _Stream, array: pa.Array) -> None:
    stream.lengths.update(pc.list_value_length(array).cast(pa.int64()).to_numpy())
    stream.children[0].update(array.flatten())


def _feed_fixed_lists(stream: _Stream, array: pa.Array) -> None:
    stream.children[0].update(array.flatten())


def _feed_maps(stream: _Stream, array: pa.Array) -> None:
    offsets = array.offsets.to_numpy()
    stream.lengths.update(np.diff(offsets).astype(np.int64))
    start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    stream.children[0].update(array.keys.slice(start, count))
    stream.children[1].update(array.items.slice(start, count))


def _feed_structs(stream: _Stream, array: pa.Array) -> None:
    for child, inner in zip(stream.children, array.flatten(), strict=True):
        child.update(inner)


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(
        kinds.is_primitive(kind)
        or kinds.is_decimal(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_interval(kind)
    ) and not isinstance(kind, pa.BaseExtensionType)


_TEXTS = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_BYTES = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)

_FEEDS: tuple[tuple[Callable[[Any], bool], Callable[[_Stream, Any], None]], ...] = (
    (kinds.is_null, _feed_nothing),
    (kinds.is_boolean, _feed_booleans),
    (kinds.is_floating, _feed_floats),
    *((holds, _feed_texts) for holds in (*_TEXTS, *_BYTES)),
    (kinds.is_map, _feed_maps),
    (kinds.is_struct, _feed_structs),
    (kinds.is_fixed_size_list, _feed_fixed_lists),
    (_is_list, _feed_lists),
    (_is_fixed, _feed_fixed),
)

_FORMS: tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...] = (
    *((holds, lambda kind: "string") for holds in _TEXTS),  # noqa: ARG005
    *((holds, lambda kind: "binary") for holds in _BYTES),  # noqa: ARG005
    (kinds.is_timestamp, lambda kind: f"timestamp[{kind.unit}{', zoned' if kind.tz else ''}]"),
    (kinds.is_map, lambda kind: "map"),  # noqa: ARG005
    (kinds.is_struct, lambda kind: "struct"),  # noqa: ARG005
    (kinds.is_fixed_size_list, lambda kind: f"list of {kind.list_size}"),
    (_is_list, lambda kind: "list"),  # noqa: ARG005
    (kinds.is_null, str),
    (_is_fixed, str),
)


def _inner(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the children of a nested type, by name."""
    if kinds.is_map(kind):
        return [("key", kind.key_type), ("value", kind.item_type)]
    if kinds.is_struct(kind):
        return [(each.name, each.type) for each in kind]
    if kinds.is_fixed_size_list(kind) or _is_list(kind):
        return [("item", kind.value_type)]
    return []


def _plain(kind: pa.DataType) -> pa.DataType:
    return _plain(kind.value_type) if kinds.is_dictionary(kind) else kind


@lru_cache(maxsize=64)
def _schema_form(schema: pa.Schema) -> bytes:
    """Return names and canonical types, as the bytes that the digest begins with; made once for the
    schema of a stream, because every partition of every minibatch has a digest.
    """
    forms = [[each.name, _form(each.type, each.name)] for each in schema]
    return ascii_json([versions.DIGEST, forms]).encode()


def _form(kind: pa.DataType, path: str) -> list[Any]:
    """Return the canonical type as JSON, independent of how Arrow stores it."""
    kind = _plain(kind)
    name = next((form(kind) for holds, form in _FORMS if holds(kind)), None)
    if name is None:
        raise ConfigurationError(
            f"column {path!r} is {kind}, which has no digest; cast it to a type that has one "
            f"(a number, a string, binary, a list, a struct), or drop it before delivering"
        )
    return [name, [[inner, _form(child, f"{path}.{inner}")] for inner, child in _inner(kind)]]


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return the canonical types of the columns by name, for display: `struct<x int64>`."""
    return {each.name: _shown(_form(each.type, each.name)) for each in schema}


def changed_columns(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return a sentence that names the changed columns; empty if none changed or it is unknown."""
    if before is None or now is None or list(before.items()) == list(now.items()):
        return ""
    parts = {
        "added": [f"{name} {now[name]}" for name in now if name not in before],
        "removed": [f"{name} {before[name]}" for name in before if name not in now],
        "other type": [
            f"{name} {before[name]} -> {now[name]}"
            for name in before
            if name in now and before[name] != now[name]
        ],
    }
    changes = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    said = plain_text("; ".join(changes or ["the order of the columns changed"]), SHOWN_COLUMNS_MAX)
    return (
        f" The columns changed ({said}): deliver the columns as they were until this minibatch is "
        "complete, and change them then."
    )


def _shown(form: list[Any]) -> str:
    name, inner = form
    if not inner:
        return str(name)
    named = name == "struct"
    children = (f"{each} {_shown(kind)}" if named else _shown(kind) for each, kind in inner)
    return f"{name}<{', '.join(children)}>"
