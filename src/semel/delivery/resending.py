"""Draining parked events: what a person wants sent again, and what waited behind it.

Always true:
- the parked events of an entity are sent in the order in which they came, one at a time;
- nothing that may have been sent is sent, unless the destination absorbs, tells or refuses it, or a
  policy or a person said so - and then not before the last call of whoever sent it first has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from semel.delivery.calls import Forgotten, call_patiently, forgets, open_session
from semel.delivery.parks import rows_of
from semel.errors import DeliveryError, Fenced, NotDelivered, OutcomeUnknown, Rejected, SemelError
from semel.events import Attempt, Chunk, Minibatch
from semel.events.chunks import escaped
from semel.ledger.parked import next_of, read_heads, read_parked
from semel.ledger.resends import WHOLE_SINK, Claimed, Resends
from semel.protocol import DOUBT, Capability, OnReject, ParkedState, Remedy
from semel.sinks import DELIVERED, Progress, Receipt, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery.surroundings import Surroundings
    from semel.ledger.parked import Entity
    from semel.ledger.processes import Process
    from semel.ledger.resends import SlotRow
    from semel.ledger.rows import ParkedRow
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Key
    from semel.sinks import (
        ProbingSession,
        SequencedSession,
        Session,
        Sink,
        TransactionalSession,
    )

    Item = tuple[Key, ParkedRow, str]


RESENDS = Minibatch(0, 0)
"""All resends are of one minibatch, so that a take-over keeps what the progress row names."""


class _Unanswered(Exception):
    """Nobody can say yet what became of an event that was sent; it stays in its sender's hands."""


