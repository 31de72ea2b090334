"""What a task tells the driver when it has come to the end of a partition: one small row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.events.ids import Attempt
    from semel.ledger.journal import Entry
    from semel.ledger.sequences import Mark


@dataclass(frozen=True, slots=True)
class Report:
    """One partition of one sink, as one attempt saw it.

    Attributes:
        osn: the last OSN that was given to an event.
        sent: the last OSN that is known to be transmitted.
        count: events of the order, those of earlier attempts included.
        short: the input ended before a recorded span did; an end of input proves nothing, so the
            driver judges.
        mark: the position watermark after this partition.
        entries: what goes into the journal with `complete`.
        suppressed: events that were there already and were not sent again.
        placed: what the destination tells of the place they were put at, where they have one.
    """

    sink: str
    partition: str
    attempt: Attempt
    count: int
    digest: str
    osn: int
    sent: int = 0
    first: list[Any] | None = None
    last: list[Any] | None = None
    short: bool = False
    mark: Mark | None = None
    entries: tuple[Entry, ...] = ()
    delivered: int = 0
    suppressed: int = 0
    parked: int = 0
    doubted: int = 0
    skipped: int = 0
    location: str | None = None
    placed: Mapping[str, Any] | None = None
    figures: dict[str, float] = field(default_factory=dict)
