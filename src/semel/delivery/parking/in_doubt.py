"""Doubt: what happens to single events that were rejected, or that may have arrived.

Always true: a doubt is bounded, recorded, and decided by the user's policy or by a person, because
no protocol can distinguish "sent, reply lost" from "not sent" without help from the destination.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.delivery.calling import RefusedInDoubt, answer_of
from semel.delivery.parking.parking import parked_row
from semel.errors import (
    DeliveryError,
    HeldInDoubt,
    OutcomeUnknown,
    Rejected,
    SemelError,
    plain_text,
)
from semel.ledger import note_doubt, read_parked, read_unsure
from semel.protocol import DOUBT, Fault, OnDoubt, ParkedState, Remedy
from semel.sinks import Unclassified, is_programming

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.delivery.lane import Lane
    from semel.events import Chunk, EntityIds, Rows
    from semel.ledger import LedgerClient, ParkedRow
    from semel.sinks import Sink


@dataclass(slots=True)
class Verdicts:
    """What to do with the undelivered events of a chunk, by their place in it."""

    to_park: list[ParkedRow] = field(default_factory=list)
    to_send: list[int] = field(default_factory=list)
    stop: SemelError | None = None
    found_so: bool = False


class Doubts:
    """Judges the events of one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._recorded: set[int] = set()
        self._unsure: EntityIds | None = None

    def read(self) -> list[ParkedRow]:
        """Remember the doubts that an earlier attempt recorded; return all that it parked."""
        rows = self._lane.read_marks()
        self._recorded.update(row.position for row in rows)
        return rows

    def wait_out_the_attempt_before(self) -> None:
        """Wait until no call of an earlier attempt can be in flight.

        A process known to be gone starts no call any more, so the lease is saved if it had itself
        waited. The calls that it had begun may still arrive, so the deadline is always waited for.
        """
        lane = self._lane
        before = lane.claim.predecessor
        if before is None:
            lane.runtime.clock.sleep(lane.sink.lease_s + lane.sink.deadline_s)
            return
        waited_for_all = lane.assignment.waited and before.attempt.run < lane.assignment.attempt.run
        if waited_for_all:
            return
        gone = before.waited and lane.runtime.gone(before.process)
        lane.runtime.clock.sleep(before.deadline_s + (0.0 if gone else before.lease_s))

    def report_late(self, chunks: Sequence[Chunk]) -> None:
        """Record calls of this replaced attempt that may have arrived twice; only this attempt
        knows of them.
        """
        lane = self._lane
        for chunk in chunks:
            for at in range(len(chunk)):
                row = parked_row(
                    lane, chunk.rows, at, ParkedState.LATE, "a replaced attempt's call ended late"
                )
                note_doubt(lane.client, lane.sink.name, row)

    def judge(
        self,
        rows: Rows,
        failures: Mapping[int, DeliveryError],
        *,
        found_so: bool = False,
        counts: bool = True,
    ) -> Verdicts:
        """Decide what is parked and what is sent (again), in the order of the rows.

        `found_so` means that an earlier attempt left the doubt. Neither that nor a refusal counts
        against the destination, and nothing does if `counts` is False.
        """
        verdicts = Verdicts(found_so=found_so)
        failures = {at: self._with_doubt(rows, at, why) for at, why in failures.items()}
        doubtful = any(isinstance(why, OutcomeUnknown) for why in failures.values())
        rule = DOUBT[self._lane.sink.on_doubt]
        if doubtful and rule.waits and not found_so:
            self._lane.runtime.clock.sleep(self._lane.sink.deadline_s)
        counted: set[int] = set()
        for at, why in sorted(failures.items()):
            if isinstance(why, Rejected):
                self._park(verdicts, rows, at, ParkedState.REJECTED, why)
            elif isinstance(why, OutcomeUnknown):
                parked = len(verdicts.to_park)
                self._doubt(verdicts, rows, at, why)
                first = id(why) not in counted  # one call has one outcome, for however many events
                if counts and first and not found_so and not isinstance(why, RefusedInDoubt):
                    counted.add(id(why))
                    self._count(verdicts, rows, at, why, parked)
            else:
                verdicts.to_send.append(at)
        return verdicts

    def _count(
        self, verdicts: Verdicts, rows: Rows, at: int, why: OutcomeUnknown, parked: int
    ) -> None:
        """Count a call without an outcome against the sink, also in the rows added since `parked`;
        too many stop the query, and so does broken code, once this is recorded.
        """
        faults = self._lane.faults
        fault = Fault.CODE if is_programming(why) else Fault.CALL
        trace = faults.trace(why)
        verdicts.to_park[parked:] = [
            replace(row, fault=fault, trace=trace) for row in verdicts.to_park[parked:]
        ]
        verdicts.stop = faults.count(rows, at, why) or verdicts.stop

    def _with_doubt(self, rows: Rows, at: int, why: DeliveryError) -> DeliveryError:
        """Return the failure, or a doubt for a refused event that was in doubt and was sent again:
        a refusal undoes nothing.
        """
        if not isinstance(why, Rejected):
            return why
        before = int(rows.positions[at]) in self._recorded or self.was_sent_before(rows, at)
        return RefusedInDoubt.after(why) if before else why

    def was_sent_before(self, rows: Rows, at: int) -> bool:
        """Whether an event may have been sent in an older generation, which did not settle it."""
        lane = self._lane
        if lane.assignment.opening.row.minibatch.generation == 1:
            return False
        if self._unsure is None:
            self._unsure = read_unsure(lane.client, lane.sink.name)
        return rows.id(at) in self._unsure.get(rows.scope(at))

    def _doubt(self, verdicts: Verdicts, rows: Rows, at: int, why: OutcomeUnknown) -> None:
        """Apply the policy to one event in doubt."""
        match DOUBT[self._lane.sink.on_doubt].remedy:
            case Remedy.PARK:
                self._park(verdicts, rows, at, ParkedState.HELD, why)
            case Remedy.PASS:
                self._park(verdicts, rows, at, ParkedState.SKIPPED, why)
            case Remedy.SEND if isinstance(why, RefusedInDoubt):
                self._park(verdicts, rows, at, ParkedState.HELD, why)
            case Remedy.SEND:
                if int(rows.positions[at]) not in self._recorded:
                    self._park(verdicts, rows, at, ParkedState.RESENT, why)
                verdicts.to_send.append(at)
            case Remedy.PARK_AND_STOP:
                self._park(verdicts, rows, at, ParkedState.HELD, why)
                verdicts.stop = self._stop(rows, at, why)
            case Remedy.ASK:
                self._ask(verdicts, rows, at, why)

    def _ask(self, verdicts: Verdicts, rows: Rows, at: int, why: OutcomeUnknown) -> None:
        """Ask the user's function: arrived, not arrived, or unknown."""
        lane = self._lane
        position = int(rows.positions[at])
        event = lane.chunk(rows, position, position + 1).event(at)
        try:
            arrived = None if lane.sink.probe is None else answer_of(lane.sink.probe, event)
        except Exception as error:  # noqa: BLE001 - a failed probe answers nothing
            lane.faults.trace(Unclassified.of(error))
            arrived, why = None, OutcomeUnknown(f"{why}; the probe failed: {plain_text(error)}")
        if arrived is None:
            self._park(verdicts, rows, at, ParkedState.HELD, why)
        elif not arrived and isinstance(why, RefusedInDoubt):
            self._park(verdicts, rows, at, ParkedState.REJECTED, why)
        elif not arrived:
            verdicts.to_send.append(at)

    def _park(
        self, verdicts: Verdicts, rows: Rows, at: int, state: ParkedState, why: DeliveryError
    ) -> None:
        self._recorded.add(int(rows.positions[at]))
        verdicts.to_park.append(parked_row(self._lane, rows, at, state, str(why)))

    def _stop(self, rows: Rows, at: int, why: OutcomeUnknown) -> HeldInDoubt:
        lane = self._lane
        return HeldInDoubt(
            f"{lane.assignment.place(lane.sink)}: event {rows.id(at)} of {rows.entity(at)!r} is in "
            f"doubt ({why}), and on_doubt is 'stop'. Look at the destination, then run `semel "
            "resolve EVENT delivered|resend|discard --reason ...` and start the query again"
        )


def stop_if_held(client: LedgerClient, sink: Sink, place: str) -> None:
    """Stop under policy `stop` until a person has decided every event in doubt.

    Raises `HeldInDoubt`, which names the `place`.
    """
    if sink.on_doubt is not OnDoubt.STOP:
        return
    rows = [row for _, row, _ in read_parked(client, sink.name) if row.state is ParkedState.HELD]
    if rows:
        raise HeldInDoubt(
            f"{place}: {len(rows)} events are in doubt, the first is event {rows[0].event} of "
            f"{rows[0].entity!r}. Look at the destination, then run `semel resolve EVENT "
            "delivered|resend|discard --reason ...` for each and start the query again"
        )