_FORGOTTEN = OutcomeUnknown("it may have been sent longer ago than its key is remembered")


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
            heads = read_heads(self.scribe, self.sink.name)
            if entity not in heads:
                return sent
            rows = read_parked(self.scribe, self.sink.name, entity[0])
            if self.partition is not None and not self._ours(rows, entity):
                return sent
            item = next_of(rows, entity)
            if item is None:
                if self._resends.unblock(entity, heads[entity][1]):
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
        except _Unanswered:
            return False  # it stays claimed, and the next one to come asks what became of it

    def _settle(self, claimed: Claimed) -> bool:
        taken_over = claimed.was.state is ParkedState.SENDING
        self._wait_before(claimed, taken_over=taken_over)
        try:
            result = self._deliver(claimed, taken_over=taken_over)
        except NotDelivered as error:
            result = error  # nobody answered, so nothing was sent
        except (SemelError, _Unanswered):
            raise
        except Exception as error:
            raise _Unanswered from error
        if isinstance(result, NotDelivered):
            if taken_over and self.sink.capability is Capability.REPEATABLE:
                raise _Unanswered  # by the claim it is known since when it may have been sent
            again = ParkedState.RESEND if taken_over else claimed.was.state
            self._resends.settle(claimed, again, str(result), blocks=True)
            return False
        if isinstance(result, Receipt):
            twice = taken_over and self._sends_again
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

    # -- by capability

    def _deliver(self, claimed: Claimed, *, taken_over: bool) -> Receipt | DeliveryError:
        """Send, or ask first where an earlier sender did not come to an end."""
        self._within_lease(claimed)
        if taken_over and self._forgotten(claimed):
            return _FORGOTTEN
        match self.sink.capability:
            case Capability.SEQUENCED:
                return self._append(claimed)
            case Capability.TRANSACTIONAL:
                return self._transact(claimed)
            case Capability.PROBING:
                return self._probe(claimed, taken_over=taken_over)
            case Capability.OPAQUE if taken_over:
                return self._ask(claimed)
            case _:
                return self._call(claimed, sent=taken_over)

    def _within_lease(self, claimed: Claimed) -> None:
        """Act only on what the ledger said less than a lease ago; `Fenced` when another has it."""
        late = self.scribe.clock.monotonic() - claimed.asked_at > self.sink.lease_s
        if late and not self._resends.still_mine(claimed):
            raise Fenced(f"event {claimed.row.event} of {claimed.row.entity!r} has a later sender")

    def _forgotten(self, claimed: Claimed) -> bool:
        """Whether a key under which it may have been sent is not remembered any more."""
        return forgets(self.sink, self.scribe.clock.wall() - claimed.began)

    def _patiently(
        self, claimed: Claimed, call: Callable[[], Receipt], *, sent: bool = False
    ) -> Receipt | DeliveryError:
        """Call, and again while nothing arrived and nobody else has it; what may have been `sent`
        only while its key is remembered.
        """

        def looking() -> None:
            self._within_lease(claimed)
            if sent and self._forgotten(claimed):
                raise Forgotten

        try:
            return _single(call_patiently(call, self.sink.retry, self.around, looking))
        except Forgotten:
            return _FORGOTTEN

    def _call(self, claimed: Claimed, *, sent: bool = False) -> Receipt | DeliveryError:
        """OPAQUE: once. REPEATABLE: until the answer is known, because a repeat is absorbed."""
        session = cast("Session", self._open(claimed))
        chunk = self._chunk(claimed)
        result: Receipt | DeliveryError = NotDelivered("not tried")
        try:
            for pause in [0.0, *self.sink.retry.pauses(self.around.random)]:
                if pause:
                    self.around.clock.sleep(pause)
                result = self._patiently(claimed, lambda: session.deliver(chunk), sent=sent)
                if self.sink.capability is Capability.OPAQUE or result is _FORGOTTEN:
                    return result
                if sent and isinstance(result, NotDelivered):
                    break
                if not isinstance(result, OutcomeUnknown):
                    return result
                sent = True
            raise _Unanswered
        finally:
            session.close()

    def _ask(self, claimed: Claimed) -> Receipt | DeliveryError:
        """OPAQUE, and an earlier sender did not come to an end: it may have arrived."""
        if DOUBT[self.sink.on_doubt].remedy is Remedy.SEND:
            return self._call(claimed)
        if self.sink.probe is not None:
            try:
                arrived = self.sink.probe(self._chunk(claimed).event(0))
            except Exception as error:  # noqa: BLE001 - a probe that fails cannot tell
                return OutcomeUnknown(f"whoever sent it did not end, and the probe failed: {error}")
            if arrived is not None:
                return DELIVERED if arrived else self._call(claimed)
        return OutcomeUnknown("whoever sent it did not come to an end")

    def _probe(self, claimed: Claimed, *, taken_over: bool) -> Receipt | DeliveryError:
        """PROBING: ask for the key of the sender before, then send under a key of our own."""
        session = cast("ProbingSession", self._open(claimed))
        try:
            earlier = range(claimed.first, claimed.token) if taken_over else ()
            if any(session.arrived(self._chunk(claimed, token).key) for token in earlier):
                return DELIVERED
            chunk = self._chunk(claimed, claimed.token)
            result = self._patiently(claimed, lambda: session.deliver(chunk))
            if isinstance(result, OutcomeUnknown):
                self.around.clock.sleep(self.sink.deadline_s)
                return DELIVERED if session.arrived(chunk.key) else NotDelivered(str(result))
            return result
        finally:
            session.close()

    def _transact(self, claimed: Claimed) -> Receipt | DeliveryError:
        """TRANSACTIONAL: a progress row of its own names the last event that was resent."""
        name: list[object] = [claimed.key.key]
        for _ in range(3):
            session = cast("TransactionalSession", self._open(claimed))
            try:
                stood = session.take_over()
                if stood is not None and stood.sort_key == name and not stood.rejected:
                    return DELIVERED
                progress = Progress(
                    minibatch=RESENDS,
                    attempt=Attempt(claimed.token, 0),
                    start=0 if stood is None else stood.done,
                    done=claimed.token,
                    osn=claimed.row.osn,
                    sort_key=name,
                )
                call = partial(session.deliver_with, self._chunk(claimed), progress)
                result = _single(call_patiently(call, self.sink.retry, self.around))
            finally:
                session.close()
            if not isinstance(result, OutcomeUnknown):
                return result
        raise _Unanswered

    def _append(self, claimed: Claimed) -> Receipt | DeliveryError:
        """SEQUENCED: the log says which resend was its last. While it does not say, the event stays
        claimed: whoever is next has to ask for every number under which it may have been sent.
        """
        session = cast("SequencedSession", self.session)
        if self._resent(session) >= claimed.first:
            return DELIVERED
        chunk = self._chunk(claimed)
        result = _single(
            call_patiently(
                lambda: session.deliver_again(chunk, claimed.token), self.sink.retry, self.around
            )
        )
        if isinstance(result, OutcomeUnknown):
            if self._resent(session) >= claimed.first:
                return DELIVERED
            raise _Unanswered
        return result

    def _resent(self, session: SequencedSession) -> int:
        try:
            return session.take_over().resent
        except NotDelivered as error:
            raise _Unanswered from error

    def _open(self, claimed: Claimed) -> object:
        token = Attempt(claimed.token, 0)
        target = Target(self.scribe.pipeline, self.sink.name, RESENDS, "~resend", token)
        return open_session(self.sink, target, self.around)

    def _chunk(self, claimed: Claimed, token: int | None = None) -> Chunk:
        """Make the event again as it was when it was parked, under its old identity and OSN."""
        row = claimed.row
        names = f"{escaped(self.scribe.pipeline)}/{escaped(self.sink.name)}/"
        chunk = Chunk(
            rows=rows_of(row),
            start=row.position,
            stop=row.position + 1,
            key="",
            osn_base=row.osn - row.position,
            prefix=names,
        )
        # A repeat is absorbed by its key, so every sender of the event has the same one.
        absorbed = self.sink.capability is Capability.REPEATABLE
        sender = "" if absorbed else f"/{token or claimed.token}"
        return replace(chunk, key=f"{chunk.event_key(0)}/resend{sender}")


def _single(result: Receipt | DeliveryError) -> Receipt | DeliveryError:
    """Tell the outcome of a chunk of one event."""
    if isinstance(result, Receipt) and result.failures:
        return next(iter(result.failures.values()))
    return result
