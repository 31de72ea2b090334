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
from semel.ledger import note_doubt, read_unsure
from semel.protocol import DOUBT, Fault, ParkedState, Remedy
from semel.sinks import Unclassified, is_programming

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.calling import Faults
    from semel.delivery.parking.parking import PartitionParking
    from semel.events import Chunk, EntityIds, Rows
    from semel.ledger import ParkedRow


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What to do with undelivered events of a chunk.

    Attributes:
        to_send: the places in the chunk of those that are sent (again).
        stop: the error that stops the query, once this is recorded.
        found_so: whether an earlier attempt left the doubt.
    """

    to_park: tuple[ParkedRow, ...] = ()
    to_send: tuple[int, ...] = ()
    stop: SemelError | None = None
    found_so: bool = False


@dataclass
class Doubts:
    """Judges the events of one partition."""

    partition: SinkPartition
    parking: PartitionParking
    faults: Faults
    _recorded: set[int] = field(default_factory=set)
    _unsure: EntityIds | None = None

    def read(self) -> list[ParkedRow]:
        """Remember the doubts that an earlier attempt recorded; return all that it parked."""
        rows = self.parking.read_marks()
        self._recorded.update(row.position for row in rows)
        return rows

    def wait_out_the_attempt_before(self) -> None:
        """Wait until no call of an earlier attempt can be in flight.

        A process known to be gone starts no call any more, so the lease is saved if it had itself
        waited. The calls that it had begun may still arrive, so the deadline is always waited for.
        """
        sink, runtime = self.partition.sink, self.partition.runtime
        before = self.partition.claim.predecessor
        if before is None:
            runtime.clock.sleep(sink.lease_s + sink.deadline_s)
            return
        assignment = self.partition.assignment
        waited_for_all = assignment.waited and before.attempt.run < assignment.attempt.run
        if waited_for_all:
            return
        gone = before.waited and runtime.gone(before.process)
        runtime.clock.sleep(before.deadline_s + (0.0 if gone else before.lease_s))

    def report_late(self, chunks: Sequence[Chunk]) -> None:
        """Record calls of this replaced attempt that may have arrived twice; only this attempt
        knows of them.
        """
        partition, why = self.partition, "a replaced attempt's call ended late"
        for chunk in chunks:
            for at in range(len(chunk)):
                row = parked_row(partition, chunk.rows, at, ParkedState.LATE, why)
                note_doubt(partition.client, partition.sink.name, row)

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
        failures = {at: self._with_doubt(rows, at, why) for at, why in failures.items()}
        doubtful = any(isinstance(why, OutcomeUnknown) for why in failures.values())
        sink = self.partition.sink
        if doubtful and DOUBT[sink.on_doubt].waits and not found_so:
            self.partition.runtime.clock.sleep(sink.deadline_s)
        counted: set[int] = set()
        to_park: list[ParkedRow] = []
        to_send: list[int] = []
        stop: SemelError | None = None
        for at, why in sorted(failures.items()):
            if isinstance(why, Rejected):
                verdict = self._park(rows, at, ParkedState.REJECTED, why)
            elif isinstance(why, OutcomeUnknown):
                verdict = self._doubt(rows, at, why)
                first = id(why) not in counted  # one call has one outcome, for however many events
                if counts and first and not found_so and not isinstance(why, RefusedInDoubt):
                    counted.add(id(why))
                    verdict = self._counted(verdict, rows, at, why)
            else:
                verdict = Verdicts(to_send=(at,))
            to_park += verdict.to_park
            to_send += verdict.to_send
            stop = verdict.stop or stop
        return Verdicts(tuple(to_park), tuple(to_send), stop, found_so)

    def _counted(self, verdict: Verdicts, rows: Rows, at: int, why: OutcomeUnknown) -> Verdicts:
        """Count a call without an outcome against the sink, also in the rows that are parked for
        it; too many stop the query, and so does broken code, once this is recorded.
        """
        fault = Fault.CODE if is_programming(why) else Fault.CALL
        trace = self.faults.trace(why)
        to_park = tuple(replace(row, fault=fault, trace=trace) for row in verdict.to_park)
        stop = self.faults.count(rows, at, why) or verdict.stop
        return replace(verdict, to_park=to_park, stop=stop)

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
        partition = self.partition
        if partition.assignment.opening.row.minibatch.generation == 1:
            return False
        if self._unsure is None:
            self._unsure = read_unsure(partition.client, partition.sink.name)
        return rows.id(at) in self._unsure.get(rows.scope(at))

    def _doubt(self, rows: Rows, at: int, why: OutcomeUnknown) -> Verdicts:
        """Apply the policy to one event in doubt."""
        match DOUBT[self.partition.sink.on_doubt].remedy:
            case Remedy.PASS:
                return self._park(rows, at, ParkedState.SKIPPED, why)
            case Remedy.SEND if not isinstance(why, RefusedInDoubt):
                if int(rows.positions[at]) in self._recorded:
                    return Verdicts(to_send=(at,))
                marked = self._park(rows, at, ParkedState.RESENT, why)
                return replace(marked, to_send=(at,))
            case Remedy.PARK_AND_STOP:
                held = self._park(rows, at, ParkedState.HELD, why)
                return replace(held, stop=self._stop(rows, at, why))
            case Remedy.ASK:
                return self._ask(rows, at, why)
            case Remedy.PARK | Remedy.SEND:
                return self._park(rows, at, ParkedState.HELD, why)

    def _ask(self, rows: Rows, at: int, why: OutcomeUnknown) -> Verdicts:
        """Ask the user's function: arrived, not arrived, or unknown."""
        position, probe = int(rows.positions[at]), self.partition.sink.probe
        event = self.partition.chunk(rows, position, position + 1).event(at)
        try:
            arrived = None if probe is None else answer_of(probe, event)
        except Exception as error:  # noqa: BLE001 - a failed probe answers nothing
            self.faults.trace(Unclassified.of(error))
            arrived, why = None, OutcomeUnknown(f"{why}; the probe failed: {plain_text(error)}")
        if arrived is None:
            return self._park(rows, at, ParkedState.HELD, why)
        if arrived:
            return Verdicts()
        if isinstance(why, RefusedInDoubt):
            return self._park(rows, at, ParkedState.REJECTED, why)
        return Verdicts(to_send=(at,))

    def _park(self, rows: Rows, at: int, state: ParkedState, why: DeliveryError) -> Verdicts:
        self._recorded.add(int(rows.positions[at]))
        return Verdicts(to_park=(parked_row(self.partition, rows, at, state, str(why)),))

    def _stop(self, rows: Rows, at: int, why: OutcomeUnknown) -> HeldInDoubt:
        return HeldInDoubt(
            f"{self.partition.place}: event {rows.id(at)} of {rows.entity(at)!r} is in doubt "
            f"({why}), and on_doubt is 'stop'. Check whether the destination has it, then run "
            "`semel resolve EVENT delivered|resend|discard --reason ...` and restart the query"
        )
