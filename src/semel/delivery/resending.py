"""Draining parked events: what a person wants sent again, and what waited behind it.

Always true:
- the parked events of an entity are sent in the order in which they came, one at a time;
- nothing that may have been sent is sent, unless the destination absorbs, tells or refuses it, or a
  policy or a person said so - and then not before the last call of whoever sent it first has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.delivery.again import Again, Unanswered
from semel.errors import (
    DeliveryError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.ledger.parked import head_key, next_of, read_heads, read_parked
from semel.ledger.resends import WHOLE_SINK, Claimed, Resends
from semel.protocol import DOUBT, Capability, OnReject, ParkedState, Remedy
from semel.sinks import Receipt

if TYPE_CHECKING:
    from semel.delivery.surroundings import Surroundings
    from semel.ledger.parked import Entity
    from semel.ledger.processes import Process
    from semel.ledger.resends import SlotRow
    from semel.ledger.rows import ParkedRow
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Key
    from semel.sinks import (
        SequencedSession,
        Sink,
    )

    Item = tuple[Key, ParkedRow, str]


@dataclass
class Resending:
    """Sends what is parked and free to go, for one sink. Run by the driver between minibatches, or
    by a person.

    For SEQUENCED only the partition's own task may append: it gives its `partition` and its
    `session`. An event that may not go yet is waited for, or with `waits=False` left for later.
    """

    scribe: Scribe
    sink: Sink
    process: Process
    around: Surroundings
    partition: str | None = None
    session: SequencedSession | None = None
    waits: bool = True

    def __post_init__(self) -> None:
        slot = WHOLE_SINK if self.partition is None else self.partition
        self._resends = Resends(self.scribe, self.sink.name, self.process, slot)
        self._again = Again(self.scribe, self.sink, self.around, self._resends, self.session)

    def drain(self) -> int:
        """Send what is free to go; say how many events were sent."""
        if self.sink.capability is Capability.SEQUENCED and self.session is None:
            return 0
        sent = 0
        for entity in read_heads(self.scribe, self.sink.name):
            sent += self._drain(entity)
        return sent

    def _drain(self, entity: Entity) -> int:
        """Send the parked events of one entity until one needs a person, then unblock it if none is
        left.
        """
        sent = 0
        while True:
            head = self.scribe.read_one(head_key(self.scribe.pipeline, self.sink.name, entity))
            if head is None:
                return sent
            rows = read_parked(self.scribe, self.sink.name, entity[0])
            if self.partition is not None and not self._ours(rows, entity):
                return sent
            item = next_of(rows, entity)
            if item is None:
                if self._resends.unblock(entity, head):
                    return sent
            elif (
                item[1].state in (ParkedState.HELD, ParkedState.REJECTED)
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
        """Send one event, or find out what became of it; False when draining has to stop."""
        claimed = self._claim(item)
        return claimed is not None and self._finish(claimed)

    def _finish(self, claimed: Claimed) -> bool:
        """Send what is claimed and record what came of it, unless a later sender does."""
        try:
            return self._settle(claimed)
        except Fenced:
            if self.session is not None:  # the log's writer, so perhaps the whole task is
                raise
            return False
        except Unanswered:
            return False  # it stays claimed, and the next one to come asks what became of it

    def _settle(self, claimed: Claimed) -> bool:
        taken_over = claimed.was.state is ParkedState.SENDING
        twice = taken_over and self._sends_again
        self._wait_before(claimed, taken_over=taken_over)
        try:
            result = self._again.deliver(claimed, taken_over=taken_over)
        except (NotDelivered, OutcomeUnknown) as error:
            if taken_over or isinstance(error, OutcomeUnknown):
                raise Unanswered from error  # nobody answered, and it may have arrived before
            result = error  # nobody answered, so nothing was sent
        except (SemelError, Unanswered):
            raise
        except Exception as error:
            raise Unanswered from error
        if isinstance(result, NotDelivered):
            if taken_over and self.sink.capability is Capability.REPEATABLE:
                raise Unanswered  # by the claim it is known since when it may have been sent
            again = ParkedState.RESEND if taken_over else claimed.was.state
            self._resends.settle(claimed, again, str(result), blocks=True, doubted=twice)
            return False
        if isinstance(result, Receipt):
            self._resends.settle(
                claimed, ParkedState.DELIVERED, "sent", blocks=False, doubted=twice
            )
            return True
        if isinstance(result, Rejected):
            blocks = self.sink.on_reject is OnReject.BLOCK and claimed.was.blocks
            self._resends.settle(claimed, ParkedState.REJECTED, str(result), blocks=blocks)
            return not blocks
        return self._doubt(claimed, result)

    def _claim(self, item: Item) -> Claimed | None:
        """Take the event; first free the slot from a sender that did not come to an end."""
        slot = self._resends.slot()
        if slot is not None and slot.current is not None:
            if not self._given_up(slot):
                return None
            stuck = self._resends.at(slot.current)
            if stuck is not None and stuck[1].state is not ParkedState.SENDING:
                return None  # its sender came to an end meanwhile
            if stuck is not None and stuck[0] != item[0]:
                left = self._resends.claim(*stuck)
                if left is None or not self._finish(left):
                    return None
            else:
                item = stuck or item
        return self._resends.claim(*item)

    def _given_up(self, slot: SlotRow) -> bool:
        """Whether the sender that has the slot can be taken over: the destination fences it, or it
        has surely ended, or it had all the time that a lease and a call may take.
        """
        if self.sink.capability in (Capability.TRANSACTIONAL, Capability.SEQUENCED):
            return True
        since = self.scribe.clock.wall() - slot.at
        return self.around.gone(slot.process) or since > self.sink.lease_s + self.sink.deadline_s

    def _wait_before(self, claimed: Claimed, *, taken_over: bool) -> None:
        """Let the calls of whoever had the event before come to an end, where the destination
        fences nobody.
        """
        if self.sink.capability not in (Capability.PROBING, Capability.OPAQUE):
            return
        if taken_over:
            self.around.clock.sleep(self.sink.deadline_s)
        elif (left := self._left_s(claimed.was)) > 0:
            self.around.clock.sleep(left)

    def _left_s(self, row: ParkedRow) -> float:
        """How long a call from before an event was parked may still come to its end."""
        fences = self.sink.capability not in (Capability.PROBING, Capability.OPAQUE)
        if fences or not row.doubted or row.state is ParkedState.SENDING:
            return 0.0
        since = self.scribe.clock.wall() - row.at
        return self.sink.lease_s + self.sink.deadline_s - since

    def _doubt(self, claimed: Claimed, why: DeliveryError) -> bool:
        """Apply the policy to a resend whose outcome is unknown."""
        match DOUBT[self.sink.on_doubt].remedy:
            case Remedy.PASS:
                self._resends.settle(claimed, ParkedState.SKIPPED, str(why), blocks=False)
                return True
            case Remedy.SEND:
                self._resends.settle(
                    claimed, ParkedState.RESEND, str(why), blocks=True, doubted=True
                )
                return False
            case _:
                self._resends.settle(claimed, ParkedState.HELD, str(why), blocks=claimed.was.blocks)
                return False

    @property
    def _sends_again(self) -> bool:
        """Whether what may have arrived is sent once more because the policy says so."""
        opaque = self.sink.capability is Capability.OPAQUE
        return opaque and DOUBT[self.sink.on_doubt].remedy is Remedy.SEND
