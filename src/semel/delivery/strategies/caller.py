"""Calls a destination that needs recorded intents, each effect within the lease.

Always true:
- an effect starts only within the lease, counted from before the ledger was asked;
- an unknown outcome is repeated if a repeat is absorbed (`repeat`), asked for if the destination
  can report it, and returned if neither is possible;
- nothing that may have been sent is repeated if its key may be forgotten: it is returned too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from semel.delivery.calling import Forgotten, call_patiently, deliver_chunk, open_session
from semel.delivery.strategies.repeat import Repeating
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    NotDelivered,
    OutcomeUnknown,
    SemelError,
    SinkBroken,
)
from semel.protocol import Capability
from semel.sinks import DELIVERED, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.calling import Faults
    from semel.events import Chunk
    from semel.sinks import ProbingSession, Session


class Caller:
    """The session for one partition, opened when it is first needed."""

    def __init__(self, partition: SinkPartition, faults: Faults) -> None:
        self._partition = partition
        self._faults = faults
        self._session: Session | None = None
        self._late: list[Chunk] = []
        self._unsure: set[int] = set()
        self._broken: frozenset[int] = frozenset()
        self._arrived: AbstractSet[int] = frozenset()

    # -- what is known of earlier calls

    @property
    def late(self) -> Sequence[Chunk]:
        """Chunks whose call ended so late that a replacement may not have waited for it."""
        return self._late

    @property
    def unsure(self) -> AbstractSet[int]:
        """The positions of events that may have arrived without an answer (REPEATABLE)."""
        return self._unsure

    @property
    def arrived(self) -> AbstractSet[int]:
        """The positions known to have arrived, of the chunk last called for (REPEATABLE)."""
        return self._arrived

    def inherit(self, positions: Iterable[int]) -> None:
        """Take over what an earlier attempt may have sent: its events are unsure."""
        self._unsure.update(positions)

    def decided(self, positions: AbstractSet[int]) -> None:
        """Take these events as decided: they are not unsure any more."""
        self._unsure -= positions

    def end_span(self) -> None:
        """Take all events as decided, because their span is done."""
        self._unsure.clear()

    def begin_span(self) -> None:
        """Begin a span of which nothing was sent, after the one before it was settled."""
        self._late.clear()
        self._unsure.clear()

    # -- calls

    def call(self, chunk: Chunk, recorded_at: float) -> Receipt | DeliveryError:
        """Send a chunk whose intent was recorded at `recorded_at`. Raises `NotDelivered` if the
        retries are used up and nothing of the last call arrived.
        """
        match self._partition.capability:
            case Capability.REPEATABLE:
                send = partial(self._send_absorbed, recorded_at)
                repeating = Repeating(self._partition, chunk, self._unsure, send)
                try:
                    return repeating.run()
                finally:
                    self._unsure = repeating.unsure | self._broken
                    self._arrived = repeating.arrived
            case Capability.PROBING:
                return self._call_and_ask(chunk)
            case _:
                return self._send(chunk)

    def _send(
        self, chunk: Chunk, looking: Callable[[], None] | None = None
    ) -> Receipt | DeliveryError:
        """Make one call, with retries while nothing arrived; a session with an unknown outcome is
        not used again.
        """
        partition = self._partition
        call = partial(deliver_chunk, self._opened(), chunk)
        before_each = looking or partition.within_lease
        result = call_patiently(call, partition.sink.retry, partition.runtime, before_each)
        self._note_late(chunk)
        if _unknown(result):
            self.close()
            self._look_at(chunk, result)
        if isinstance(result, NotDelivered):
            raise partition.unreached(result)
        return result

    def _look_at(self, chunk: Chunk, result: object) -> None:
        """Check whether the sink's own code is the cause, if what may have arrived is repeated or
        asked for. Raises `SinkBroken`.
        """
        capability = self._partition.capability
        if capability is Capability.OPAQUE:
            return  # events that may have arrived are recorded first
        try:
            self._faults.look_at(chunk.rows, result)
        except SinkBroken:
            if capability is Capability.REPEATABLE:
                self._broken = frozenset(chunk.rows.positions.tolist())
            raise

    def _send_absorbed(
        self, recorded_at: float, chunk: Chunk, unsure: AbstractSet[int]
    ) -> Receipt | DeliveryError:
        """Send events that carry their key. Raises `Forgotten` if they may have arrived, and the
        key may be forgotten by the time they arrive again.
        """
        partition = self._partition

        def looking() -> None:
            partition.within_lease()
            sent = unsure and not unsure.isdisjoint(chunk.rows.positions.tolist())
            if sent and partition.forgotten(recorded_at):
                raise Forgotten

        return self._send(chunk, looking)

    def _call_and_ask(self, chunk: Chunk) -> Receipt | DeliveryError:
        """After an unknown outcome ask for the key, and resend what did not arrive (PROBING)."""
        partition = self._partition
        result: Receipt | DeliveryError = DELIVERED
        for _ in partition.sink.retry.tries(partition.runtime, only_pauses=True):
            result = self._send(chunk)
            if not _unknown(result):
                if isinstance(result, Receipt):
                    refuse_single_failures(partition, result)
                return result
            partition.runtime.clock.sleep(partition.sink.deadline_s)
            if self.has_arrived(chunk):
                return DELIVERED
        if isinstance(result, DeliveryError):
            raise result
        raise OutcomeUnknown(
            f"{partition.place}: every call for chunk {chunk.key} lost its reply, "
            "and the destination does not have the chunk. Check that the destination runs, then "
            "restart the query: it asks again, and sends the chunk if it has not arrived"
        )

    def has_arrived(self, chunk: Chunk) -> bool:
        """Ask the destination for a chunk's key, with retries; asking has no effect."""
        partition = self._partition
        last: Exception | None = None
        for _ in partition.sink.retry.tries(partition.runtime):
            session = cast("ProbingSession", self._opened())
            try:
                return session.arrived(chunk.key)
            except DeliveryError as error:
                last = error
            except SemelError:
                raise  # final: asking again would only hide it
            except Exception as error:  # noqa: BLE001 - asking sends nothing
                self._faults.look_at_opening(error)
                last = error
            self.close()
        raise OutcomeUnknown(
            f"{partition.place}: the destination does not report whether chunk "
            f"{chunk.key} arrived ({last}). Nothing was repeated. Check that it runs, then restart "
            "the query"
        ) from last

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _opened(self) -> Session:
        if self._session is None:
            partition, look_at = self._partition, self._faults.look_at_opening
            session = open_session(partition.sink, partition.target, partition.runtime, look_at)
            self._session = cast("Session", session)
        return self._session

    def _note_late(self, chunk: Chunk) -> None:
        partition = self._partition
        taken = partition.runtime.clock.monotonic() - partition.claim.asked_at
        if taken > partition.sink.lease_s + partition.sink.deadline_s:
            self._late.append(chunk)


def refuse_single_failures(partition: SinkPartition, receipt: Receipt) -> None:
    """Refuse failures of single events if the destination reports on whole chunks only."""
    if receipt.failures:
        why = receipt.failures[min(receipt.failures)]
        raise ConfigurationError(
            f"{partition.place}: a {partition.sink.capability.value} session reported "
            f"a failure of a single event ({why}). Raise Rejected for the whole chunk instead: "
            "semel then splits it"
        )


def _unknown(result: Receipt | DeliveryError) -> bool:
    """Whether the outcome of any event of a chunk is unknown."""
    if isinstance(result, Receipt):
        return any(isinstance(why, OutcomeUnknown) for why in result.failures.values())
    return isinstance(result, OutcomeUnknown)
