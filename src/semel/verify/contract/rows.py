"""The rows that a contract suite delivers: payments whose sum shows which of them arrived.

- `customer` is the entity and `payment_id` the event id, 1, 2, 3, ... for each customer;
- `amount` is 10 ** (payment_id - 1), so that a sum of amounts shows which events arrived, and how
  often: 1111 is four events, each once; 1201 has the third twice and the second never;
- `note` is text; a destination that can refuse rows should refuse the note `refuse this`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events import Given, Position, bucket, bucket_name, sort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Pair = tuple[str, str]
    """An entity and an event id, both as text, so that they compare whatever type is stored."""

SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("payment_id", pa.int64()),
        ("amount", pa.int64()),
        ("note", pa.string()),
    ]
)

REFUSE = "refuse this"

SOURCE = "payments/0"
"""The source partition, if events are identified by position."""

LEAST, MOST = -(2**63), 2**63 - 1

TEXTS: tuple[str | None, ...] = (
    "",
    None,
    "\x00 and \x00",
    "Zürich, 東京, 🜚",
    "e\u0301 is not \u00e9",
    "\u202eright to left",
    "'; drop table payments; --",
    '"quoted", \\back\\slash, $1, %s, {x}, ${y}',
    "two\r\nlines\tand a tab",
    "\ufeff\ufffe\U0010ffff",
    " spaces around ",
    "null",
)
"""Texts that a destination may handle wrongly; each belongs to a separate entity."""

NAMES = ("a/b", "ü 東京", "o'clock", 'two "words"', "50%", "a,b", "tab\tbed", "x=y&z", "{0}")
TWINS = ("twin", "Twin", "twin ", "caf\u00e9", "cafe\u0301", "n" * 300 + "1", "n" * 300 + "2")
"""Entity names that a destination may handle wrongly, and names that it may confuse."""

NUMBERS = (0, -1, MOST, LEAST)

LARGE_CHARACTERS = 2**20


@dataclass(frozen=True)
class MinibatchRows:
    """The rows of one minibatch by partition, and their events, both in order."""

    batches: dict[str, pa.RecordBatch]
    events: dict[str, list[Pair]]

    @property
    def pairs(self) -> list[Pair]:
        """All events, partition by partition."""
        return [pair for pairs in self.events.values() for pair in pairs]


@dataclass(frozen=True)
class OneSource(Position):
    """Position identity for rows of one source partition, which no column names."""

    def require_partition(self, batch: pa.RecordBatch, partition: str) -> None:
        """Accept every row."""


@dataclass(frozen=True)
class Maker:
    """Makes rows with the suite's own columns, or as the user's function converts them."""

    entity: str = "customer"
    event: str = "payment_id"
    change: Callable[[pa.Table], pa.Table] | None = None
    by_position: bool = False

    @property
    def identity(self) -> Given | Position:
        """Given identity by two columns; or position identity, where the event id is the offset."""
        if self.by_position:
            return OneSource(offset=self.event, entity=self.entity)
        return Given(entity=self.entity, event=(self.event,))

    def rows(self, payments: pa.Table, partitions: int = 1) -> MinibatchRows:
        """Cut payments into partitions as Spark would. Raises `ConfigurationError`."""
        table = self._changed(payments)
        if self.by_position:
            whole = table.sort_by(self.event).combine_chunks().to_batches()[0]
            return MinibatchRows({SOURCE: whole}, {SOURCE: _pairs(whole, self.entity, self.event)})
        batches: dict[str, pa.RecordBatch] = {}
        events: dict[str, list[Pair]] = {}
        whole = table.combine_chunks().to_batches()[0]
        buckets = bucket(whole.column(self.entity), partitions)
        for number in range(partitions):
            part = sort(whole.filter(pa.array(buckets == number)), self.identity)
            if part.num_rows:
                name = bucket_name(number, partitions)
                batches[name] = part
                events[name] = _pairs(part, self.entity, self.event)
        return MinibatchRows(batches, events)

    def require(self) -> None:
        """Raise `ConfigurationError` if no rows can be made."""
        self._changed(payments(["a", "b"], [1, 2]))

    def _changed(self, payments: pa.Table) -> pa.Table:
        if self.change is None:
            self._require_columns(payments, "the rows have")
            return payments
        try:
            table = self.change(payments)
        except Exception as error:
            raise ConfigurationError(
                f"the rows function failed: {type(error).__name__}: {error}. It must take an "
                "Arrow table of payments and return the Arrow table to deliver"
            ) from error
        if not isinstance(table, pa.Table):
            raise ConfigurationError(
                f"the rows function returned {type(table).__name__}: it must take an Arrow table "
                "of payments and return the Arrow table to deliver"
            )
        self._require_columns(table, "the rows function returned")
        if sorted(_pairs(table, self.entity, self.event)) != sorted(_pairs(payments)):
            raise ConfigurationError(
                "the rows function changed entities or event ids; it may add, drop, rename and "
                "convert columns, but must return one row for each row, with the same ids"
            )
        return table

    def _require_columns(self, table: pa.Table, who: str) -> None:
        for name in (self.entity, self.event):
            if name not in table.column_names:
                raise ConfigurationError(
                    f"{who} no column {name!r}, only {', '.join(table.column_names)}; pass the "
                    "columns of entity and event id as --entity and --event"
                )


def _pairs(
    table: pa.Table | pa.RecordBatch, entity: str = "customer", event: str = "payment_id"
) -> list[Pair]:
    return [
        (str(one), str(other))
        for one, other in zip(
            table.column(entity).to_pylist(), table.column(event).to_pylist(), strict=True
        )
    ]


def payments(
    customers: Iterable[str], ids: Iterable[int], notes: dict[tuple[str, int], str] | None = None
) -> pa.Table:
    """Return payments of every customer with every id."""
    known = notes or {}
    wanted = list(ids)
    return _table(
        (customer, number, 10 ** (number - 1), known.get((customer, number), f"payment {number}"))
        for customer in customers
        for number in wanted
    )


def logged(customers: Sequence[str], ids: Iterable[int]) -> pa.Table:
    """Return payments as `payments` does, numbered across all customers: the id is an offset."""
    count = len(customers)
    numbered = [
        (customer, (number - 1) * count + at)
        for number in ids
        for at, customer in enumerate(customers, 1)
    ]
    return _table((who, at, 10 ** (at - 1), f"payment {at}") for who, at in numbered)


def odd_texts(prefix: str) -> pa.Table:
    """Return payments with odd notes, and payments of customers with odd names."""
    noted = [(f"{prefix}odd{at}", 1, 1, text) for at, text in enumerate(TEXTS)]
    named = [(f"{prefix}{name}", 1, 1, "an odd name") for name in NAMES + TWINS]
    return _table([*noted, *named])


def odd_numbers(prefix: str) -> pa.Table:
    """Return payments of odd amounts, each of a separate customer."""
    return _table((f"{prefix}odd{at}", 1, amount, "odd") for at, amount in enumerate(NUMBERS))


def large_text(prefix: str) -> pa.Table:
    """Return payments, one with a megabyte of text between the others of its customer."""
    ordinary = [(f"{prefix}a", number, 10 ** (number - 1), "small") for number in (1, 3)]
    return _table([*ordinary, (f"{prefix}a", 2, 10, "large text " * (LARGE_CHARACTERS // 11))])


def _table(rows: Iterable[tuple[str, int, int, str | None]]) -> pa.Table:
    columns: Sequence[Sequence[object]] = list(zip(*rows, strict=True))
    arrays = [pa.array(each, kind.type) for each, kind in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
