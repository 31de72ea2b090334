"""Delivery to REPEATABLE, PROBING and OPAQUE: the intent is in the ledger before the effect.

Always true:
- a span is durable before its first chunk is sent, and settled (with the next one) after its last;
- a recorded span is cut as it was recorded, whatever the limits are now;
- an event that was rejected or is in doubt is parked in the very commit that settles past it;
- an effect starts only within the lease, counted from before the ledger was asked.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.parking.in_doubt import Doubts, Verdicts
from semel.delivery.strategies import replay_check
from semel.delivery.strategies.caller import Caller
from semel.delivery.strategies.repeat import TRIES_MAX, unanswered
from semel.delivery.strategies.spans import Draft, Drafts, settled
from semel.errors import (
    DeliveryError,
    Fenced,
    LedgerUnavailable,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SinkBroken,
)
from semel.ledger import NO_PARKS, HeadMoved, SpanRow
from semel.protocol import DOUBT, RESUME, Action, Capability, Found, Remedy, SpanState
from semel.sinks import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.delivery.lane import Lane
    from semel.events import Chunk, Rows
    from semel.ledger import ParkedRow

    Range = tuple[int, int]


class IntentStrategy:
    """Delivers chunks whose intents the ledger keeps."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._doubts = Doubts(lane)
        self._caller = Caller(lane)
        self._drafts = Drafts(lane, self._caller.unsure, self._doubts)
        self._action: Action | None = None
        self._recorded: deque[SpanRow] = deque()
        self._unsettled: Draft | None = None
        self._inherited = False

    def wants(self) -> int:
        """Return the size of a span; while resuming, of the next recorded one, as recorded."""
        lane = self._lane
        if self._action is Action.COUNT:
            return replay_check.wants(lane)
        if self._recorded:
            left = self._recorded[0].stop - lane.position
            skips = self._recorded[0].state is SpanState.SETTLED
            return min(left, replay_check.STEP_ROWS) if skips else left
        return lane.sink.chunk_rows * lane.sink.span_chunks

    def step(self, rows: Rows) -> int:
        """Claim, resume or deliver, depending on what was found."""
        self._drafts.rows = rows
        try:
            return self._step(rows)
        except Fenced:
            self._doubts.report_late(self._caller.late)
            raise

    def _step(self, rows: Rows) -> int:
        lane = self._lane
        if self._action is None:
            return self._claim(rows)
        if self._action is Action.COUNT:
            if not replay_check.goes_on(lane, rows):
                return replay_check.count_rows(lane, rows)
            lane.look_at_heads(Found.PENDING)
            lane.claim.spans()
            self._action = RESUME[Found.UNRECORDED, lane.sink.capability].action
            return 0
        if self._recorded:
            return self._resume(self._recorded[0], rows)
        self._deliver(rows)
        return len(rows)

    def finish(self) -> None:
        """Settle an OPAQUE span now; others are settled when the driver completes the minibatch."""
        if self._recorded:
            self._lane.short = True
        if self._action is Action.COUNT:
            return
        self._lane.faults.stop_if_nothing_was_tried()
        try:
            if self._lane.sink.capability is Capability.OPAQUE:
                self._settle()
            else:
                self._lane.within_lease()
        except Fenced:
            self._doubts.report_late(self._caller.late)
            raise

    def give_up(self) -> None:
        """Settle what was acknowledged: the task fails, but not because of it."""
        try:
            self._settle()
        except Fenced:
            self._doubts.report_late(self._caller.late)
            raise

    def close(self) -> None:
        """Close the session."""
        self._caller.close()

    # -- claim and resume

    def _claim(self, rows: Rows) -> int:
        """Claim the partition with its first span; read the spans of one that is found pending."""
        lane = self._lane
        # 1. Read which entities are blocked: their events are parked, not sent.
        lane.look_at_heads(Found.NEW)
        location = lane.sink.locate(lane.assignment.target(lane.sink))
        # 2. One commit: the claim, the first intent, and what is parked. After a crash from here
        #    on, the next attempt finds which events may have been sent.
        while True:
            draft = self._drafts.next(rows)
            lane.limit_parks(draft.parks)
            try:
                found = lane.claim.claim(draft.span, draft.parks, location)
            except HeadMoved:
                lane.reread_heads()
                continue
            break
        # 3. Send only if this attempt inserted the row: a crashed one may have sent it.
        self._action = RESUME[found, lane.sink.capability].action
        if self._action is Action.DELIVER:
            lane.faults.recall()
            lane.parked(draft.parks)
            self._send(draft)
            return len(rows)
        if self._action is Action.READ_SPANS:
            self._read_spans()
        return 0

    def _read_spans(self) -> None:
        """Read the recorded spans, and wait out earlier calls if nothing fences them."""
        lane = self._lane
        lane.look_at_heads(Found.PENDING)
        row = lane.claim.row
        done = 0 if row is None else row.done
        spans = [span for span in lane.claim.spans() if span.stop > done]
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
        lane.faults.recall(spans, self._doubts.read())
        if any(span.state is SpanState.INTENDED for span in spans) and self._waits():
            self._doubts.wait_out_the_attempt_before()

    def _waits(self) -> bool:
        """Whether calls in flight are waited out before the destination is asked or sent to."""
        sink = self._lane.sink
        if sink.capability is Capability.PROBING:
            return True
        return sink.capability is Capability.OPAQUE and DOUBT[sink.on_doubt].waits

    def _resume(self, span: SpanRow, rows: Rows) -> int:
        """Do what the RESUME table says about one recorded span."""
        lane = self._lane
        action = RESUME[self._found_of(span), lane.sink.capability].action
        if lane.position + len(rows) < span.stop:
            return len(rows)  # the input ended, or a settled span is skipped in steps
        self._recorded.popleft()
        # 1. Compare the digests before anything is sent: after a crash Spark may replay other rows.
        running = lane.running_after(rows, len(rows))
        if running != span.running:
            recorded, found = f"digest {span.running}", f"digest {running}"
            raise lane.diverged(span.stop, recorded, found, rows)
        # 2. A settled span was delivered: only count it, and what was handled of an intended one.
        if action is Action.SKIP:
            lane.count_before(range(span.start, span.stop))
            return len(rows)
        handled = rows.contained_in(span.handled)
        if handled.any():
            lane.count_before(set(rows.positions[handled].tolist()))
        # 3. Doubt, ask for or repeat the rest: the attempt that crashed may have sent any of it.
        draft = Draft(span, rows, handled, NO_PARKS)
        if action is Action.DOUBT:
            self._doubt_all(draft)
        else:
            if action is Action.REPEAT:
                self._inherit(draft)
            self._send(draft, ask_first=action is Action.ASK_ARRIVED, resumed=True)
            self._inherited = False
            self._caller.unsure.clear()
        return len(rows)

    def _inherit(self, draft: Draft) -> None:
        """Mark it unsure: the previous attempt may have sent it, or may yet, under the same key."""
        sink = self._lane.sink
        left = draft.to_send(draft.span.start, draft.span.stop)
        self._caller.unsure.update(left.positions.tolist())
        self._inherited = DOUBT[sink.on_doubt].waits

    def _found_of(self, span: SpanRow) -> Found:
        if span.state is SpanState.SETTLED:
            return Found.SETTLED
        return Found.EXPIRED if self._lane.forgotten(span.at) else Found.INTENDED

    def _doubt_all(self, draft: Draft) -> None:
        """Doubt the events of a span that were not handled before: nothing can be asked."""
        if not len(draft.to_send(draft.span.start, draft.span.stop)):
            self._unsettled = draft
            return
        left = self._doubt_from(draft, draft.span.start)
        if left is not None:
            self._send(left)

    def _doubt_from(self, draft: Draft, start: int) -> Draft | None:
        """Doubt what is to be sent from `start` on; return what the policy sends all the same."""
        stop = draft.span.stop
        rows = draft.to_send(start, stop)
        why = OutcomeUnknown(f"attempt {draft.span.attempt} ended between intent and settle")
        verdicts = self._doubts.judge(rows, dict.fromkeys(range(len(rows)), why), found_so=True)
        return self._after(draft, deque(), self._lane.chunk(rows, start, stop), verdicts)

    # -- deliver

    def _deliver(self, rows: Rows) -> None:
        """Settle the previous span and record the next one in one commit, then send it."""
        lane = self._lane
        # 1. One commit, after the last answer for the previous span and before the first call of
        #    the next: a crash leaves one of the two intended, and nothing is sent unrecorded.
        while True:
            draft = self._drafts.next(rows)
            before = None if self._unsettled is None else settled(self._unsettled.span)
            lane.limit_parks(draft.parks)
            try:
                lane.claim.write(settled=before, intended=draft.span, parks=draft.parks)
            except HeadMoved:
                lane.reread_heads()
                continue
            break
        # 2. Only now send: a call before the commit would be unknown to the next attempt.
        self._unsettled = None
        self._caller.late.clear()
        self._caller.unsure.clear()
        lane.parked(draft.parks)
        self._send(draft)

    def _send(self, draft: Draft, *, ask_first: bool = False, resumed: bool = False) -> None:
        """Send the chunks of a recorded span in order; after a failure the rest is a new span."""
        current: Draft | None = draft
        queue: deque[Range] = deque(draft.span.chunks)
        while queue and current is not None:
            start, stop = queue.popleft()
            rows = current.to_send(start, stop)
            if not len(rows):
                continue
            # 1. What may have been sent before a crash is in doubt once its key may be forgotten.
            if resumed and self._lane.forgotten(current.span.at):
                resumed, current = False, self._doubt_from(current, start)
                queue = deque() if current is None else deque(current.span.chunks)
                continue
            chunk = self._lane.chunk(rows, start, stop, current.span.number)
            # 2. Ask before sending: a chunk may have arrived before the crash.
            if ask_first and self._caller.has_arrived(chunk):
                self._lane.figures.suppressed += len(rows)
                continue
            # 3. Call. If nothing arrived, withdraw: the next attempt would find a doubt.
            self._lane.faults.calls += 1
            try:
                result = self._caller.call(chunk, current.span.at)
            except (NotDelivered, SinkBroken):
                with suppress(LedgerUnavailable):  # the first error is the one to raise
                    self._withdraw(current, chunk)
                raise
            if isinstance(result, Receipt) and not result.failures:
                self._lane.figures.delivered += len(rows)
                self._lane.faults.answered()
                continue
            # 4. Park failures and record the rest in one commit: a crash before leaves all
            #    intended.
            current = self._trouble(current, queue, chunk, result)
            queue = deque() if current is None else deque(current.span.chunks)
        self._unsettled = current

    def _trouble(
        self, draft: Draft, queue: deque[Range], chunk: Chunk, result: Receipt | DeliveryError
    ) -> Draft | None:
        """Park what was rejected or is in doubt; return a new span of the rest, if any."""
        if self._inherited:
            self._doubts.wait_out_the_attempt_before()
            self._inherited = False
        if isinstance(result, Rejected) and len(chunk) > 1:
            middle = int(chunk.rows.positions[len(chunk) // 2])
            halves = [(chunk.start, middle), (middle, chunk.stop)]
            return self._again(draft, chunk.start, [*halves, *queue], [], set())
        if isinstance(result, Receipt):
            failures = dict(result.failures)
        else:
            failures = dict.fromkeys(range(len(chunk)), result)
        down = False
        if self._lane.sink.capability is Capability.REPEATABLE:
            down = self._looks_down(draft, chunk, failures)
        if len(failures) < len(chunk):
            self._lane.faults.answered()
        verdicts = self._doubts.judge(chunk.rows, failures, counts=not down)
        return self._after(draft, queue, chunk, verdicts)

    def _looks_down(
        self, draft: Draft, chunk: Chunk, failures: Mapping[int, DeliveryError]
    ) -> bool:
        """Whether the destination may be down, judging by this chunk. If so, the task fails, and
        later attempts repeat just that under the same keys; the one after `TRIES_MAX` of them holds
        it, so that no event stops a stream for long. It is not repeated if the keys may be
        forgotten. Raises `OutcomeUnknown`.
        """
        lane = self._lane
        silent = unanswered(failures, len(chunk))
        if not silent:
            lane.faults.in_a_row = 0
            return False
        tries = draft.span.tries + 1
        if lane.forgotten(draft.span.at):
            return False
        if tries > TRIES_MAX:
            return True
        with suppress(LedgerUnavailable):
            self._keep_what_was_sent(draft, chunk, tries)
        raise OutcomeUnknown(
            f"{lane.assignment.place(lane.sink)}: {len(silent)} events of chunk {chunk.key} "
            f"got no answer, the last because of: {silent[-1]}. Nothing is lost: the next "
            f"attempt repeats them under the same keys, and after {TRIES_MAX} attempts without an "
            "answer they are held. See that the destination runs, then restart the query"
        )

    def _after(
        self, draft: Draft, queue: deque[Range], chunk: Chunk, verdicts: Verdicts
    ) -> Draft | None:
        """Settle up to the first event still to be sent, and record the rest as a new span."""
        inherited = self._may_have_been_sent(queue)
        if inherited and not self._lane.sink.keyed_by_event:
            if DOUBT[self._lane.sink.on_doubt].remedy not in (Remedy.SEND, Remedy.ASK):
                return self._hold_by_chunk(draft, chunk, verdicts)
            chunk, queue = self._doubt_rest(draft, chunk, verdicts), deque()
        parked = sum(not row.state.only_marks for row in verdicts.to_park)
        sent = len(chunk) - len(verdicts.to_send) - parked
        self._lane.figures.delivered += max(0, sent) if not verdicts.found_so else 0
        positions = chunk.rows.positions
        first = int(positions[min(verdicts.to_send)]) if verdicts.to_send else chunk.stop
        again = {int(positions[at]) for at in verdicts.to_send}
        handled = {int(position) for position in positions.tolist()} - again
        self._caller.unsure -= again | handled  # all of these are decided
        ranges = [(first, chunk.stop)] if first < chunk.stop else []
        ranges.extend(queue)
        rest_was_sent = inherited or any(position > first for position in handled)
        if verdicts.stop and not rest_was_sent:
            ranges = []  # nothing of the rest was sent, so it must not be in doubt
        left = self._again(draft, first, ranges, verdicts.to_park, handled)
        if verdicts.stop:
            raise verdicts.stop
        return left

    def _may_have_been_sent(self, ranges: Iterable[Range]) -> bool:
        """Whether an earlier attempt may have sent anything of these chunks (REPEATABLE)."""
        unsure = self._caller.unsure
        return any(start <= each < stop for start, stop in ranges for each in unsure)

    def _hold_by_chunk(self, draft: Draft, chunk: Chunk, verdicts: Verdicts) -> Draft:
        """Park a chunk of an inherited span; the chunks after it keep their numbers and so their
        keys. One that has an event of an entity that waits now can neither be sent before it nor be
        split: it may have arrived, so it is in doubt too.
        """
        lane = self._lane
        why = OutcomeUnknown("it may have arrived with its chunk, and its entity waits")
        while True:
            to_park = list(verdicts.to_park)
            done = set(chunk.rows.positions.tolist())
            for start, stop in draft.span.chunks:
                rows = draft.to_send(start, stop)
                besides = {(row.entity, row.scope) for row in to_park if row.blocks}
                if start < chunk.stop or not lane.blocked(rows, besides).any():
                    continue
                every = dict.fromkeys(range(len(rows)), why)
                more = self._doubts.judge(rows, every, counts=False)
                to_park += more.to_park
                done.update(rows.positions.tolist())
            parks = lane.parks(to_park)
            lane.limit_parks(parks)
            done.update(draft.to_send(draft.span.start, chunk.start).positions.tolist())
            kept = self._drafts.kept(draft, draft.span.stop - 1, done)
            try:
                lane.claim.keep(kept.span, parks)
            except HeadMoved:
                lane.reread_heads()
                continue
            break
        lane.parked(parks)
        self._caller.unsure -= done
        if verdicts.stop:
            raise verdicts.stop
        return kept

    def _doubt_rest(self, draft: Draft, chunk: Chunk, verdicts: Verdicts) -> Chunk:
        """Apply the policy, which sends events of an inherited chunk again under other keys, to all
        that comes after it in its span. Returns all of it as one chunk.
        """
        stop = draft.span.stop
        rest = draft.to_send(chunk.stop, stop)
        why = OutcomeUnknown("it may have arrived with its chunk, and its entity waits")
        more = self._doubts.judge(rest, dict.fromkeys(range(len(rest)), why), counts=False)
        verdicts.to_park += more.to_park
        verdicts.to_send += [len(chunk) + at for at in more.to_send]
        verdicts.stop = verdicts.stop or more.stop
        return self._lane.chunk(draft.to_send(chunk.start, stop), chunk.start, stop)

    def _again(
        self,
        draft: Draft,
        first: int,
        ranges: Sequence[Range],
        to_park: Sequence[ParkedRow],
        handled: set[int],
    ) -> Draft | None:
        """Settle up to `first`, park `to_park` and record an intent for `ranges`, in one commit."""
        lane, span = self._lane, draft.span
        while True:
            before = None
            if first > span.start:
                before = settled(self._drafts.cut_off(draft, first))
            rest = draft.rows.slice(first - span.start, span.stop - span.start)
            known = draft.handled[first - span.start :].copy()
            if handled:
                known |= np.isin(rest.positions, list(handled))
            new = self._drafts.draft(rest, ranges, known, to_park, span.at) if ranges else None
            parks = lane.parks(to_park) if new is None else new.parks
            lane.limit_parks(parks)
            try:
                lane.claim.write(
                    settled=before,
                    withdrawn=before is None,
                    intended=None if new is None else new.span,
                    parks=parks,
                )
            except HeadMoved:
                lane.reread_heads()
                continue
            lane.parked(parks)
            return new

    def _withdraw(self, draft: Draft, chunk: Chunk) -> None:
        """Remove the intent of a chunk of which nothing arrived, since the task fails."""
        if self._lane.sink.capability is Capability.PROBING:
            return  # the next attempt asks for what is recorded
        if any(position >= chunk.start for position in self._caller.unsure):
            self._keep_what_was_sent(draft, chunk, draft.span.tries)
            return
        rest = draft.rows.positions[chunk.start - draft.span.start :]
        handled = draft.handled[chunk.start - draft.span.start :]
        if not set(rest[handled].tolist()) <= self._lane.parked_at:
            return  # others were delivered, and only this intent records it
        if chunk.start > draft.span.start:
            self._lane.claim.write(settled=settled(self._drafts.cut_off(draft, chunk.start)))
        else:
            self._lane.claim.write(withdrawn=True)

    def _keep_what_was_sent(self, draft: Draft, chunk: Chunk, tries: int) -> None:
        """Leave as intended, since the task fails, only what may have arrived and what is before
        it, so that nothing else is in doubt when its keys are forgotten. A chunk that may have
        arrived keeps its number and its events, and so its key.
        """
        start, stop = draft.span.start, draft.span.stop
        last = max(each for each in self._caller.unsure if start <= each < stop)
        done = draft.to_send(start, chunk.start).positions.tolist()
        arrived = {*done, *(self._caller.arrived if self._lane.sink.keyed_by_event else ())}
        self._lane.claim.keep(self._drafts.kept(draft, last, arrived, tries).span)

    def _settle(self) -> None:
        """Settle the last span on its own."""
        if self._unsettled is not None:
            draft, self._unsettled = self._unsettled, None
            self._lane.claim.write(settled=settled(draft.span))
