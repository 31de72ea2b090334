"""Closes an older generation: what was handled in its pending partitions goes into watermarks.

Always true:
- fence first, then ask: take over the ledger's row, then the destination's, and only then ask;
- an event that may have arrived is never left for a re-read to send, unless its key absorbs it or
  the policy says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from semel.delivery.calling import forgets, open_session
from semel.delivery.parking.parking import ids_of
from semel.delivery.recovery.watermarks import Reached
from semel.events import EntityIds, IdSet, Memory, chunk_key
from semel.ledger import (
    JOURNAL_TABLE,
    ClosedPartition,
    HeadMoved,
    ParkedRow,
    PositionMark,
    Standing,
    close_partition,
    plan_parking,
    read_heads,
    read_parked,
    read_row,
    require_reached,
    unsure_of,
    watermark_of,
)
from semel.protocol import (
    DOUBT,
    RECORDS_INTENTS,
    Capability,
    OnReject,
    ParkedState,
    Remedy,
    SpanState,
    outstanding,
)
from semel.sinks import Tail, Target, lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.delivery.audit import Auditing
    from semel.events import EventID, Identity
    from semel.ledger import Journal, JournalEntry, LedgerClient, Leftover, OpenMinibatch, SpanRow
    from semel.runtime import Runtime
    from semel.sinks import (
        AnySession,
        ProbingSession,
        Progress,
        SequencedSession,
        Sink,
        TransactionalSession,
        WholeSession,
    )


@dataclass(frozen=True, slots=True)
class Handled:
    """What is known of a partition that no attempt will finish.

    Attributes:
        ids: delivered, parked or dropped by policy.
        upto: with position identity, the last id up to which everything is handled.
        doubtful: may have arrived, and nothing can be asked.
        unsure: may have arrived, and comes again under a key that absorbs it.
        rejected: refused by the destination's script, not parked yet: position, scope, id, why.
    """

    ids: EntityIds = field(default=EntityIds.EMPTY)
    upto: EventID | None = None
    osn: int = 0
    sent: int = 0
    doubtful: EntityIds = field(default=EntityIds.EMPTY)
    unsure: EntityIds = field(default=EntityIds.EMPTY)
    span: SpanRow | None = None
    rejected: tuple[tuple[int, str, EventID, str], ...] = ()


@dataclass
class Closing:
    """Closes what older generations of a pipeline left, after their rows were taken over in the
    ledger. Runs on the driver, before the first task of a run.
    """

    client: LedgerClient
    opening: OpenMinibatch
    sinks: Mapping[str, Sink]
    identity: Identity
    journal: Journal
    runtime: Runtime
    auditing: Auditing | None = None

    def run(self, found: Sequence[Leftover]) -> None:
        """Close every leftover."""
        # 1. Refuse a sink under which what was sent before would be sent again.
        for leftover in found:
            self._refuse_other_keys(leftover, self.sinks[leftover.sink])
        # 2. Wait for its calls in flight, if the destination does not fence: one of a crashed
        #    attempt that arrives after the question would be sent again.
        self._wait(found)
        # 3. Close each in one commit: after a crash the next run takes over those that are left.
        for leftover in found:
            self._close(leftover, self.sinks[leftover.sink])

    def _refuse_other_keys(self, leftover: Leftover, sink: Sink) -> None:
        """Refuse a sink that absorbs repeats in another way than when the partition was sent;
        unless a person decided that all of it is sent again.
        """
        row = leftover.row
        if not row.dropped:
            where = f"pipeline {self.client.pipeline!r}, sink {sink.name!r}, minibatch "
            where += f"{leftover.minibatch}, partition {row.partition}"
            row.refuse_other_keys(where, sink.absorbed_by)

    def _wait(self, found: Sequence[Leftover]) -> None:
        """Wait once for all, until no call of an older generation can be in flight at a destination
        that does not fence.
        """
        longest = 0.0
        for leftover in found:
            sink = self.sinks[leftover.sink]
            if leftover.row.dropped and not sink.whole:
                continue  # all of it is sent again, whatever is in flight
            doubts = sink.capability is Capability.OPAQUE and DOUBT[sink.on_doubt].waits
            if sink.capability is Capability.PROBING or sink.whole or doubts:
                before = leftover.predecessor
                gone = before.waited and self.runtime.gone(before.process)
                longest = max(longest, before.deadline_s + (0.0 if gone else before.lease_s))
        if longest:
            self.runtime.clock.sleep(longest)

    def _close(self, leftover: Leftover, sink: Sink) -> None:
        # 1. Fence the destination and ask what was handled: a crash here changes nothing, it is
        #    asked again.
        handled = self._handled(leftover, sink)
        if leftover.row.dropped:
            repeated = sink.capability is Capability.REPEATABLE
            unsure = handled.unsure | handled.ids if repeated else EntityIds.EMPTY
            handled = Handled(osn=handled.osn, sent=handled.sent, unsure=unsure)
        # 2. Decide what is parked and what is skipped when it comes again, with the heads as they
        #    are.
        while True:
            doubts, resent = self._doubts(leftover, sink, handled)
            kept = handled.ids | (handled.doubtful if not resent else EntityIds.EMPTY)
            doubts += self._rejected(leftover, sink, handled)
            heads = read_heads(self.client, sink.name)
            rows = read_parked(self.client, sink.name, minibatch=leftover.minibatch)
            marks = {at: text for at, row, text in rows if row.state.only_marks}
            fold = ClosedPartition(
                standing=self._standing(leftover, handled, kept),
                entries=self._entries(leftover, sink, kept, handled, resent=resent),
                parks=plan_parking(self.client.pipeline, sink.name, doubts, heads, marks),
            )
            # 3. Record it in the audit log: no task delivers its events again, so none records
            #    them. The same file is written when a crash repeats this step.
            if self.auditing is not None:
                parked = [row for _, row, _ in rows] + doubts
                self.auditing.record_closed(leftover, sink, handled, parked)
            # 4. One commit writes the watermarks and deletes the rows: a crash leaves either the
            #    rows, to be closed again, or the watermarks.
            try:
                close_partition(self.client, self.opening, leftover, fold)
            except HeadMoved:
                continue
            return

    # -- what is done

    def _handled(self, leftover: Leftover, sink: Sink) -> Handled:
        """Ask the destination, then the ledger, what was handled."""
        if sink.whole:
            self._empty_place(leftover, sink)
            return Handled(osn=leftover.row.osn)
        if sink.capability in RECORDS_INTENTS:
            handled = self._from_spans(leftover, sink)
            if self.opening.row.continues:
                # A replay may have events in between: only these are handled.
                handled = replace(handled, upto=None)
        else:
            handled = self._from_destination(leftover, sink)
        parked = [
            row
            for _, row, _ in read_parked(self.client, sink.name, minibatch=leftover.minibatch)
            if row.partition == leftover.row.partition and not row.state.only_marks
        ]
        known = {(row.position, row.scope, row.event) for row in parked}
        sent = handled.sent
        if sink.capability in RECORDS_INTENTS:
            sent = _last_sent(sent, {row.osn for row in parked})
        return replace(
            handled,
            rejected=tuple(each for each in handled.rejected if each[:3] not in known),
            ids=handled.ids | ids_of((row.scope, row.event) for row in parked),
            osn=max([handled.osn, *(row.osn for row in parked)]),
            sent=sent,
        )

    def _empty_place(self, leftover: Leftover, sink: Sink) -> None:
        """Empty a place where an attempt may have put a part: its events come again, elsewhere."""
        session = cast("WholeSession", self._open(leftover, sink))
        try:
            session.finish()
        finally:
            session.close()

    def _from_destination(self, leftover: Leftover, sink: Sink) -> Handled:
        """Take the progress row or the epoch, then ask."""
        session = self._open(leftover, sink)
        try:
            reached = cast("TransactionalSession | SequencedSession", session).take_over()
            self._require_kept(leftover, 0 if reached is None else reached.osn)
            if isinstance(reached, Tail):
                ids = EntityIds.EMPTY
                if self.identity.memory.keeps_ids:
                    sequenced = cast("SequencedSession", session)
                    ids = sequenced.delivered_ids(leftover.minibatch)
                if reached.minibatch != leftover.minibatch:
                    return Handled(osn=leftover.row.osn, sent=reached.osn)
                return Handled(ids, _id_of(reached.sort_key), reached.osn, sent=reached.osn)
            return self._from_row(leftover, reached)
        finally:
            session.close()

    def _require_kept(self, leftover: Leftover, osn: int) -> None:
        """Raise `Diverged` if the destination stands below what it acknowledged."""
        partition = leftover.row.partition
        acknowledged = self.opening.acknowledged(leftover.sink, partition)
        if outstanding(acknowledged, osn).gone:
            where = f"pipeline {self.client.pipeline!r}, sink {leftover.sink!r}"
            raise lost(f"{where}, partition {partition}", acknowledged, osn)

    def _from_row(self, leftover: Leftover, reached: Progress | None) -> Handled:
        if reached is None or reached.minibatch != leftover.minibatch or not reached.done:
            return Handled(osn=leftover.row.osn)
        rejected = tuple(
            (position, *reached.rejected_events[position], why)
            for position, why in reached.rejected.items()
            if position in reached.rejected_events
        )
        upto = _id_of(reached.sort_key)
        return Handled(reached.ids, upto, reached.osn, sent=reached.osn, rejected=rejected)

    def _from_spans(self, leftover: Leftover, sink: Sink) -> Handled:
        """Return settled spans as handled, and what destination or key show of an open one."""
        handled = Handled(osn=leftover.row.osn)
        for span in leftover.spans:
            handled = replace(handled, osn=max(handled.osn, span.osn[1]))
            if span.state is SpanState.SETTLED or span.stop <= leftover.row.done:
                handled = replace(
                    handled,
                    ids=_joined(handled.ids, span.ids),
                    upto=_greatest(span.ids),
                    sent=max(handled.sent, span.osn[1]),
                )
                continue
            handled = replace(handled, ids=handled.ids | span.handled, span=span)
            handled = self._open_span(leftover, sink, span, handled)
        return handled

    def _open_span(
        self, leftover: Leftover, sink: Sink, span: SpanRow, handled: Handled
    ) -> Handled:
        """Return what is known, with what destination or key show of a span that is not settled."""
        if sink.capability is Capability.PROBING:
            session = cast("ProbingSession", self._open(leftover, sink))
            try:
                arrived = [
                    ids
                    for place, ids in zip(span.chunks, span.ids, strict=True)
                    if session.arrived(self._chunk_key(leftover, span.number, place))
                ]
            finally:
                session.close()
            return replace(handled, ids=_joined(handled.ids, arrived))
        left = [ids - span.handled for ids in span.ids]
        repeatable = sink.capability is Capability.REPEATABLE and sink.keyed_by_event
        if repeatable and not forgets(sink, self.client.clock.wall() - span.at):
            return replace(handled, unsure=_joined(handled.unsure, left))
        return replace(handled, doubtful=_joined(handled.doubtful, left))

    def _chunk_key(self, leftover: Leftover, span: int, place: tuple[int, int]) -> str:
        partition = leftover.row.partition
        return chunk_key(
            self.client.at_sinks, leftover.sink, str(leftover.minibatch), partition, span, place
        )

    def _open(self, leftover: Leftover, sink: Sink) -> AnySession:
        row = leftover.row
        target = Target(
            self.client.at_sinks, sink.name, leftover.minibatch, row.partition, row.attempt
        )
        return open_session(sink, target, self.runtime)

    # -- what stays

    def _doubts(
        self, leftover: Leftover, sink: Sink, handled: Handled
    ) -> tuple[list[ParkedRow], bool]:
        """Return the rows that park events in doubt, without payload until they come again, and
        whether they are to be sent then.
        """
        remedy = DOUBT[sink.on_doubt].remedy
        state = {Remedy.PASS: ParkedState.SKIPPED, Remedy.SEND: ParkedState.RESENT}.get(
            remedy, ParkedState.HELD
        )
        judged = self.opening.row.continues
        cause = "a person judged its minibatch" if judged else "the checkpoint was lost"
        why = f"{cause} while it was being sent"
        ranks = _ranks(handled.span)
        places = [
            (ranks[scope, event], scope, event)
            for scope, ids in handled.doubtful.items()
            for event in ids
        ]
        rows = [
            replace(
                self._parked(leftover, place, state, why, blocks=state is ParkedState.HELD),
                doubted=True,
            )
            for place in sorted(places, key=itemgetter(0))
        ]
        return rows, state is ParkedState.RESENT

    def _rejected(self, leftover: Leftover, sink: Sink, handled: Handled) -> list[ParkedRow]:
        """Return the rows that park dead letters which progress has passed, without payload until
        they come again.
        """
        blocks = sink.on_reject is OnReject.BLOCK
        return [
            self._parked(
                leftover, (position, scope, event), ParkedState.REJECTED, why, blocks=blocks
            )
            for position, scope, event, why in handled.rejected
        ]

    def _parked(
        self,
        leftover: Leftover,
        place: tuple[int, str, EventID],
        state: ParkedState,
        why: str,
        *,
        blocks: bool,
    ) -> ParkedRow:
        """Return the row of an event at its position; with position identity it blocks no other
        event.
        """
        position, scope, event = place
        return ParkedRow(
            entity=scope,
            scope=scope,
            event=event,
            minibatch=leftover.minibatch,
            partition=leftover.row.partition,
            position=position,
            osn=leftover.row.osn + position + 1,
            state=state,
            why=why,
            at=self.client.clock.wall(),
            blocks=blocks and not self.identity.uses_source_partitions,
        )

    def _standing(self, leftover: Leftover, handled: Handled, kept: EntityIds) -> Standing:
        before = self.opening.standing(leftover.sink, leftover.row.partition)
        osn = max(before.osn, handled.osn)
        if self.identity.memory is not Memory.POSITIONS:
            return Standing(osn, max(before.sent, handled.sent), before.mark)
        mark = before.mark or PositionMark(generation=leftover.minibatch.generation)
        above = mark.above
        for scope in kept.scopes():
            above = above | kept.get(scope)
        if handled.upto is not None and (mark.upto is None or _after(handled.upto, mark.upto)):
            mark = replace(mark, upto=handled.upto, digest=None)
        if mark.upto is not None:
            upto = mark.upto
            above = IdSet.of(event for event in above if _after(event, upto))
        first = None if mark.upto is not None else _id_of(leftover.row.first)
        if first is not None and (mark.begins is None or _after(mark.begins, first)):
            mark = replace(mark, begins=first)
        return Standing(osn, max(before.sent, handled.sent), replace(mark, above=above))

    def _entries(
        self,
        leftover: Leftover,
        sink: Sink,
        kept: EntityIds,
        handled: Handled,
        *,
        resent: bool,
    ) -> list[JournalEntry]:
        """Return journal entries of what is handled, and of what comes again although it may have
        arrived.
        """
        watermark = self._entry(leftover, sink, kept, handled)
        made = [] if watermark is None else [watermark]
        unsure = handled.unsure | (handled.doubtful if resent else EntityIds.EMPTY)
        if unsure:
            number = self.opening.row.serial - 1
            state = {str(number): unsure.to_json()}
            operator = unsure_of(sink.name)
            made.append(self.journal.append(operator, leftover.row.partition, number, state))
        return made

    def _entry(
        self, leftover: Leftover, sink: Sink, kept: EntityIds, handled: Handled
    ) -> JournalEntry | None:
        if not self.identity.memory.keeps_ids or not kept:
            return None
        operator, partition = watermark_of(sink.name), leftover.row.partition
        number = self.opening.row.serial - 1
        if self.identity.memory is Memory.ALL_IDS:
            return self.journal.append(operator, partition, number, {str(number): kept.to_json()})
        base = self.journal.restore(operator, partition, before=number, check=require_reached)
        place = self.journal.place(operator, partition)
        left = EntityIds.EMPTY
        for sent in () if handled.span is None else handled.span.ids:
            left = left | (sent - kept)
        delta: dict[str, Any] = {}
        for scope, ids in kept.items():
            known = Reached()
            if scope in base.values:
                known = read_row(JOURNAL_TABLE, place, partial(Reached.load, base.values[scope]))
            reached = known.joined(ids, left.get(scope), leftover.minibatch.generation)
            delta[scope] = reached.dump()
        return self.journal.entry(operator, partition, number, base, delta)


def _joined(ids: EntityIds, more: Iterable[EntityIds]) -> EntityIds:
    for each in more:
        ids = ids | each
    return ids


def _ranks(span: SpanRow | None) -> dict[tuple[str, EventID], int]:
    """Return the place of each event of a span: given ids are ordered by id, then entity."""
    if span is None:
        return {}
    every = sorted(
        (cast("Any", each), name)
        for chunk in span.ids
        for name, ids in chunk.items()
        for each in ids
    )
    return {(name, each): at for at, (each, name) in enumerate(every, span.start)}


def _last_sent(settled: int, parked: set[int]) -> int:
    """Return the last OSN of settled spans whose event was not parked."""
    while settled in parked:
        settled -= 1
    return settled


def _id_of(sort_key: list[Any] | None) -> EventID | None:
    """Return the id in a sort key: with position identity they are the same, an offset, or offset
    and ordinals.
    """
    if not sort_key:
        return None
    return sort_key[0] if len(sort_key) == 1 else tuple(sort_key)


def _greatest(sets: Sequence[EntityIds]) -> EventID | None:
    """Return the greatest id of a settled span, with position identity (one scope)."""
    found: EventID | None = None
    for chunk in sets:
        for scope in chunk.scopes():
            last = chunk.get(scope).max()
            found = last if found is None or _after(last, found) else found
    return found


def _after(one: EventID, other: EventID) -> bool:
    """Whether an id comes after another of the same shape."""
    return bool(cast("Any", one) > cast("Any", other))
