"""Keys and arguments of Redis commands made of columns: templates, and their bytes on the wire.

Always true:
- a value is counted bytes on the wire: nothing in it can end an argument or begin a command;
- a row with a null where a value is needed, or with a key of semel's own, is not sent: it is unfit;
- nothing here looks at a row in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError
from semel.events import column, is_bytes, is_text
from semel.events.encoding import moment_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

OWN = b"semel:"
"""The prefix of progress rows; no event may write to such a key."""

_BYTES = pa.large_binary()


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """A text with columns in it, such as `balance:{customer}`; `{{` and `}}` are literal braces."""

    parts: tuple[bytes | str, ...]

    @classmethod
    def of(cls, text: str, what: str) -> TextTemplate:
        """Read a template. Raises `ConfigurationError`, which calls it `what`."""
        parts: list[bytes | str] = []
        try:
            for literal, column, form, conversion in Formatter().parse(text):
                if literal and parts and isinstance(parts[-1], bytes):
                    parts[-1] += literal.encode()
                elif literal:
                    parts.append(literal.encode())
                if column is None:
                    continue
                if not column or form or conversion:
                    raise ValueError("only the name of a column can be between braces")
                parts.append(column)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{what} {text!r} is not a valid template: {error}. Write 'balance:{{customer}}' "
                "for a column, and double a brace that is meant literally: "
                "'{{bank}}:{customer}'"
            ) from None
        return cls(tuple(parts))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it names."""
        return tuple(part for part in self.parts if isinstance(part, str))

    @property
    def tag(self) -> bytes | None:
        """The hash tag that every key of this template has, whatever the values of its columns.

        There is one if the tag is before the first column.
        """
        first = self.parts[0] if self.parts else b""
        if not isinstance(first, bytes):
            return None
        _, opened, rest = first.partition(b"{")
        tag, closed, _ = rest.partition(b"}")
        return tag if opened and closed and tag else None

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Make the value of every row; null where a column of it is null."""
        made = [
            pa.scalar(part, _BYTES)
            if isinstance(part, bytes)
            else _bytes_of(column(batch, part), part)
            for part in self.parts
        ]
        if not self.columns:
            constant = b"".join(part for part in self.parts if isinstance(part, bytes))
            return pa.repeat(pa.scalar(constant, _BYTES), batch.num_rows)
        if len(made) == 1:
            return made[0]
        return pc.binary_join_element_wise(*made, pa.scalar(b"", _BYTES))


def _bytes_of(array: pa.Array, name: str) -> pa.Array:
    """A column as the bytes that Redis gets: text as UTF-8, numbers in decimal, bytes as they
    are.
    """
    kind, is_ = array.type, pa.types
    if is_bytes(kind) or is_text(kind):
        return array.cast(_BYTES) if not is_.is_fixed_size_binary(kind) else _widened(array)
    plain = (
        is_.is_integer,
        is_.is_floating,
        is_.is_decimal,
        is_.is_boolean,
        is_.is_null,
    )
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return moment_texts(array).cast(_BYTES)
    if not any(fits(kind) for fits in plain):
        raise ConfigurationError(
            f"column {name!r} is {kind}, but an argument of Redis is one value: use a field of it "
            "(such as 'window.start'), or convert it with to_json before semel.deliver"
        )
    if is_.is_float16(kind):
        array = array.cast(pa.float32())
    return array.cast(pa.string()).cast(_BYTES)


def _widened(array: pa.Array) -> pa.Array:
    return array.cast(pa.binary()).cast(_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """The keys and arguments of a chunk's rows.

    Attributes:
        fit: marks the rows that can be sent.
        unfit: for the others, what is wrong with them, by place.
    """

    keys: tuple[pa.Array, ...]
    arguments: tuple[pa.Array, ...]
    fit: NDArray[np.bool_]
    unfit: dict[int, str]

    def wire(self) -> tuple[pa.Buffer, pa.Buffer]:
        """Return the keys, and the arguments, of all fit rows as the protocol writes them."""
        chosen = None if self.fit.all() else pa.array(self.fit)
        return _on_the_wire(self.keys, chosen), _on_the_wire(self.arguments, chosen)


def fill(
    batch: pa.RecordBatch, keys: Sequence[TextTemplate], arguments: Sequence[TextTemplate]
) -> Filled:
    """Make keys and arguments of every row, and return which rows are rejected, and why."""
    made_keys = tuple(each.values(batch) for each in keys)
    made = tuple(each.values(batch) for each in arguments)
    unfit: dict[int, str] = {}
    for array in made_keys:
        owned = pc.starts_with(array.cast(pa.large_binary()), OWN).fill_null(False)
        for place in np.flatnonzero(owned.to_numpy(zero_copy_only=False)).tolist():
            unfit[place] = "its key begins with 'semel:', which is reserved for semel's progress"
    for name in dict.fromkeys(name for each in (*keys, *arguments) for name in each.columns):
        nulls = column(batch, name).is_null().to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(nulls).tolist():
            unfit[place] = f"column {name!r} is null, and Redis has no null"
    fit = np.ones(batch.num_rows, np.bool_)
    fit[list(unfit)] = False
    return Filled(made_keys, made, fit, unfit)


def _on_the_wire(arrays: tuple[pa.Array, ...], chosen: pa.Array | None) -> pa.Buffer:
    """Write the arrays row by row, each value as `$<length>\\r\\n<bytes>\\r\\n`."""
    if not arrays:
        return pa.py_buffer(b"")
    parts: list[pa.Array | pa.Scalar] = []
    for array in arrays:
        values = array if chosen is None else array.filter(chosen)
        lengths = pc.binary_length(values).cast(pa.string()).cast(_BYTES)
        parts += [_scalar(b"$"), lengths, _scalar(b"\r\n"), values, _scalar(b"\r\n")]
    written = pc.binary_join_element_wise(*parts, _scalar(b""))
    if not len(written):
        return pa.py_buffer(b"")
    _, offsets, content = written.buffers()
    ends = np.frombuffer(offsets, np.int64)[written.offset : written.offset + len(written) + 1]
    return content.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, _BYTES)
