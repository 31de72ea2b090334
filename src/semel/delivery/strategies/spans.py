"""Drafts of spans: which events are recorded before they are sent, and which of them are not sent.

Always true:
- a span is contiguous in the partition's order; what is handled of it is recorded beside it;
- events behind a blocked entity are parked in the commit that records the span, and not sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.parking.parking import parked_row
from semel.events import EntityIds, cuts
from semel.events.encoding import require_values
from semel.ledger import NO_PARKS, SpanRow
from semel.protocol import ParkedState, SpanState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.delivery.lane import Lane
    from semel.delivery.parking.in_doubt import Doubts
    from semel.events import Rows
    from semel.ledger import ParkedRow, Parks

    Range = tuple[int, int]


@dataclass(slots=True)
class Draft:
    """A span to be recorded, with its rows and which of them are not to be sent from here."""

    span: SpanRow
    rows: Rows
    handled: NDArray[np.bool_]
    parks: Parks

    def to_send(self, start: int, stop: int) -> Rows:
        """Return the rows of the range [start, stop) that are to be sent."""
        low, high = start - self.span.start, stop - self.span.start
        chosen = self.rows.slice(low, high)
        handled = self.handled[low:high]
        return chosen.take(~handled) if handled.any() else chosen


class Drafts:
    """Drafts the spans of one lane.

    Attributes:
        rows: those of the step, from the lane's position on.
        unsure: the positions of events that may have arrived without an answer; kept by the caller.
    """

    def __init__(self, lane: Lane, unsure: AbstractSet[int], doubts: Doubts) -> None:
        self._lane = lane
        self._doubts = doubts
        self.unsure = unsure
        self.rows: Rows | None = None

    def next(self, rows: Rows) -> Draft:
        """Draft the next span, cut by the sink's limits as they are now.

        A function is called with Python values: one that cannot be converted is found here, before
        there is an intent.
        """
        start = self._lane.position
        if self._lane.sink.takes_python_values:
            require_values(rows)
        return self.draft(rows, cuts(start, start + len(rows), self._lane.sink.chunk_rows))

    def draft(
        self,
        rows: Rows,
        ranges: Sequence[Range],
        known: NDArray[np.bool_] | None = None,
        to_park: Sequence[ParkedRow] = (),
        at: float | None = None,
    ) -> Draft:
        """Draft the next span over `rows`: events behind a blocked entity are parked and not sent.
        Those that may have arrived wait in doubt, since the intent that was recorded `at`.
        """
        lane = self._lane
        handled = np.zeros(len(rows), np.bool_)
        if lane.parked_at:
            handled |= np.isin(rows.positions, list(lane.parked_at))
        if known is not None:
            handled |= known
        besides = {(row.entity, row.scope) for row in to_park if row.blocks}
        waiting = lane.blocked(rows, besides) & ~handled
        recorded_at = lane.client.clock.wall() if at is None else at
        places = np.flatnonzero(waiting).tolist()
        followers = [self._follower(rows, place, recorded_at) for place in places]
        parks = lane.parks(_parked_once(to_park, followers))
        handled = handled | waiting
        start, stop = ranges[0][0], ranges[-1][1]
        span = SpanRow(
            number=lane.claim.next_span,
            chunks=tuple(ranges),
            state=SpanState.INTENDED,
            running=self._running(stop),
            ids=tuple(rows.slice(low - start, high - start).id_sets() for low, high in ranges),
            attempt=lane.assignment.attempt,
            at=recorded_at,
            osn=(lane.last_osn_before + start + 1, lane.last_osn_before + stop),
            handled=rows.take(handled).id_sets() if handled.any() else EntityIds.EMPTY,
        )
        return Draft(span, rows, handled, parks)

    def _follower(self, rows: Rows, place: int, recorded_at: float) -> ParkedRow:
        """Return the row that parks an event behind the first of its entity: in doubt if an earlier
        attempt, or one of an older generation, may have sent it.
        """
        why = "an event of its entity is parked"
        row = parked_row(self._lane, rows, place, ParkedState.WAITING, why)
        if row.position in self.unsure or self._doubts.was_sent_before(rows, place):
            return replace(row, doubted=True, at=recorded_at)
        return row

    def cut_off(self, draft: Draft, first: int) -> SpanRow:
        """Return the part of a span before `first`."""
        span, lane = draft.span, self._lane
        rows = draft.rows.slice(0, first - span.start)
        return replace(
            span,
            chunks=((span.start, first),),
            ids=(rows.id_sets(),),
            running=self._running(first),
            osn=(span.osn[0], lane.last_osn_before + first),
            handled=rows.take(draft.handled[: first - span.start]).id_sets(),
        )

    def kept(self, draft: Draft, last: int, handled: AbstractSet[int], tries: int = 0) -> Draft:
        """Return a span, under its number, that ends with the chunk of position `last`: the chunks
        after it were never sent. Events at the `handled` positions are not sent any more.
        """
        span, lane = draft.span, self._lane
        chunks = tuple(each for each in span.chunks if each[0] <= last)
        stop = chunks[-1][1]
        rows = draft.rows.slice(0, stop - span.start)
        known = draft.handled[: stop - span.start] | np.isin(rows.positions, list(handled))
        kept = replace(
            span,
            chunks=chunks,
            ids=span.ids[: len(chunks)],
            running=self._running(stop),
            osn=(span.osn[0], lane.last_osn_before + stop),
            handled=rows.take(known).id_sets() if known.any() else EntityIds.EMPTY,
            tries=tries,
        )
        return Draft(kept, rows, known, NO_PARKS)

    def _running(self, stop: int) -> str:
        """Return the partition's digest up to `stop`, which lies within the rows of this step."""
        if self.rows is None:
            raise AssertionError("there is no span before there are rows")
        return self._lane.running_after(self.rows, stop - self._lane.position)


def _parked_once(to_park: Sequence[ParkedRow], followers: list[ParkedRow]) -> list[ParkedRow]:
    """Return one row per event: a doubt about an event that has to wait is recorded in the row in
    which it waits.
    """
    marked = {row.position for row in to_park if row.state.only_marks}
    waits = {row.position for row in followers}
    return [
        *(row for row in to_park if row.position not in waits),
        *(replace(row, doubted=row.doubted or row.position in marked) for row in followers),
    ]


def settled(span: SpanRow) -> SpanRow:
    """Return a span as it is once settled: one range, one set."""
    ids = (EntityIds.union(span.ids),)
    chunks = ((span.start, span.stop),)
    return replace(span, chunks=chunks, ids=ids, state=SpanState.SETTLED, tries=0)
