"""What becomes of a chunk that was not delivered whole, if intents are recorded.

Always true:
- an event that was rejected or is in doubt is parked in the very commit that settles past it;
- what is left of a span is recorded as a new span in that commit, before any of it is sent;
- a chunk that may have arrived keeps its number and its events, and so its key, until it is
  decided.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.observer import Figures
from semel.delivery.parking.in_doubt import Verdicts
from semel.delivery.strategies.repeat import TRIES_MAX, unanswered
from semel.errors import DeliveryError, LedgerUnavailable, OutcomeUnknown, Rejected
from semel.ledger import HeadMoved
from semel.protocol import DOUBT, Capability, Remedy
from semel.sinks import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.calling import Faults
    from semel.delivery.parking.in_doubt import Doubts
    from semel.delivery.parking.parking import PartitionParking
    from semel.delivery.strategies.caller import Caller
    from semel.delivery.strategies.intent import Draft, Drafts
    from semel.events import Chunk
    from semel.ledger import ParkedRow

    Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left to be sent of a span, if anything, and what was done with the others."""

    draft: Draft | None
    figures: Figures


@dataclass(frozen=True)
class FailedChunks:
    """Settles, parks and records again, for one partition."""

    partition: SinkPartition
    parking: PartitionParking
    faults: Faults
    doubts: Doubts
    caller: Caller
    drafts: Drafts

    def after_call(
        self,
        draft: Draft,
        queue: Sequence[Range],
        chunk: Chunk,
        result: Receipt | DeliveryError,
    ) -> Rest:
        """Park what was rejected or is in doubt; return a new span of the rest, if any. `queue` are
        the chunks of the span that come after this one.
        """
        if isinstance(result, Rejected) and len(chunk) > 1:
            middle = int(chunk.rows.positions[len(chunk) // 2])
            halves = [(chunk.start, middle), (middle, chunk.stop)]
            return self._again(draft, chunk.start, [*halves, *queue], (), set())
        if isinstance(result, Receipt):
            failures = dict(result.failures)
        else:
            failures = dict.fromkeys(range(len(chunk)), result)
        down = False
        if self.partition.sink.capability is Capability.REPEATABLE:
            down = self._looks_down(draft, chunk, failures)
        if len(failures) < len(chunk):
            self.faults.answered()
        verdicts = self.doubts.judge(chunk.rows, failures, counts=not down)
        return self._after(draft, queue, chunk, verdicts)

    def after_crash(self, draft: Draft, start: int) -> Rest:
        """Doubt what is to be sent from `start` on; return what the policy sends all the same."""
        stop = draft.span.stop
        rows = draft.to_send(start, stop)
        why = OutcomeUnknown(f"attempt {draft.span.attempt} ended between intent and settle")
        verdicts = self.doubts.judge(rows, dict.fromkeys(range(len(rows)), why), found_so=True)
        return self._after(draft, (), self.partition.chunk(rows, start, stop), verdicts)

    def withdraw(self, draft: Draft, chunk: Chunk) -> None:
        """Remove the intent of a chunk of which nothing arrived, since the task fails."""
        if self.partition.sink.capability is Capability.PROBING:
            return  # the next attempt asks for what is recorded
        if any(position >= chunk.start for position in self.caller.unsure):
            self._keep_what_was_sent(draft, chunk, draft.span.tries)
            return
        rest = draft.rows.positions[chunk.start - draft.span.start :]
        handled = draft.handled[chunk.start - draft.span.start :]
        if not set(rest[handled].tolist()) <= self.parking.positions:
            return  # others were delivered, and only this intent records it
        if chunk.start > draft.span.start:
            self.partition.claim.write(settled=self.drafts.cut_off(draft, chunk.start))
        else:
            self.partition.claim.write(withdrawn=True)

    # -- a destination that may be down

    def _looks_down(
        self, draft: Draft, chunk: Chunk, failures: Mapping[int, DeliveryError]
    ) -> bool:
        """Whether the destination may be down, judging by this chunk. If so, the task fails, and
        later attempts repeat just that under the same keys; the one after `TRIES_MAX` of them holds
        it, so that no event stops a stream for long. It is not repeated if the keys may be
        forgotten. Raises `OutcomeUnknown`.
        """
        silent = unanswered(failures, len(chunk))
        if not silent:
            self.faults.heard()
            return False
        tries = draft.span.tries + 1
        if self.partition.forgotten(draft.span.at):
            return False
        if tries > TRIES_MAX:
            return True
        with suppress(LedgerUnavailable):
            self._keep_what_was_sent(draft, chunk, tries)
        raise OutcomeUnknown(
            f"{self.partition.place}: {len(silent)} events of chunk {chunk.key} "
            f"got no reply; the last cause: {silent[-1]}. Check that the destination runs, then "
            "restart the query: it repeats them with the same keys. After "
            f"{TRIES_MAX} attempts without a reply they are held"
        )

    def _keep_what_was_sent(self, draft: Draft, chunk: Chunk, tries: int) -> None:
        """Leave as intended, since the task fails, only what may have arrived and what is before
        it, so that nothing else is in doubt when its keys are forgotten. A chunk that may have
        arrived keeps its number and its events, and so its key.
        """
        start, stop = draft.span.start, draft.span.stop
        last = max(each for each in self.caller.unsure if start <= each < stop)
        done = draft.to_send(start, chunk.start).positions.tolist()
        arrived = {*done, *(self.caller.arrived if self.partition.sink.keyed_by_event else ())}
        self.partition.claim.keep(self.drafts.kept(draft, last, arrived, tries).span)

    # -- what was decided

    def _after(
        self, draft: Draft, queue: Sequence[Range], chunk: Chunk, verdicts: Verdicts
    ) -> Rest:
        """Settle up to the first event still to be sent, and record the rest as a new span."""
        inherited = self._may_have_been_sent(queue)
        if inherited and not self.partition.sink.keyed_by_event:
            if DOUBT[self.partition.sink.on_doubt].remedy not in (Remedy.SEND, Remedy.ASK):
                return self._hold_by_chunk(draft, chunk, verdicts)
            chunk, verdicts = self._doubt_rest(draft, chunk, verdicts)
            queue = ()
        parked = sum(not row.state.only_marks for row in verdicts.to_park)
        sent = len(chunk) - len(verdicts.to_send) - parked
        delivered = max(0, sent) if not verdicts.found_so else 0
        positions = chunk.rows.positions
        first = int(positions[min(verdicts.to_send)]) if verdicts.to_send else chunk.stop
        again = {int(positions[at]) for at in verdicts.to_send}
        handled = {int(position) for position in positions.tolist()} - again
        self.caller.decided(again | handled)
        ranges = [(first, chunk.stop)] if first < chunk.stop else []
        ranges.extend(queue)
        rest_was_sent = inherited or any(position > first for position in handled)
        if verdicts.stop and not rest_was_sent:
            ranges = []  # nothing of the rest was sent, so it must not be in doubt
        left = self._again(draft, first, ranges, verdicts.to_park, handled)
        if verdicts.stop:
            raise verdicts.stop
        return Rest(left.draft, left.figures + Figures(delivered=delivered))

    def _may_have_been_sent(self, ranges: Iterable[Range]) -> bool:
        """Whether an earlier attempt may have sent anything of these chunks (REPEATABLE)."""
        unsure = self.caller.unsure
        return any(start <= each < stop for start, stop in ranges for each in unsure)

    def _hold_by_chunk(self, draft: Draft, chunk: Chunk, verdicts: Verdicts) -> Rest:
        """Park a chunk of an inherited span; the chunks after it keep their numbers and so their
        keys. One that has an event of an entity that waits now can neither be sent before it nor be
        split: it may have arrived, so it is in doubt too.
        """
        parking = self.parking
        why = OutcomeUnknown("it may have arrived with its chunk, and its entity waits")
        while True:
            to_park = list(verdicts.to_park)
            done = set(chunk.rows.positions.tolist())
            for start, stop in draft.span.chunks:
                rows = draft.to_send(start, stop)
                besides = {(row.entity, row.scope) for row in to_park if row.blocks}
                if start < chunk.stop or not parking.blocked(rows, besides).any():
                    continue
                every = dict.fromkeys(range(len(rows)), why)
                more = self.doubts.judge(rows, every, counts=False)
                to_park += more.to_park
                done.update(rows.positions.tolist())
            parks = parking.plan(to_park)
            parking.limit(parks)
            done.update(draft.to_send(draft.span.start, chunk.start).positions.tolist())
            kept = self.drafts.kept(draft, draft.span.stop - 1, done)
            try:
                self.partition.claim.keep(kept.span, parks)
            except HeadMoved:
                parking.reread_heads()
                continue
            break
        figures = parking.committed(parks)
        self.caller.decided(done)
        if verdicts.stop:
            raise verdicts.stop
        return Rest(kept, figures)

    def _doubt_rest(self, draft: Draft, chunk: Chunk, verdicts: Verdicts) -> tuple[Chunk, Verdicts]:
        """Apply the policy, which sends events of an inherited chunk again under other keys, to all
        that comes after it in its span. Returns all of it as one chunk, with its verdicts.
        """
        stop = draft.span.stop
        rest = draft.to_send(chunk.stop, stop)
        why = OutcomeUnknown("it may have arrived with its chunk, and its entity waits")
        more = self.doubts.judge(rest, dict.fromkeys(range(len(rest)), why), counts=False)
        every = Verdicts(
            (*verdicts.to_park, *more.to_park),
            (*verdicts.to_send, *(len(chunk) + at for at in more.to_send)),
            verdicts.stop or more.stop,
            verdicts.found_so,
        )
        whole = self.partition.chunk(draft.to_send(chunk.start, stop), chunk.start, stop)
        return whole, every

    def _again(
        self,
        draft: Draft,
        first: int,
        ranges: Sequence[Range],
        to_park: Sequence[ParkedRow],
        handled: set[int],
    ) -> Rest:
        """Settle up to `first`, park `to_park` and record an intent for `ranges`, in one commit."""
        parking, span = self.parking, draft.span
        while True:
            before = None
            if first > span.start:
                before = self.drafts.cut_off(draft, first)
            rest = draft.rows.slice(first - span.start, span.stop - span.start)
            known = draft.handled[first - span.start :].copy()
            if handled:
                known |= np.isin(rest.positions, list(handled))
            new = self.drafts.draft(rest, ranges, known, to_park, span.at) if ranges else None
            parks = parking.plan(to_park) if new is None else new.parks
            parking.limit(parks)
            try:
                self.partition.claim.write(
                    settled=before,
                    withdrawn=before is None,
                    intended=None if new is None else new.span,
                    parks=parks,
                )
            except HeadMoved:
                parking.reread_heads()
                continue
            return Rest(new, parking.committed(parks))
