"""Walks over all parked events of a ledger, page by page, and counts what a filter chooses.

Always true: no more than one page of events is in memory, and at most `GROUPS_MAX` reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import printable
from semel.ledger import DamagedRow, LedgerClient, ParkedRow, make_prefix, scan_parked
from semel.operate.bulk.parked_filter import FilteredEvent
from semel.operate.event_names import name_of
from semel.operate.parked import text_in
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.ledger import Ledger
    from semel.ledger.store import Key
    from semel.operate.bulk.parked_filter import ParkedFilter
    from semel.runtime import Clock

GROUPS_MAX = 500
EXAMPLES_MAX = 5
_WHY_MAX = 100
_DIGITS = re.compile(r"[0-9]+")
OTHER = "(other reasons)"


@dataclass(frozen=True, slots=True)
class ChosenEvent:
    """A parked event that a filter chose, with the text of its row."""

    pipeline: str
    sink: str
    key: Key
    text: str
    row: ParkedRow

    @property
    def handle(self) -> str:
        """Its full name."""
        return name_of(self.key)


@dataclass
class ParkedScan:
    """One walk over the parked events of a ledger, or of one pipeline.

    Attributes:
        read: how many events were read so far.
        damaged: the rows that could not be read, and were left out.
        progress: is called after each page with `read`.
    """

    ledger: Ledger
    where: ParkedFilter | None = None
    pipeline: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    progress: Callable[[int], None] | None = None
    read: int = 0
    damaged: list[DamagedRow] = field(default_factory=list)

    def pages(self) -> Iterator[list[ChosenEvent]]:
        """Return the events that fit, a page at a time, in the order of their keys; every event of
        a page belongs to one pipeline and sink.
        """
        named = self.pipeline or (None if self.where is None else self.where.pipeline)
        client = LedgerClient(self.ledger.store, named or "", self.clock)
        now = self.clock.wall()
        for rows in scan_parked(client, "" if named is None else make_prefix(named)):
            chosen: dict[tuple[str, str], list[ChosenEvent]] = {}
            for at, text in rows:
                event = self._load(at, text)
                if event is not None and self._fits(event, now):
                    chosen.setdefault((event.pipeline, event.sink), []).append(event)
            self.read += len(rows)
            yield from chosen.values()
            if self.progress is not None:
                self.progress(self.read)

    def _load(self, at: Key, text: str) -> ChosenEvent | None:
        try:
            row = ParkedRow.load(text, at)
            name_of(at)
        except DamagedRow as error:
            self.damaged.append(error)
        except (ValueError, IndexError):
            what = "its key is not that of a parked event"
            self.damaged.append(DamagedRow(at.table, at.key, what))
        else:
            return ChosenEvent(text_in(at, 0), text_in(at, 1), at, text, row)
        return None

    def _fits(self, event: ChosenEvent, now: float) -> bool:
        seen = FilteredEvent(event.pipeline, event.sink, event.row, now)
        return self.where is None or self.where.fits(seen)


@dataclass
class ParkedGroups:
    """How many events were chosen, by sink, state and reason, and a few of them by name. Numbers in
    a reason are written as `#`, so that reasons which differ in them are one group.
    """

    total: int = 0
    examples: list[str] = field(default_factory=list)
    _counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)

    def add(self, event: ChosenEvent) -> None:
        """Count an event."""
        self.total += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(event.handle)
        why = _DIGITS.sub("#", printable(event.row.why))
        why = why if len(why) <= _WHY_MAX else why[: _WHY_MAX - 3] + "..."
        group = (event.pipeline, event.sink, event.row.state.value, why)
        if group not in self._counts and len(self._counts) >= GROUPS_MAX:
            group = (*group[:3], OTHER)
        self._counts[group] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Return the groups as a JSON list, the largest first."""
        return [
            {"pipeline": pipeline, "sink": sink, "state": state, "why": why, "count": count}
            for (pipeline, sink, state, why), count in self._counts.most_common()
        ]
