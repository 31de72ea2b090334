"""Calls a destination for a lane that records intents, each effect within the lease.

- An effect starts only within the lease, counted from before the ledger was asked.
- An unknown outcome is repeated where a repeat is absorbed, asked for where the destination tells,
  and given back where nobody knows.
- Nothing that may have been sent is repeated when its key may be forgotten: it is given back too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from semel.delivery.calls import Forgotten, call_patiently, open_session
from semel.errors import ConfigurationError, DeliveryError, NotDelivered, OutcomeUnknown
from semel.protocol import Capability
from semel.sinks import DELIVERED, Receipt

if TYPE_CHECKING:
    from semel.delivery.lane import Lane
    from semel.events import Chunk
    from semel.sinks import ProbingSession, Session


class Caller:
    """The session of one lane, opened when it is first needed.

    Attributes:
        late: chunks whose call ended so late that a replacement may not have waited for it.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._session: Session | None = None
        self.late: list[Chunk] = []

    def call(
        self, chunk: Chunk, recorded_at: float, *, sent: bool = False
    ) -> Receipt | DeliveryError:
        """Send a chunk whose intent was recorded at `recorded_at`; `sent` says that an attempt
        before may have sent it. Raises `NotDelivered` when patience ended and nothing of it
        arrived.
        """
        lane = self._lane
        capability = lane.sink.capability
        result: Receipt | DeliveryError = OutcomeUnknown("an attempt before may have sent it")
        for _ in lane.around.tries(lane.sink.retry):
            call = partial(_deliver, self._opened(), chunk)
            looking = partial(self._look, recorded_at, sent=sent)
            try:
                result = call_patiently(call, lane.sink.retry, lane.around, looking)
            except Forgotten:
                return result
            self._note_late(chunk)
            sent = True
            if isinstance(result, NotDelivered):
                raise result
            if not _unknown(result):
                if capability is Capability.PROBING and isinstance(result, Receipt):
                    refuse_single_failures(lane, result)
                return result
            self.close()
            if capability is Capability.OPAQUE:
                return result
            if capability is Capability.PROBING:
                lane.around.clock.sleep(lane.sink.deadline_s)
                if self.arrived(chunk):
                    return DELIVERED
        if isinstance(result, DeliveryError):
            raise result
        raise OutcomeUnknown(
            f"{lane.assignment.place(lane.sink)}: the answer for chunk {chunk.key} was lost again "
            "and again; the next attempt repeats the same chunk. See that the destination runs"
        )

    def arrived(self, chunk: Chunk) -> bool:
        """Ask the destination for a chunk's key, patiently; asking has no effect."""
        lane = self._lane
        last: Exception | None = None
        for _ in lane.around.tries(lane.sink.retry):
            session = cast("ProbingSession", self._opened())
            try:
                return session.arrived(chunk.key)
            except Exception as error:  # noqa: BLE001 - nothing is sent by asking
                last = error
                self.close()
        raise OutcomeUnknown(
            f"{lane.assignment.place(lane.sink)}: the destination does not say whether chunk "
            f"{chunk.key} arrived ({last}). Nothing was repeated; see that it runs, then restart "
            "the query"
        ) from last

    def close(self) -> None:
        """Give the session back."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _look(self, recorded_at: float, *, sent: bool) -> None:
        """Look before each call whether it may be made, at the ledger and at the clock."""
        self._lane.within_lease()
        if sent and self._lane.forgotten(recorded_at):
            raise Forgotten

    def _opened(self) -> Session:
        if self._session is None:
            lane = self._lane
            session = open_session(lane.sink, lane.assignment.target(lane.sink), lane.around)
            self._session = cast("Session", session)
        return self._session

    def _note_late(self, chunk: Chunk) -> None:
        lane = self._lane
        taken = lane.around.clock.monotonic() - lane.holding.asked_at
        if taken > lane.sink.lease_s + lane.sink.deadline_s:
            self.late.append(chunk)


def refuse_single_failures(lane: Lane, receipt: Receipt) -> None:
    """Where the destination tells of whole chunks later, single events cannot fail alone."""
    if receipt.failures:
        why = receipt.failures[min(receipt.failures)]
        raise ConfigurationError(
            f"{lane.assignment.place(lane.sink)}: a {lane.sink.capability.value} session spoke of "
            f"single events ({why}). Let it raise Rejected for the whole chunk: it is split then"
        )


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
