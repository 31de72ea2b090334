"""Drains parked events: those that a person wants resent, and those that waited behind them.

Always true:
- the parked events of an entity are sent in the order in which they came, one at a time;
- an event that may have been sent is not sent, unless the destination absorbs, reports or refuses a
  repeat, or a policy or a person said so - and then not before the last call of its first sender
  has ended;
- no event can stop the stream or keep the slot for ever: one that surely did not arrive and cannot
  be sent is a dead letter again, one that may have arrived and gets no answer is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from semel.delivery.calling import RefusedInDoubt
from semel.delivery.observer import EventResent, LogObserver
from semel.delivery.parking.resend_attempt import IN_VAIN_MAX, Again, ResendUnanswered, Unsendable
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.ledger import (
    SENT_AGAIN,
    WHOLE_SINK,
    Claimed,
    Resends,
    head_key,
    is_replayed_next,
    next_parked,
    read_heads,
    read_parked,
)
from semel.protocol import DOUBT, Capability, OnReject, ParkedState, Remedy
from semel.sinks import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery.observer import Observer
    from semel.ledger import Entity, LedgerClient, ParkedRow, SlotRow
    from semel.ledger.store import Key
    from semel.runtime import Process, Runtime
    from semel.sinks import (
        SequencedSession,
        Sink,
    )

    Item = tuple[Key, ParkedRow, str]

_MOMENT_S = 0.1


@dataclass
class Resending:
    """Sends the parked events of one sink that are free to go. Run by the driver between
    minibatches, or by a person.

    For SEQUENCED only the partition's own task may append: it passes its `partition` and its
    `session`. An event that may not go yet is waited for, or with `waits=False` left for later.
    No further event is sent once `ends()`.

    Attributes:
        held: the entities whose first event waits for a person, with the text that the head had:
            every decision changes it, and as long as it stands nothing of the entity is read.
    """

    client: LedgerClient
    sink: Sink
    process: Process
    runtime: Runtime
    partition: str | None = None
    session: SequencedSession | None = None
    waits: bool = True
    observer: Observer = field(default_factory=LogObserver)
    ends: Callable[[], bool] = lambda: False
    held: dict[Entity, str] = field(default_factory=dict)
    _unanswered: set[str] = field(default_factory=set, init=False)

    @cached_property
    def _resends(self) -> Resends:
        slot = WHOLE_SINK if self.partition is None else self.partition
        way = self.sink.absorbed_by
        return Resends(self.client, self.sink.name, self.process, slot, way)

    @cached_property
    def _again(self) -> Again:
        return Again(self.client, self.sink, self.runtime, self._resends, self.session)

    def drain(self) -> int:
        """Send what is free to go; return how many events were sent."""
        if self.sink.capability is Capability.SEQUENCED and self.session is None:
            return 0
        heads = read_heads(self.client, self.sink.name)
        if heads and is_replayed_next(self.client):
            return 0  # the replay brings the parked events
        for gone in self.held.keys() - heads.keys():
            del self.held[gone]
        held = self.held
        return sum(self._drain(at) for at, (_, text) in heads.items() if held.get(at) != text)

    def _drain(self, entity: Entity) -> int:
        """Send the parked events of one entity until one needs a person, then unblock it if none is
        left.
        """
        sent = 0
        while True:
            head = self.client.read_one(head_key(self.client.pipeline, self.sink.name, entity))
            if head is None:
                return sent
            rows = read_parked(self.client, self.sink.name, entity[0])
            if self.partition is not None and not self._ours(rows, entity):
                return sent
            item = next_parked(rows, entity)
            if item is None:
                if self._resends.unblock(entity, head):
                    return sent
            elif item[1].state in (ParkedState.HELD, ParkedState.REJECTED):
                self.held[entity] = head
                return sent
            elif (
                self.ends()
                or item[1].value is None
                or not (self.waits or self._left_s(item[1]) <= 0)
                or not self._send(item)
            ):
                return sent
            else:
                sent += 1

    def _ours(self, rows: list[Item], entity: Entity) -> bool:
        """Whether an entity belongs to the partition whose task this is."""
        return all(
            row.partition == self.partition
            for _, row, _ in rows
            if (row.entity, row.scope) == entity and not row.state.final
        )

    # -- one event

    def _send(self, item: Item) -> bool:
        """Send one event, or find out its outcome; False if draining has to stop."""
        claimed = self._claim(item)
        return claimed is not None and self._finish(claimed)

    def _finish(self, claimed: Claimed) -> bool:
        """Send what is claimed and record the outcome, unless a later sender does."""
        try:
            return self._settle(claimed)
        except Fenced:
            if self.session is not None:  # the log's writer, so the whole task may be fenced
                raise
            return False
        except ResendUnanswered as unanswered:
            fenced = self.sink.capability in (Capability.TRANSACTIONAL, Capability.SEQUENCED)
            if not fenced and self._again.in_vain(claimed):
                cause = unanswered.__cause__ or "no answer"
                why = f"the destination does not report whether it arrived ({cause})"
                return self._doubt(claimed, OutcomeUnknown(why))
            self._report(
                claimed, "being sent (no reply; the destination is asked again whether it arrived)"
            )
            self._unanswered.add(claimed.key.key)
            return False  # it stays claimed, and the next drain asks for its outcome

    def _settle(self, claimed: Claimed) -> bool:
        # 1. Wait for calls in flight: an earlier sender that crashed may have begun one that still
        #    arrives.
        taken_over = claimed.was.state is ParkedState.SENDING
        twice = taken_over and self._sends_again
        self._wait_before(claimed, taken_over=taken_over)
        # 2. Send, but ask first if it was taken over: its sender crashed before it recorded an
        #    outcome.
        result = self._sent(claimed, taken_over=taken_over)
        if isinstance(result, OutcomeUnknown) and not taken_over and self._asks:
            self.runtime.clock.sleep(self.sink.deadline_s)
            result = self._again.ask(claimed)
        # 3. Record the outcome in the commit that frees the slot. After a crash before it, the
        #    event is still claimed, and the next sender asks for its outcome.
        if isinstance(result, NotDelivered):
            if taken_over and self.sink.capability is Capability.REPEATABLE:
                raise ResendUnanswered  # the claim says since when it may have been sent
            again = ParkedState.RESEND if taken_over else claimed.was.state
            self._record(claimed, again, str(result), blocks=True, doubted=twice)
            return False
        if isinstance(result, Receipt):
            self._record(claimed, ParkedState.DELIVERED, SENT_AGAIN, blocks=False, doubted=twice)
            return True
        if isinstance(result, Rejected) and claimed.was.doubted:
            result = RefusedInDoubt.after(result)  # a refusal undoes nothing that was in doubt
        if isinstance(result, Rejected):
            waits = self.sink.on_reject is OnReject.BLOCK or isinstance(result, Unsendable)
            blocks = waits and claimed.was.blocks
            self._record(claimed, ParkedState.REJECTED, str(result), blocks=blocks)
            return not blocks
        return self._doubt(claimed, result)

    def _sent(self, claimed: Claimed, *, taken_over: bool) -> Receipt | DeliveryError:
        """Send it. Raises `ResendUnanswered` if it may have arrived and there is no answer."""
        try:
            return self._again.deliver(claimed, taken_over=taken_over)
        except (NotDelivered, OutcomeUnknown) as error:
            if taken_over or isinstance(error, OutcomeUnknown):
                raise ResendUnanswered from error  # no answer, and it may have arrived before
            return error  # no answer, so nothing was sent
        except ConfigurationError as error:
            if taken_over:
                raise ResendUnanswered from error  # not asked, and it may have arrived before
            return Unsendable(str(error))
        except (SemelError, ResendUnanswered):
            raise
        except Exception as error:
            raise ResendUnanswered from error

    def _record(
        self,
        claimed: Claimed,
        state: ParkedState,
        why: str,
        *,
        blocks: bool,
        doubted: bool = False,
    ) -> None:
        """Record the outcome, and notify the observer. Raises `Fenced` if a later sender has it."""
        why = self.client.conceal(why)
        self._resends.settle(claimed, state, why, blocks=blocks, doubted=doubted)
        self._report(claimed, f"{state.value} ({why})", state)

    def _report(self, claimed: Claimed, outcome: str, state: ParkedState | None = None) -> None:
        """Notify the observer which parked event was sent, who asked for it, and the outcome."""
        row = claimed.row
        self.observer.observe(
            EventResent(
                self.client.pipeline,
                self.sink.name,
                row.shown or row.entity,
                row.event,
                row.attempts,
                row.by,
                outcome,
                state,
            )
        )

    def _claim(self, item: Item) -> Claimed | None:
        """Claim the event; first free the slot from a sender that recorded no outcome."""
        slot = self._resends.slot()
        if slot is not None and slot.current is not None:
            if not self._given_up(slot) or slot.current in self._unanswered:
                return None
            stuck = self._resends.at(slot.current)
            if stuck is not None and stuck[1].state is not ParkedState.SENDING:
                return None  # its sender has ended meanwhile
            if stuck is not None and stuck[0] != item[0]:
                left = self._resends.claim(*stuck)
                if left is None:
                    return None
                self._finish(left)  # whatever the outcome: the next claim needs a free slot
            else:
                item = stuck or item
        return self._resends.claim(*item)

    def _given_up(self, slot: SlotRow) -> bool:
        """Whether the sender that has the slot can be taken over: the destination fences it, or it
        has surely ended, or it had all the time that a lease and a call may take.
        """
        if self.sink.capability in (Capability.TRANSACTIONAL, Capability.SEQUENCED):
            return True
        since = self.client.clock.wall() - slot.at
        return self.runtime.gone(slot.process) or since > self.sink.lease_s + self.sink.deadline_s

    def left_to_sender_s(self) -> float:
        """Return how long the sender that has the slot may still be sending; 0 if there is none, or
        it can be taken over.
        """
        slot = self._resends.slot()
        if slot is None or slot.current is None or self._given_up(slot):
            return 0.0
        since = self.client.clock.wall() - slot.at
        return max(self.sink.lease_s + self.sink.deadline_s - since, 0.0) + _MOMENT_S

    def _wait_before(self, claimed: Claimed, *, taken_over: bool) -> None:
        """Wait for the calls of an earlier sender of the event to end, if the destination does not
        fence.
        """
        unfenced = self.sink.capability in (Capability.PROBING, Capability.OPAQUE)
        if taken_over and unfenced:
            self.runtime.clock.sleep(self.sink.deadline_s)
        elif not taken_over and (left := self._left_s(claimed.was)) > 0:
            self.runtime.clock.sleep(left)

    def _left_s(self, row: ParkedRow) -> float:
        """Return how long a call from before an event was parked may still take."""
        absorbs = self.sink.capability is Capability.REPEATABLE and self.sink.keyed_by_event
        fences = self.sink.capability in (Capability.TRANSACTIONAL, Capability.SEQUENCED)
        if fences or absorbs or not row.doubted or row.state is ParkedState.SENDING:
            return 0.0
        since = self.client.clock.wall() - row.at
        return self.sink.lease_s + self.sink.deadline_s - since

    def _doubt(self, claimed: Claimed, why: DeliveryError) -> bool:
        """Apply the policy to a resend whose outcome is unknown."""
        again = claimed.row.attempts < IN_VAIN_MAX and not isinstance(why, RefusedInDoubt)
        match DOUBT[self.sink.on_doubt].remedy:
            case Remedy.PASS:
                self._record(claimed, ParkedState.SKIPPED, str(why), blocks=False)
                return True
            case Remedy.SEND if again:
                self._record(claimed, ParkedState.RESEND, str(why), blocks=True, doubted=True)
                return False
            case _:
                self._record(claimed, ParkedState.HELD, str(why), blocks=claimed.was.blocks)
                return False

    @property
    def _asks(self) -> bool:
        """Whether a function of the user is asked for events that may have arrived."""
        return self.sink.capability is Capability.OPAQUE and self.sink.probe is not None

    @property
    def _sends_again(self) -> bool:
        """Whether an event that may have arrived is sent once more because the policy says so."""
        opaque = self.sink.capability is Capability.OPAQUE
        return opaque and DOUBT[self.sink.on_doubt].remedy is Remedy.SEND
