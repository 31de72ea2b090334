"""A chunk: the events of one call, one transaction or one window.

- A chunk is a range [start, stop) of its partition's order, without the parked rows.
- The OSN of the event at position p is `osn_base + p`, in every chunk and whatever is missing.
- An event's key is its prefix, scope and id: the same on every replay, and never another event's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.events.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from semel.events.event import EventID, Minibatch
    from semel.events.rows import Rows

_UNSAFE = re.compile("[%/,\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows that are delivered together, with their keys and numbers."""

    rows: Rows
    start: int
    stop: int
    key: str
    osn_base: int
    prefix: str

    def __len__(self) -> int:
        return len(self.rows)

    def osns(self) -> NDArray[np.int64]:
        """Return the output sequence number of each row."""
        return self.rows.positions + self.osn_base

    def event_key(self, row: int) -> str:
        """Return the stable key of one row's event."""
        return f"{self.prefix}{key_part(self.rows.scope(row))}/{id_text(self.rows.id(row))}"

    def event(self, row: int) -> Event:
        """Return one row as a row-based sink receives it."""
        return Event(
            entity=self.rows.entity(row),
            id=self.rows.id(row),
            osn=self.osn_base + int(self.rows.positions[row]),
            key=self.event_key(row),
            value=self.rows.value(row),
        )

    def event_keys(self) -> list[str]:
        """Return the stable key of every row's event."""
        rows = self.rows
        present, _ = rows.scopes.distinct()
        texts = rows.scopes.texts
        starts = {code: f"{self.prefix}{key_part(texts[code])}/" for code in present.tolist()}
        ids = zip(rows.scopes.codes.tolist(), rows.all_ids(), strict=True)
        return [starts[code] + id_text(id_) for code, id_ in ids]

    def events(self) -> Iterator[Event]:
        """Yield every row as a row-based sink receives it."""
        rows = self.rows
        columns = zip(
            rows.all_ids(), self.osns().tolist(), self.event_keys(), rows.values(), strict=True
        )
        for row, (id_, osn, key, value) in enumerate(columns):
            yield Event(rows.entity(row), id_, osn, key, value)


def chunk_key(
    pipeline: str,
    sink: str,
    minibatch: Minibatch,
    partition: str,
    span: int,
    place: tuple[int, int],
) -> str:
    """Return the stable key of a chunk. The span is part of it: a range that is recorded again,
    because some of its events have been handled since, is another chunk.
    """
    names = f"{key_part(pipeline)}/{key_part(sink)}/{minibatch}/{key_part(partition)}"
    return f"{names}/{span}/{place[0]}-{place[1]}"


def key_part(text: str) -> str:
    """Return the text with separators, `%` and control characters written as %XX."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def id_text(id: EventID) -> str:  # noqa: A002 - the term of the design
    """Return an id as part of a key: 7 for the integer, =7 for the text, 7,=a for the tuple."""
    if isinstance(id, int):
        return str(id)
    if isinstance(id, str):
        return "=" + key_part(id)
    return ",".join(map(id_text, id)) + ("," if len(id) == 1 else "")
