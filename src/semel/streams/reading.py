"""Reading an exact range of a partition.

Always true: what is returned has every offset of the range once. A range that is not there as a
whole is `RangeUnavailable`, whatever part of it is missing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from semel.errors import RangeUnavailable
from semel.ledger import (
    INBOX_TABLE,
    InboxGroupRow,
    group_end,
    group_key,
    make_prefix,
    read_row,
)
from semel.streams.groups import table, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from semel.ledger import LedgerClient
    from semel.ledger.store import Key
    from semel.streams.partitions import Partitions

PAGE_ROWS = 16
PAGE_ROWS_MAX = 1024
PAGE_CHARACTERS = 8 * 1024 * 1024
"""Groups are read by pages of about this size."""


def read_range(
    client: LedgerClient, stream: str, now: Partitions, partition: int, start: int, stop: int
) -> pa.Table:
    """Return exactly the events of a partition with start <= offset < stop."""
    where = f"inbox {stream!r}, partition {partition}, offsets {start} to {stop}"
    row = now.rows.get(partition)
    if row is None:
        raise RangeUnavailable(
            f"{where}: there is no such partition; there are {', '.join(map(str, now.rows))}"
        )
    if not 0 <= start <= stop:
        raise RangeUnavailable(f"{where} is not a range: give 0 <= start <= stop")
    if stop > row.end:
        raise RangeUnavailable(f"{where} is not there yet: the partition ends at {row.end}")
    pruned = (
        f"{where} was pruned in part or whole: what is kept begins at {{}}. A reader that still "
        "needs events registers, so that they are kept (Inbox.register_reader)"
    )
    if start < row.begin:
        raise RangeUnavailable(pruned.format(row.begin))
    found, reached = [], start
    if start < stop:
        for at, group in groups_from(client, stream, partition, start):
            end = group_end(at)
            first = end - group.count
            if first > reached or group.pruned:
                break
            batch = read_row(INBOX_TABLE, at, partial(unpack, group))
            length = min(end, stop) - reached
            found.append((batch.slice(reached - first, length), group.time_us))
            reached += length
            if reached == stop:
                break
    if reached < stop:
        raise RangeUnavailable(pruned.format("a later offset"))
    return table(stream, partition, start, found)


def groups_from(
    client: LedgerClient, stream: str, partition: int, start: int
) -> Iterator[tuple[Key, InboxGroupRow]]:
    """Yield groups in order, from the one with the event at `start` on."""
    prefix = make_prefix(stream, partition)
    after, wanted = group_key(stream, partition, start).key, PAGE_ROWS
    while True:
        page = client.scan(INBOX_TABLE, prefix, after=after, limit=wanted)
        for at, text in page:
            yield at, InboxGroupRow.load(text, at)
        if len(page) < wanted:
            return
        after = page[-1][0].key
        size = sum(len(text) for _, text in page) // len(page)
        wanted = max(1, min(PAGE_ROWS_MAX, 2 * wanted, PAGE_CHARACTERS // size))
