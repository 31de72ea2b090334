"""Resends one parked event, in the way that its destination's capability allows.

Always true:
- if an earlier sender recorded no outcome, the destination is asked or fenced before it is sent to,
  or the policy decides;
- an event whose outcome is not known yet stays claimed by its sender (`ResendUnanswered`);
- after `IN_VAIN_MAX` senders in a row that recorded no outcome the destination is only asked, so
  that no event keeps the others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from semel.delivery.calling import (
    Forgotten,
    RefusedInDoubt,
    answer_of,
    call_patiently,
    forgets,
    open_session,
)
from semel.delivery.parking.parking import rows_of
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    plain_text,
)
from semel.events import Attempt, Chunk, Minibatch, key_part
from semel.ledger import written_part
from semel.protocol import DOUBT, Capability, Remedy
from semel.sinks import DELIVERED, Progress, Receipt, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.ledger import Claimed, LedgerClient, Resends
    from semel.runtime import Runtime
    from semel.sinks import (
        ProbingSession,
        SequencedSession,
        Session,
        Sink,
        TransactionalSession,
    )

RESENDS = Minibatch(0, 0)
"""All resends are of one minibatch, so that a take-over keeps what the progress row names."""


class ResendUnanswered(Exception):
    """The outcome of an event that was sent is not known yet; it stays claimed by its sender."""


class Unsendable(Rejected):
    """It surely did not arrive, and cannot be sent as the pipeline is now: a person decides."""


IN_VAIN_MAX = 3
"""After so many senders of an event died, it is not sent again: the destination is only asked."""

_FORGOTTEN = OutcomeUnknown("it may have been sent longer ago than its key is remembered")
_OTHER_KEY = OutcomeUnknown(
    "it may have been sent under another key, because keyed_by_event of the sink was changed since"
)
_ABSENT = Unsendable(
    f"it did not arrive: {IN_VAIN_MAX} senders in a row got no reply, and the destination does "
    "not have it. Check that the destination accepts the event, then resend it"
)


@dataclass(frozen=True)
class Again:
    """Resends events of one sink; a log is appended to through its task's `session`."""

    client: LedgerClient
    sink: Sink
    runtime: Runtime
    resends: Resends
    session: SequencedSession | None = None

    def deliver(self, claimed: Claimed, *, taken_over: bool) -> Receipt | DeliveryError:
        """Send, or ask first if an earlier sender recorded no outcome."""
        self._within_lease(claimed)
        known = self._unsent(claimed) if not taken_over else None
        if (taken_over or claimed.waited_in_doubt) and self._forgotten(claimed):
            known = _FORGOTTEN
        if taken_over and claimed.absorbed_by not in (None, self.sink.absorbed_by):
            known = _OTHER_KEY
        if known is not None:
            return known
        match self.sink.capability:
            case Capability.SEQUENCED:
                return self._append(claimed)
            case Capability.TRANSACTIONAL:
                return self._transact(claimed)
            case Capability.PROBING:
                return self._probe(claimed, taken_over=taken_over)
            case Capability.OPAQUE if taken_over:
                return self.ask(claimed)
            case _:
                return self._call(claimed, sent=taken_over)

    def in_vain(self, claimed: Claimed) -> bool:
        """Whether so many senders recorded no outcome that another would not either."""
        return claimed.token - claimed.first >= IN_VAIN_MAX

    def _unsent(self, claimed: Claimed) -> DeliveryError | None:
        """Return why an event cannot be restored as it was, or has other columns than the sink
        needs now, if so; nothing of it was sent.
        """
        try:
            chunk = self._chunk(claimed)
        except Exception as error:  # noqa: BLE001 - reading sends nothing
            return Unsendable(f"it cannot be read again ({type(error).__name__}: {error})")
        try:
            self.sink.refuse(chunk.rows.batch.schema)
        except ConfigurationError as error:
            return Unsendable(f"the event has the columns that it was parked with: {error}")
        return None

    def _within_lease(self, claimed: Claimed) -> None:
        """Ask the ledger again if its last answer is older than a lease. Raises `Fenced` if another
        sender has the event.
        """
        late = self.client.clock.monotonic() - claimed.asked_at > self.sink.lease_s
        if late and not self.resends.still_mine(claimed):
            raise Fenced(f"event {claimed.row.event} of {claimed.row.entity!r} has a later sender")

    def _forgotten(self, claimed: Claimed) -> bool:
        """Whether a key under which it may have been sent may be forgotten."""
        return forgets(self.sink, self.client.clock.wall() - claimed.began)

    def _patiently(
        self, claimed: Claimed, call: Callable[[], Receipt], *, sent: bool = False
    ) -> Receipt | DeliveryError:
        """Call, with retries while nothing arrived and no other sender has it; what may have been
        `sent` only while its key is remembered.
        """

        def looking() -> None:
            self._within_lease(claimed)
            if sent and self._forgotten(claimed):
                raise Forgotten

        try:
            return _single(call_patiently(call, self.sink.retry, self.runtime, looking))
        except Forgotten:
            return _FORGOTTEN

    def _call(self, claimed: Claimed, *, sent: bool = False) -> Receipt | DeliveryError:
        """Call once (OPAQUE), or until the answer is known or the retries are used up (REPEATABLE:
        a repeat is absorbed). What may have been `sent` before is in doubt if it is refused.
        """
        session = cast("Session", self._open(claimed))
        chunk = self._chunk(claimed)
        result: Receipt | DeliveryError = NotDelivered("not tried")
        try:
            for _ in self.sink.retry.tries(self.runtime):
                unsure = sent or claimed.waited_in_doubt
                result = self._patiently(claimed, lambda: session.deliver(chunk), sent=unsure)
                if sent and isinstance(result, Rejected):
                    return RefusedInDoubt.after(result)
                if self.sink.capability is Capability.OPAQUE or result is _FORGOTTEN:
                    return result
                if sent and isinstance(result, NotDelivered):
                    raise ResendUnanswered
                if not isinstance(result, OutcomeUnknown):
                    return result
                sent = True
        except ConfigurationError as error:
            wrong = Unsendable(str(error))
            return RefusedInDoubt.after(wrong) if sent else wrong
        finally:
            session.close()
        return result

    def ask(self, claimed: Claimed) -> Receipt | DeliveryError:
        """Ask about an event that may have arrived, because an earlier sender recorded no outcome
        (OPAQUE).
        """
        if DOUBT[self.sink.on_doubt].remedy is Remedy.SEND:
            return self._call(claimed, sent=True)
        if self.sink.probe is not None:
            try:
                arrived = answer_of(self.sink.probe, self._chunk(claimed).event(0))
            except Exception as error:  # noqa: BLE001 - a failed probe answers nothing
                return OutcomeUnknown(
                    "the previous sender ended without recording an outcome, and the probe failed: "
                    f"{plain_text(error)}"
                )
            if arrived is not None:
                return DELIVERED if arrived else self._call(claimed)
        return OutcomeUnknown("the previous sender ended without recording an outcome")

    def _probe(self, claimed: Claimed, *, taken_over: bool) -> Receipt | DeliveryError:
        """Ask for the keys of earlier senders, then send under an own key (PROBING)."""
        session = cast("ProbingSession", self._open(claimed))
        try:
            earlier = range(claimed.first, claimed.token) if taken_over else ()
            if any(session.arrived(self._chunk(claimed, token).key) for token in earlier):
                return DELIVERED
            if self.in_vain(claimed):
                return _ABSENT
            chunk = self._chunk(claimed, claimed.token)
            try:
                result = self._patiently(claimed, lambda: session.deliver(chunk))
            except ConfigurationError as error:
                return Unsendable(str(error))
            if isinstance(result, OutcomeUnknown):
                self.runtime.clock.sleep(self.sink.deadline_s)
                try:
                    arrived = session.arrived(chunk.key)
                except DeliveryError as error:
                    raise ResendUnanswered from error
                if arrived:
                    return DELIVERED
                tried = claimed.row.attempts >= IN_VAIN_MAX
                return Unsendable(str(result)) if tried else NotDelivered(str(result))
            return result
        finally:
            session.close()

    def _transact(self, claimed: Claimed) -> Receipt | DeliveryError:
        """Send in a transaction (TRANSACTIONAL). A progress row of its own names the last event
        that was resent, so no other may be resent while the outcome of this one is not known from
        that row.
        """
        sent = False
        for _ in range(3):
            try:
                result = self._transaction(claimed)
            except (NotDelivered, ConfigurationError) as error:
                if sent:
                    raise ResendUnanswered from error
                raise
            if sent and isinstance(result, NotDelivered | Unsendable) and result is not _ABSENT:
                break
            if not isinstance(result, OutcomeUnknown):
                return result
            sent = True
        raise ResendUnanswered

    def _transaction(self, claimed: Claimed) -> Receipt | DeliveryError:
        """Fence the row, read it, and send if it does not name the event. Raises `NotDelivered` if
        there was no answer.
        """
        # The row names the event by its key, under the name that the destination knows; 0.4.0 wrote
        # the name that the pipeline had then.
        _, _, event = claimed.key.key.partition("/")
        name: list[object] = [f"{written_part(self.client.at_sinks)}/{event}"]
        session = cast("TransactionalSession", self._open(claimed))
        asked = False
        try:
            stood = session.take_over()
            asked = True
            named = stood is not None and stood.sort_key in (name, [claimed.key.key])
            if stood is not None and named and not stood.rejected:
                return DELIVERED
            if self.in_vain(claimed):
                return _ABSENT
            progress = Progress(
                minibatch=RESENDS,
                attempt=Attempt(claimed.token, 0),
                start=0 if stood is None else stood.done,
                done=claimed.token,
                osn=claimed.row.osn,
                sort_key=name,
            )
            call = partial(session.deliver_with, self._chunk(claimed), progress)
            return _single(call_patiently(call, self.sink.retry, self.runtime))
        except ConfigurationError as error:
            if not asked:
                raise
            return Unsendable(str(error))
        finally:
            session.close()

    def _append(self, claimed: Claimed) -> Receipt | DeliveryError:
        """Append to the log (SEQUENCED), which says which resend was its last. While it does not
        answer, the event stays claimed: the next sender has to ask for every number under which it
        may have been sent.
        """
        session = cast("SequencedSession", self.session)
        if self._resent(session) >= claimed.first:
            return DELIVERED
        if self.in_vain(claimed):
            return _ABSENT
        chunk = self._chunk(claimed)
        call = partial(session.deliver_again, chunk, claimed.token)
        try:
            result = _single(call_patiently(call, self.sink.retry, self.runtime))
        except ConfigurationError as error:
            return Unsendable(str(error))
        if isinstance(result, OutcomeUnknown):
            if self._resent(session) >= claimed.first:
                return DELIVERED
            raise ResendUnanswered
        return result

    def _resent(self, session: SequencedSession) -> int:
        try:
            return session.take_over().resent
        except NotDelivered as error:
            raise ResendUnanswered from error

    def _open(self, claimed: Claimed) -> object:
        token = Attempt(claimed.token, 0)
        target = Target(self.client.at_sinks, self.sink.name, RESENDS, "~resend", token)
        return open_session(self.sink, target, self.runtime)

    def _chunk(self, claimed: Claimed, token: int | None = None) -> Chunk:
        """Restore the event as it was when it was parked, under its old identity and OSN."""
        row = claimed.row
        names = f"{key_part(self.client.at_sinks)}/{key_part(self.sink.name)}/"
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
    """Return the outcome of a chunk of one event."""
    if isinstance(result, Receipt) and result.failures:
        return next(iter(result.failures.values()))
    return result
