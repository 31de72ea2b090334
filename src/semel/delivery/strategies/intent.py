"""Delivery to REPEATABLE, PROBING and OPAQUE: the intent is in the ledger before the effect.

Always true:
- a span is durable before its first chunk is sent, and settled (with the next one) after its last;
- a span is contiguous in the partition's order; what is handled of it is recorded beside it;
- a recorded span is cut as it was recorded, whatever the limits are now;
- events behind a blocked entity are parked in the commit that records the span, and not sent;
- an effect starts only within the lease, counted from before the ledger was asked.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.calling import Faults
from semel.delivery.observer import NO_FIGURES, Figures
from semel.delivery.parking.in_doubt import Doubts
from semel.delivery.parking.parking import parked_row
from semel.delivery.strategies import Finish, Step, replay_check
from semel.delivery.strategies.caller import Caller
from semel.delivery.strategies.failed_chunks import FailedChunks
from semel.errors import Fenced, LedgerUnavailable, NotDelivered, SinkBroken
from semel.events import EntityIds
from semel.ledger import NO_PARKS, HeadMoved, SpanRow
from semel.protocol import DOUBT, RESUME, Action, Capability, Found, ParkedState, SpanState
from semel.sinks import Receipt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.parking.parking import PartitionParking
    from semel.delivery.partition import Buffer
    from semel.delivery.strategies.failed_chunks import Rest
    from semel.events import Rows
    from semel.ledger import ParkedRow, Parks

    Range = tuple[int, int]


class IntentStrategy:
    """Delivers chunks whose intents the ledger keeps."""

    def __init__(self, partition: SinkPartition, parking: PartitionParking, buffer: Buffer) -> None:
        self._partition = partition
        self._parking = parking
        self._buffer = buffer
        self._faults = Faults(partition)
        self._doubts = Doubts(partition, parking, self._faults)
        self._caller = Caller(partition, self._faults)
        values = partition.sink.takes_python_values
        self._drafts = Drafts(partition, parking, buffer, self._caller, self._doubts, values)
        self._failed = FailedChunks(
            partition, parking, self._faults, self._doubts, self._caller, self._drafts
        )
        self._figures = NO_FIGURES
        self._called = False
        self._action: Action | None = None
        self._recorded: deque[SpanRow] = deque()
        self._unsettled: Draft | None = None
        self._inherited = False

    def wants(self) -> int:
        """Return the size of a span; while resuming, of the next recorded one, as recorded."""
        if self._action is Action.COUNT:
            return replay_check.wants(self._partition, self._buffer.position)
        if self._recorded:
            left = self._recorded[0].stop - self._buffer.position
            skips = self._recorded[0].state is SpanState.SETTLED
            return min(left, replay_check.STEP_ROWS) if skips else left
        sink = self._partition.sink
        return sink.chunk_rows * sink.span_chunks

    def step(self, rows: Rows) -> Step:
        """Claim, resume or deliver, depending on what was found."""
        try:
            done = self._step(rows)
        except Fenced:
            self._doubts.report_late(self._caller.late)
            raise
        figures, self._figures = self._figures, NO_FIGURES
        return Step(done, figures)

    def _step(self, rows: Rows) -> bool:
        partition, buffer = self._partition, self._buffer
        if self._action is None:
            return self._claim(rows)
        if self._action is Action.COUNT:
            if not replay_check.goes_on(partition, buffer, rows):
                self._note(replay_check.count_rows(self._parking, buffer.position, rows))
                return True
            self._parking.look_at_heads(Found.PENDING)
            partition.claim.spans()
            self._action = RESUME[Found.UNRECORDED, partition.capability].action
            return False
        if self._recorded:
            return self._resume(self._recorded[0], rows)
        self._deliver(rows)
        return True

    def _note(self, figures: Figures) -> None:
        """Add to the figures of this step, and note that the sink delivered."""
        if figures is not NO_FIGURES:
            self._add(figures)
            self._faults.note(figures)

    def _add(self, figures: Figures) -> None:
        """Add to the figures of this step."""
        none = self._figures is NO_FIGURES
        self._figures = figures if none else self._figures + figures

    def finish(self) -> Finish:
        """Settle an OPAQUE span now; others are settled when the driver completes the minibatch."""
        if self._action is not Action.COUNT:
            if not self._called:
                self._faults.stop_if_nothing_was_tried()
            try:
                if self._partition.capability is Capability.OPAQUE:
                    self._settle()
                else:
                    self._partition.within_lease()
            except Fenced:
                self._doubts.report_late(self._caller.late)
                raise
        sent = self._parking.last_osn_sent(self._buffer.position)
        return Finish(sent, bool(self._recorded), self._faults.in_a_row)

    def give_up(self) -> None:
        """Settle what was acknowledged."""
        try:
            self._settle()
        except Fenced:
            self._doubts.report_late(self._caller.late)
            raise

    def close(self) -> None:
        """Close the session."""
        self._caller.close()

    # -- claim and resume

    def _claim(self, rows: Rows) -> bool:
        """Claim the partition with its first span; read the spans of one that is found pending."""
        partition, parking, columns = self._partition, self._parking, self._buffer.columns
        # 1. Read which entities are blocked: their events are parked, not sent.
        parking.look_at_heads(Found.NEW)
        location = partition.sink.locate(partition.target)
        # 2. One commit: the claim, the first intent, and what is parked. After a crash from here
        #    on, the next attempt finds which events may have been sent.
        while True:
            draft = self._drafts.next(rows)
            try:
                found = partition.claim.claim(draft.span, draft.parks, location, columns=columns)
            except HeadMoved:
                parking.reread_heads()
                continue
            break
        # 3. Send only if this attempt inserted the row: a crashed one may have sent it.
        self._action = RESUME[found, partition.capability].action
        if self._action is Action.DELIVER:
            self._faults.recall()
            self._parked(draft)
            self._send(draft)
            return True
        if self._action is Action.READ_SPANS:
            self._read_spans()
        return False

    def _parked(self, draft: Draft) -> None:
        """Note what the commit of a span has parked."""
        if draft.parks.rows:
            self._note(self._parking.committed(draft.parks))

    def _read_spans(self) -> None:
        """Read the recorded spans, and wait out earlier calls if nothing fences them."""
        partition = self._partition
        self._parking.look_at_heads(Found.PENDING)
        row = partition.claim.row
        done = 0 if row is None else row.done
        spans = [span for span in partition.claim.spans() if span.stop > done]
        if done:
            covered = SpanRow(
                number=-1,
                chunks=((0, done),),
                state=SpanState.SETTLED,
                running=(row.digest if row is not None else None) or "",
                ids=(),
                attempt=partition.assignment.attempt,
                at=0.0,
                osn=(0, 0),
            )
            spans = [covered, *spans]
        self._recorded = deque(spans)
        parked = self._doubts.read()
        self._faults.recall(spans, parked, self._parking.positions)
        if any(span.state is SpanState.INTENDED for span in spans) and self._waits():
            self._doubts.wait_out_the_attempt_before()

    def _waits(self) -> bool:
        """Whether calls in flight are waited out before the destination is asked or sent to."""
        sink = self._partition.sink
        if sink.capability is Capability.PROBING:
            return True
        return sink.capability is Capability.OPAQUE and DOUBT[sink.on_doubt].waits

    def _resume(self, span: SpanRow, rows: Rows) -> bool:
        """Do what the RESUME table says about one recorded span."""
        partition, stop = self._partition, self._buffer.position + len(rows)
        action = RESUME[self._found_of(span), partition.capability].action
        if stop < span.stop:
            return True  # the input ended, or a settled span is skipped in steps
        self._recorded.popleft()
        # 1. Compare the digests before anything is sent: after a crash Spark may replay other rows.
        running = self._buffer.digest_to(stop)
        if running != span.running:
            recorded, found = f"digest {span.running}", f"digest {running}"
            raise partition.diverged(span.stop, recorded, found, rows)
        # 2. A settled span was delivered: only count it, and what was handled of an intended one.
        if action is Action.SKIP:
            self._note(self._parking.count_before(range(span.start, span.stop)))
            return True
        handled = rows.contained_in(span.handled)
        if handled.any():
            self._note(self._parking.count_before(set(rows.positions[handled].tolist())))
        # 3. Doubt, ask for or repeat the rest: the attempt that crashed may have sent any of it.
        draft = Draft(span, rows, handled, NO_PARKS)
        if action is Action.DOUBT:
            self._doubt_all(draft)
        else:
            if action is Action.REPEAT:
                self._inherit(draft)
            self._send(draft, ask_first=action is Action.ASK_ARRIVED, resumed=True)
            self._inherited = False
            self._caller.end_span()
        return True

    def _inherit(self, draft: Draft) -> None:
        """Mark it unsure: the previous attempt may have sent it, or may yet, under the same key."""
        sink = self._partition.sink
        left = draft.to_send(draft.span.start, draft.span.stop)
        self._caller.inherit(left.positions.tolist())
        self._inherited = DOUBT[sink.on_doubt].waits

    def _found_of(self, span: SpanRow) -> Found:
        if span.state is SpanState.SETTLED:
            return Found.SETTLED
        return Found.EXPIRED if self._partition.forgotten(span.at) else Found.INTENDED

    def _doubt_all(self, draft: Draft) -> None:
        """Doubt the events of a span that were not handled before: nothing can be asked."""
        if not len(draft.to_send(draft.span.start, draft.span.stop)):
            self._unsettled = draft
            return
        left = self._left(self._failed.after_crash(draft, draft.span.start))
        if left is not None:
            self._send(left)

    def _left(self, rest: Rest) -> Draft | None:
        """Note what was done with a failed chunk; return what is left to be sent."""
        self._note(rest.figures)
        return rest.draft

    # -- deliver

    def _deliver(self, rows: Rows) -> None:
        """Settle the previous span and record the next one in one commit, then send it."""
        partition, parking = self._partition, self._parking
        # 1. One commit, after the last answer for the previous span and before the first call of
        #    the next: a crash leaves one of the two intended, and nothing is sent unrecorded. A run
        #    that is asked to stop ends here, and settles the previous span on its own.
        while True:
            draft = self._drafts.next(rows)
            before = None if self._unsettled is None else self._unsettled.span.settled()
            try:
                partition.claim.write(
                    settled=before, intended=draft.span, parks=draft.parks, may_stop=True
                )
            except HeadMoved:
                parking.reread_heads()
                continue
            break
        # 2. Only now send: a call before the commit would be unknown to the next attempt.
        self._unsettled = None
        self._caller.begin_span()
        self._parked(draft)
        self._send(draft)

    def _send(self, draft: Draft, *, ask_first: bool = False, resumed: bool = False) -> None:
        """Send the chunks of a recorded span in order; after a failure the rest is a new span."""
        current: Draft | None = draft
        queue: deque[Range] = deque(draft.span.chunks)
        delivered = 0
        while queue and current is not None:
            start, stop = queue.popleft()
            rows = current.to_send(start, stop)
            count = rows.batch.num_rows
            if not count:
                continue
            # 1. What may have been sent before a crash is in doubt once its key may be forgotten.
            if resumed and self._partition.forgotten(current.span.at):
                resumed, current = False, self._left(self._failed.after_crash(current, start))
                queue = deque() if current is None else deque(current.span.chunks)
                continue
            chunk = self._partition.chunk(rows, start, stop, current.span.number)
            # 2. Ask before sending: a chunk may have arrived before the crash.
            if ask_first and self._caller.has_arrived(chunk):
                self._note(Figures(suppressed=count))
                continue
            # 3. Call. If nothing arrived, withdraw: the next attempt would find a doubt.
            self._called = True
            try:
                result = self._caller.call(chunk, current.span.at)
            except (NotDelivered, SinkBroken):
                with suppress(LedgerUnavailable):  # the first error is the one to raise
                    self._failed.withdraw(current, chunk)
                raise
            if isinstance(result, Receipt) and not result.failures:
                delivered += count
                self._faults.answered()
                continue
            # 4. Park failures and record the rest in one commit: a crash before leaves all
            #    intended.
            if self._inherited:
                self._doubts.wait_out_the_attempt_before()
                self._inherited = False
            current = self._left(self._failed.after_call(current, queue, chunk, result))
            queue = deque() if current is None else deque(current.span.chunks)
        self._unsettled = current
        if delivered:  # the answers were noted one by one
            self._add(Figures(delivered=delivered))

    def _settle(self) -> None:
        """Settle the last span on its own."""
        if self._unsettled is not None:
            draft, self._unsettled = self._unsettled, None
            self._partition.claim.write(settled=draft.span.settled())


# -- drafts of spans


@dataclass(frozen=True, slots=True)
class Draft:
    """A span to be recorded, with its rows and which of them are not to be sent from here."""

    span: SpanRow
    rows: Rows
    handled: NDArray[np.bool_]
    parks: Parks

    def to_send(self, start: int, stop: int) -> Rows:
        """Return the rows of the range [start, stop) that are to be sent."""
        first = self.span.chunks[0][0]
        low, high = start - first, stop - first
        chosen = self.rows.slice(low, high)
        handled = self.handled[low:high]
        return chosen.take(~handled) if handled.any() else chosen


@dataclass(frozen=True)
class Drafts:
    """Drafts the spans of one partition, over the rows that the buffer gives next."""

    partition: SinkPartition
    parking: PartitionParking
    buffer: Buffer
    caller: Caller
    doubts: Doubts
    takes_python_values: bool

    def next(self, rows: Rows) -> Draft:
        """Draft the next span, cut by the sink's limits as they are now.

        A function is called with Python values: one that cannot be converted is found here, before
        there is an intent. Raises `HeldInDoubt` if it would park more than the sink allows.
        """
        if self.takes_python_values:
            rows.require_python_values()
        draft = self.draft(rows, rows.ranges(self.partition.sink.chunk_rows))
        if draft.parks.rows:
            self.parking.limit(draft.parks)
        return draft

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
        partition = self.partition
        besides = {(row.entity, row.scope) for row in to_park if row.blocks}
        handled, waiting = self.parking.not_sent(rows, besides)
        if known is not None:
            handled |= known
            waiting &= ~known
        recorded_at = partition.client.clock.wall() if at is None else at
        places = np.flatnonzero(waiting).tolist()
        followers = [self._follower(rows, place, recorded_at) for place in places]
        to_plan = _parked_once(to_park, followers)
        parks = self.parking.plan(to_plan) if to_plan else NO_PARKS
        handled = handled | waiting
        start, stop, before = ranges[0][0], ranges[-1][1], partition.claim.osn
        span = SpanRow(
            number=partition.claim.next_span,
            chunks=tuple(ranges),
            state=SpanState.INTENDED,
            running=self.buffer.digest_to(stop),
            ids=rows.id_sets_of(ranges),
            attempt=partition.assignment.attempt,
            at=recorded_at,
            osn=(before + start + 1, before + stop),
            handled=rows.take(handled).id_sets() if handled.any() else EntityIds.EMPTY,
        )
        return Draft(span, rows, handled, parks)

    def _follower(self, rows: Rows, place: int, recorded_at: float) -> ParkedRow:
        """Return the row that parks an event behind the first of its entity: in doubt if an earlier
        attempt, or one of an older generation, may have sent it.
        """
        why = "an event of its entity is parked"
        row = parked_row(self.partition, rows, place, ParkedState.WAITING, why)
        if row.position in self.caller.unsure or self.doubts.was_sent_before(rows, place):
            return replace(row, doubted=True, at=recorded_at)
        return row

    def cut_off(self, draft: Draft, first: int) -> SpanRow:
        """Return the part of a span before `first`, as it is once settled."""
        span = draft.span
        rows = draft.rows.slice(0, first - span.start)
        part = replace(
            span,
            chunks=((span.start, first),),
            ids=(rows.id_sets(),),
            running=self.buffer.digest_to(first),
            osn=(span.osn[0], self.partition.claim.osn + first),
            handled=rows.take(draft.handled[: first - span.start]).id_sets(),
        )
        return part.settled()

    def kept(self, draft: Draft, last: int, handled: AbstractSet[int], tries: int = 0) -> Draft:
        """Return a span, under its number, that ends with the chunk of position `last`: the chunks
        after it were never sent. Events at the `handled` positions are not sent any more.
        """
        span = draft.span
        chunks = tuple(each for each in span.chunks if each[0] <= last)
        stop = chunks[-1][1]
        rows = draft.rows.slice(0, stop - span.start)
        known = draft.handled[: stop - span.start] | np.isin(rows.positions, list(handled))
        kept = replace(
            span,
            chunks=chunks,
            ids=span.ids[: len(chunks)],
            running=self.buffer.digest_to(stop),
            osn=(span.osn[0], self.partition.claim.osn + stop),
            handled=rows.take(known).id_sets() if known.any() else EntityIds.EMPTY,
            tries=tries,
        )
        return Draft(kept, rows, known, NO_PARKS)


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
