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
        delivered: events that this attempt delivered.
        suppressed: events that an attempt before delivered, and that were not sent again.
        parked: events that this attempt parked; what policy `skip` dropped is not among them.
        doubted: those of the parked ones that are held in doubt.
        dropped: events in doubt that this attempt dropped, by policy `skip`.
        parked_before: events that an attempt before parked, whatever became of them since.
        dropped_before: events that an attempt before dropped, by policy `skip`.
        skipped: events that were handled (delivered, parked or dropped) before a lost checkpoint.
        columns: the type of each column, in their order, where that is known.
        unanswered: calls in a row, at the end, whose outcome is unknown.
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
    dropped: int = 0
    parked_before: int = 0
    dropped_before: int = 0
    skipped: int = 0
    unanswered: int = 0
    location: str | None = None
    placed: Mapping[str, Any] | None = None
    columns: dict[str, str] | None = None
    figures: dict[str, float] = field(default_factory=dict)
