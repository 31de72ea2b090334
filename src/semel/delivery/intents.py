"""The way to REPEATABLE, PROBING and OPAQUE destinations: the intent is in the ledger before the
effect.

Always true:
- a span is durable before its first chunk is sent, and settled (with the next one) after its last;
- a recorded span is cut as it was recorded, whatever the limits are now;
- an event that was rejected or is in doubt is parked in the very commit that settles past it;
- an effect starts only within the lease, counted from before the ledger was asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from semel.delivery import counting
from semel.delivery.calls import call_patiently, open_session
from semel.delivery.doubts import Doubts, Verdicts
from semel.delivery.parks import parked_row
from semel.errors import DeliveryError, Fenced, HeldInDoubt, NotDelivered, OutcomeUnknown, Rejected
from semel.events import EntityIds, cuts
from semel.ledger.parked import NOTHING, HeadMoved
from semel.ledger.rows import SpanRow
from semel.protocol import DOUBT, RESUME, Action, Capability, Found, ParkedState, SpanState
from semel.sinks import DELIVERED, Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from semel.delivery.lane import Lane
    from semel.events import Chunk, Rows
    from semel.ledger.parked import Parks
    from semel.ledger.rows import ParkedRow
    from semel.sinks import ProbingSession, Session

    Range = tuple[int, int]


@dataclass(slots=True)
class Draft:
    """A span in the making, with its rows and which of them are not to be sent from here."""

    span: SpanRow
    rows: Rows
    handled: NDArray[np.bool_]
    parks: Parks

    def to_send(self, start: int, stop: int) -> Rows:
        """Give the rows of the range [start, stop) that are to be sent."""
        low, high = start - self.span.start, stop - self.span.start
        chosen = self.rows.slice(low, high)
        handled = self.handled[low:high]
        return chosen.take(~handled) if handled.any() else chosen


class IntentWay:
    """Delivers chunks whose intents the ledger keeps."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._doubts = Doubts(lane)
        self._session: Session | None = None
        self._found: Found | None = None
        self._recorded: deque[SpanRow] = deque()
        self._unsettled: Draft | None = None
        self._rows: Rows | None = None
        self._late: list[Chunk] = []

    def wants(self) -> int:
        """A span; while resuming, the next recorded one just as it was recorded."""
        lane = self._lane
        if self._found is Found.COMPLETE:
            return counting.wants(lane)
        if self._recorded:
            left = self._recorded[0].stop - lane.position
            settled = self._recorded[0].state is SpanState.SETTLED
            return min(left, counting.STEP_ROWS) if settled else left
        return lane.sink.chunk_rows * lane.sink.span_chunks

    def step(self, rows: Rows) -> int:
        """Claim, resume or deliver, as what was found says."""
        self._rows = rows
        try:
            return self._step(rows)
        except Fenced:
            self._doubts.report_late(self._late)
            raise

    def _step(self, rows: Rows) -> int:
        lane = self._lane
        if self._found is None:
            return self._claim(rows)
        if self._found is Found.COMPLETE:
            if not counting.goes_on(lane, rows):
                return counting.count(lane, rows)
            lane.look_at_heads(Found.PENDING)
            lane.holding.spans()
            self._found = Found.PENDING
            return 0
        if self._recorded:
            return self._resume(self._recorded[0], rows)
        self._deliver(rows)
        return len(rows)

    def finish(self) -> None:
        """An OPAQUE span is settled at once; the others when the driver completes the minibatch."""
        if self._recorded:
            self._lane.short = True
        if self._lane.sink.capability is Capability.OPAQUE:
            try:
                self._settle()
            except Fenced:
                self._doubts.report_late(self._late)
                raise

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    # -- claim and resume

    def _claim(self, rows: Rows) -> int:
        """Claim with the first span in the same commit; a partition found pending reads its spans
        instead.
        """
        lane = self._lane
        lane.look_at_heads(Found.NEW)
        location = lane.sink.locate(lane.assignment.target(lane.sink))
        while True:
            draft = self._draft(rows, self._cuts(rows))
            lane.limit_parks(draft.parks)
            try:
                self._found = lane.holding.claim(draft.span, draft.parks, location)
            except HeadMoved:
                lane.reread_heads()
                continue
            break
        if self._found is Found.NEW:
            lane.parked(draft.parks)
            self._send(draft)
            return len(rows)
        if RESUME[self._found, lane.sink.capability].action is Action.READ_SPANS:
            self._read_spans()
        return 0

    def _read_spans(self) -> None:
        """Look at what was recorded, and wait out the calls of the attempt before where nobody
        fences it.
        """
        lane = self._lane
        lane.look_at_heads(Found.PENDING)
        row = lane.holding.row
        done = 0 if row is None else row.done
        spans = [span for span in lane.holding.spans() if span.stop > done]
        if done:
            covered = SpanRow(
                number=-1,
                chunks=((0, done),),
                state=SpanState.SETTLED,
                running=(row.digest if row is not None else None) or "",
                ids=(),
                attempt=lane.assignment.attempt,
                at=0.0,
                osn=(0, 0),
            )
            spans = [covered, *spans]
        self._recorded = deque(spans)
        self._doubts.read()
        if any(span.state is SpanState.INTENDED for span in spans) and self._waits():
            self._doubts.wait_out_the_attempt_before()

    def _waits(self) -> bool:
        """Whether what may be in flight has to be waited out before anybody is asked or sent to."""
        sink = self._lane.sink
        if sink.capability is Capability.PROBING:
            return True
        return sink.capability is Capability.OPAQUE and DOUBT[sink.on_doubt].waits

    def _resume(self, span: SpanRow, rows: Rows) -> int:
        """Do what the RESUME table says about one recorded span."""
        lane = self._lane
        action = RESUME[self._found_of(span), lane.sink.capability].action
        if lane.position + len(rows) < span.stop:
            return len(rows)  # the end of the input, or a settled span that is skipped in steps
        self._recorded.popleft()
        running = lane.running_after(rows, len(rows))
        if running != span.running:
            recorded, found = f"digest {span.running}", f"digest {running}"
            raise lane.diverged(span.stop, recorded, found, rows)
        if action is Action.SKIP:
            lane.figures.suppressed += span.stop - span.start
            return len(rows)
        handled = rows.contained_in(span.handled)
        draft = Draft(span, rows, handled, NOTHING)
        if action is Action.DOUBT:
            self._doubt_all(draft)
        else:
            self._send(draft, ask_first=action is Action.ASK_ARRIVED)
        return len(rows)

    def _found_of(self, span: SpanRow) -> Found:
        if span.state is SpanState.SETTLED:
            return Found.SETTLED
        sink = self._lane.sink
        expired = self._lane.scribe.clock.wall() - span.at > sink.remembers_s
        if sink.capability is Capability.REPEATABLE and expired:
            return Found.EXPIRED
        return Found.INTENDED

    def _doubt_all(self, draft: Draft) -> None:
        """Nobody can be asked about any event of this span that was not handled before."""
        start, stop = draft.span.start, draft.span.stop
        rows = draft.to_send(start, stop)
        if not len(rows):
            self._unsettled = draft
            return
        why = OutcomeUnknown(f"attempt {draft.span.attempt} ended between intent and settle")
        verdicts = self._doubts.judge(rows, dict.fromkeys(range(len(rows)), why), found_so=True)
        left = self._after(draft, deque(), self._lane.chunk(rows, start, stop), verdicts)
        if left is not None:
            self._send(left)

    # -- deliver

    def _deliver(self, rows: Rows) -> None:
        """Settle the span before and record the next one in one commit, then send it."""
        lane = self._lane
        while True:
            draft = self._draft(rows, self._cuts(rows))
            settled = None if self._unsettled is None else _settled(self._unsettled.span)
            lane.limit_parks(draft.parks)
            try:
                lane.holding.write(settled=settled, intended=draft.span, parks=draft.parks)
            except HeadMoved:
                lane.reread_heads()
                continue
            break
        self._unsettled = None
        lane.parked(draft.parks)
        self._send(draft)

    def _send(self, draft: Draft, *, ask_first: bool = False) -> None:
        """Send the chunks of a recorded span in their order; what goes wrong makes a new span of
        the rest.
        """
        current: Draft | None = draft
        queue: deque[Range] = deque(draft.span.chunks)
        while queue and current is not None:
            start, stop = queue.popleft()
            rows = current.to_send(start, stop)
            if not len(rows):
                continue
            chunk = self._lane.chunk(rows, start, stop, current.span.number)
            if ask_first and self._arrived(chunk):
                self._lane.figures.suppressed += len(rows)
                continue
            result = self._call(current, chunk)
            if isinstance(result, Receipt) and not result.failures:
                self._lane.figures.delivered += len(rows)
                self._lane.unknown_in_a_row = 0
                continue
            current = self._trouble(current, queue, chunk, result)
            queue = deque() if current is None else deque(current.span.chunks)
        self._unsettled = current

    def _call(self, draft: Draft, chunk: Chunk) -> Receipt | DeliveryError:
        """Send a chunk; where a repeat is absorbed or the destination can tell, an unknown outcome
        ends here.
        """
        lane = self._lane
        capability = lane.sink.capability
        result: Receipt | DeliveryError = OutcomeUnknown("not tried")
        for pause in [0.0, *lane.sink.retry.pauses(lane.around.random)]:
            if pause:
                lane.around.clock.sleep(pause)
            call = partial(_deliver, self._opened(draft, chunk), chunk)
            result = call_patiently(call, lane.sink.retry, lane.around, self._within_lease)
            self._note_late(chunk)
            if isinstance(result, NotDelivered):
                self._withdraw(draft, chunk)
                raise result
            if not _unknown(result):
                return result
            self.close()
            if capability is Capability.OPAQUE:
                return result
            if capability is Capability.PROBING:
                lane.around.clock.sleep(lane.sink.deadline_s)
                if self._arrived(chunk):
                    return DELIVERED
        raise (
            result
            if isinstance(result, DeliveryError)
            else OutcomeUnknown(
                f"{lane.assignment.place(lane.sink)}: the destination's answer was lost again and "
                "again; the next "
                "attempt repeats the same chunk"
            )
        )

    def _opened(self, draft: Draft, chunk: Chunk) -> Session:
        """Open the session when it is first needed; where that fails, nothing was sent."""
        if self._session is None:
            lane = self._lane
            try:
                session = open_session(lane.sink, lane.assignment.target(lane.sink), lane.around)
            except NotDelivered:
                self._withdraw(draft, chunk)
                raise
            self._session = cast("Session", session)
        return self._session

    def _arrived(self, chunk: Chunk) -> bool:
        """Ask the destination for a chunk's key, patiently; asking has no effect."""
        lane = self._lane
        last: Exception | None = None
        for pause in [0.0, *lane.sink.retry.pauses(lane.around.random)]:
            if pause:
                lane.around.clock.sleep(pause)
            if self._session is None:
                target = lane.assignment.target(lane.sink)
                self._session = cast("Session", open_session(lane.sink, target, lane.around))
            try:
                return cast("ProbingSession", self._session).arrived(chunk.key)
            except Exception as error:  # noqa: BLE001 - nothing is sent by asking
                last = error
                self.close()
        raise OutcomeUnknown(
            f"{lane.assignment.place(lane.sink)}: the destination does not say whether chunk "
            f"{chunk.key} arrived "
            f"({last}). Nothing was repeated; see that it runs, then restart the query"
        ) from last

    def _note_late(self, chunk: Chunk) -> None:
        """Remember a call that ended so late that a replacement may not have waited for it."""
        lane = self._lane
        taken = lane.around.clock.monotonic() - lane.holding.asked_at
        if taken > lane.sink.lease_s + lane.sink.deadline_s:
            self._late.append(chunk)

    def _within_lease(self) -> None:
        """Act only on what the ledger said within a lease, counted from before it was asked."""
        lane = self._lane
        if lane.around.clock.monotonic() - lane.holding.asked_at > lane.sink.lease_s:
            lane.holding.check()

    # -- trouble

    def _trouble(
        self, draft: Draft, queue: deque[Range], chunk: Chunk, result: Receipt | DeliveryError
    ) -> Draft | None:
        """Park what was rejected or is in doubt; make a new span of what is left, None when nothing
        is.
        """
        if isinstance(result, Rejected) and len(chunk) > 1:
            middle = int(chunk.rows.positions[len(chunk) // 2])
            halves = [(chunk.start, middle), (middle, chunk.stop)]
            return self._again(draft, chunk.start, [*halves, *queue], [], set())
        if isinstance(result, Receipt):
            failures = dict(result.failures)
        else:
            failures = dict.fromkeys(range(len(chunk)), result)
        verdicts = self._doubts.judge(chunk.rows, failures)
        return self._after(draft, queue, chunk, verdicts)

    def _after(
        self, draft: Draft, queue: deque[Range], chunk: Chunk, verdicts: Verdicts
    ) -> Draft | None:
        """Settle up to the first event that is still to be sent, and record the rest anew."""
        sent = len(chunk) - len(verdicts.to_send) - len(verdicts.to_park)
        self._lane.figures.delivered += max(0, sent) if not verdicts.found_so else 0
        positions = chunk.rows.positions
        first = int(positions[min(verdicts.to_send)]) if verdicts.to_send else chunk.stop
        again = {int(positions[at]) for at in verdicts.to_send}
        handled = {int(position) for position in positions.tolist()} - again
        ranges = [(first, chunk.stop)] if first < chunk.stop else []
        ranges.extend(queue)
        if verdicts.stop and not any(position > first for position in handled):
            ranges = []  # nothing of the rest was sent, so nothing of it shall be in doubt
        left = self._again(draft, first, ranges, verdicts.to_park, handled)
        if verdicts.stop:
            raise HeldInDoubt(verdicts.stop)
        return left

    def _again(
        self,
        draft: Draft,
        first: int,
        ranges: Sequence[Range],
        to_park: Sequence[ParkedRow],
        handled: set[int],
    ) -> Draft | None:
        """Write in one commit: settled up to `first`, parked what is to be, and an intent for
        `ranges`.
        """
        lane, span = self._lane, draft.span
        while True:
            settled = None
            if first > span.start:
                settled = _settled(self._cut_off(draft, first))
            rest = draft.rows.slice(first - span.start, span.stop - span.start)
            known = draft.handled[first - span.start :].copy()
            if handled:
                known |= np.isin(rest.positions, list(handled))
            new = self._draft(rest, ranges, known, to_park) if ranges else None
            parks = lane.parks(to_park) if new is None else new.parks
            lane.limit_parks(parks)
            try:
                lane.holding.write(
                    settled=settled,
                    withdrawn=settled is None,
                    intended=None if new is None else new.span,
                    parks=parks,
                )
            except HeadMoved:
                lane.reread_heads()
                continue
            lane.parked(parks)
            return new

    def _cut_off(self, draft: Draft, first: int) -> SpanRow:
        """Give the part of a span before `first`."""
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

    def _running(self, stop: int) -> str:
        """Give the partition's digest up to `stop`, which lies within the rows of this step."""
        if self._rows is None:
            raise AssertionError("there is no span before there are rows")
        return self._lane.running_after(self._rows, stop - self._lane.position)

    def _withdraw(self, draft: Draft, chunk: Chunk) -> None:
        """Nothing of this chunk arrived and the task gives up: leave no doubt where none is."""
        if self._lane.sink.capability is not Capability.OPAQUE:
            return
        if chunk.start > draft.span.start:
            self._lane.holding.write(settled=_settled(self._cut_off(draft, chunk.start)))
        else:
            self._lane.holding.write(withdrawn=True)

    def _settle(self) -> None:
        """Settle the last span on its own."""
        if self._unsettled is not None:
            draft, self._unsettled = self._unsettled, None
            self._lane.holding.write(settled=_settled(draft.span))

    # -- drafting

    def _cuts(self, rows: Rows) -> list[Range]:
        start = self._lane.position
        return cuts(start, start + len(rows), self._lane.sink.chunk_rows)

    def _draft(
        self,
        rows: Rows,
        ranges: Sequence[Range],
        known: NDArray[np.bool_] | None = None,
        to_park: Sequence[ParkedRow] = (),
    ) -> Draft:
        """Draft the next span over `rows`: who waits behind a blocked entity is parked and not
        sent.
        """
        lane = self._lane
        handled = np.zeros(len(rows), dtype=bool) if known is None else known
        besides = {(row.entity, row.scope) for row in to_park if row.blocks}
        waiting = lane.blocked(rows, besides) & ~handled
        followers = [
            parked_row(lane, rows, at, ParkedState.WAITING, "an event of its entity is parked")
            for at in np.flatnonzero(waiting).tolist()
        ]
        parks = lane.parks([*to_park, *followers])
        handled = handled | waiting
        start, stop = ranges[0][0], ranges[-1][1]
        span = SpanRow(
            number=lane.holding.next_span,
            chunks=tuple(ranges),
            state=SpanState.INTENDED,
            running=self._running(stop),
            ids=tuple(rows.slice(low - start, high - start).id_sets() for low, high in ranges),
            attempt=lane.assignment.attempt,
            at=lane.scribe.clock.wall(),
            osn=(lane.last_osn_before + start + 1, lane.last_osn_before + stop),
            handled=rows.take(handled).id_sets() if handled.any() else EntityIds.EMPTY,
        )
        return Draft(span, rows, handled, parks)


def _settled(span: SpanRow) -> SpanRow:
    """Give a span as it stands once settled: one range, one set."""
    ids = EntityIds.EMPTY
    for chunk_ids in span.ids:
        ids = ids | chunk_ids
    return replace(span, chunks=((span.start, span.stop),), ids=(ids,), state=SpanState.SETTLED)


def _deliver(session: Session, chunk: Chunk) -> Receipt | None:
    """Deliver a chunk; a receipt that says no event of it arrived is the whole chunk's outcome."""
    receipt = session.deliver(chunk)
    failures = list(receipt.failures.values()) if receipt is not None else []
    if len(failures) == len(chunk) and all(isinstance(why, NotDelivered) for why in failures):
        raise receipt.failures[min(receipt.failures)]
    return receipt


def _unknown(result: Receipt | DeliveryError) -> bool:
    """Whether the outcome of any event of a chunk is unknown."""
    if isinstance(result, Receipt):
        return any(isinstance(why, OutcomeUnknown) for why in result.failures.values())
    return isinstance(result, OutcomeUnknown)
