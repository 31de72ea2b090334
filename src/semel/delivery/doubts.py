"""Doubt: what becomes of single events that were rejected, or that may have arrived.

No protocol can tell "sent, reply lost" from "not sent" without help from the destination. So it is
bounded, recorded, and decided by a policy of the user's or by a person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.delivery.calls import answer_of
from semel.delivery.parks import parked_row
from semel.errors import DeliveryError, HeldInDoubt, OutcomeUnknown, Rejected
from semel.ledger.parked import note, read_parked
from semel.protocol import DOUBT, OnDoubt, ParkedState, Remedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.delivery.lane import Lane
    from semel.events import Chunk, Rows
    from semel.ledger.rows import ParkedRow
    from semel.ledger.scribe import Scribe
    from semel.sinks import Sink


@dataclass(slots=True)
class Verdicts:
    """What is to be done about the undelivered events of a chunk, by their place in it."""

    to_park: list[ParkedRow] = field(default_factory=list)
    to_send: list[int] = field(default_factory=list)
    stop: str | None = None
    found_so: bool = False


class Doubts:
    """Judges the events of one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._recorded: set[int] = set()

    def read(self) -> None:
        """Take note of doubts that an earlier attempt has recorded."""
        self._recorded.update(row.position for row in self._lane.read_marks())

    def wait_out_the_attempt_before(self) -> None:
        """Wait until no call of an attempt before this one can be in flight.

        A process known to be gone starts none any more, so the lease is saved if it had itself
        waited. The calls it had begun may still arrive, so the deadline never is.
        """
        lane = self._lane
        before = lane.holding.predecessor
        if before is None:
            lane.around.clock.sleep(lane.sink.lease_s + lane.sink.deadline_s)
            return
        waited_for_all = lane.assignment.waited and before.attempt.run < lane.assignment.attempt.run
        if waited_for_all:
            return
        gone = before.waited and lane.around.gone(before.process)
        lane.around.clock.sleep(before.deadline_s + (0.0 if gone else before.lease_s))

    def report_late(self, chunks: Sequence[Chunk]) -> None:
        """Record calls of this replaced attempt that may have arrived twice; nobody else can know
        of them.
        """
        lane = self._lane
        for chunk in chunks:
            for at in range(len(chunk)):
                row = parked_row(
                    lane, chunk.rows, at, ParkedState.LATE, "a replaced attempt's call ended late"
                )
                note(lane.scribe, lane.sink.name, row)

    def judge(
        self, rows: Rows, failures: Mapping[int, DeliveryError], *, found_so: bool = False
    ) -> Verdicts:
        """Say what is parked and what is sent (again), in the order of the rows.

        `found_so` says that an attempt before this one left the doubt; it does not count against
        the destination.
        """
        verdicts = Verdicts(found_so=found_so)
        doubtful = any(isinstance(why, OutcomeUnknown) for why in failures.values())
        rule = DOUBT[self._lane.sink.on_doubt]
        if doubtful and rule.waits and not found_so:
            self._lane.around.clock.sleep(self._lane.sink.deadline_s)
        for at, why in sorted(failures.items()):
            if isinstance(why, Rejected):
                self._park(verdicts, rows, at, ParkedState.REJECTED, why)
            elif isinstance(why, OutcomeUnknown):
                self._lane.figures.doubted += 1
                self._doubt(verdicts, rows, at, why)
                if not found_so:
                    self._lane.count_unknown(why)
            else:
                verdicts.to_send.append(at)
        return verdicts

    def _doubt(self, verdicts: Verdicts, rows: Rows, at: int, why: OutcomeUnknown) -> None:
        """Apply the policy to one event in doubt."""
        match DOUBT[self._lane.sink.on_doubt].remedy:
            case Remedy.PARK:
                self._park(verdicts, rows, at, ParkedState.HELD, why)
            case Remedy.PASS:
                self._park(verdicts, rows, at, ParkedState.SKIPPED, why)
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
        """Ask the user's function: arrived, not arrived, or nobody can tell."""
        lane = self._lane
        position = int(rows.positions[at])
        event = lane.chunk(rows, position, position + 1).event(at)
        try:
            arrived = None if lane.sink.probe is None else answer_of(lane.sink.probe, event)
        except Exception as error:  # noqa: BLE001 - a probe that fails cannot tell
            arrived, why = None, OutcomeUnknown(f"{why}; the probe failed: {error}")
        if arrived is None:
            self._park(verdicts, rows, at, ParkedState.HELD, why)
        elif not arrived:
            verdicts.to_send.append(at)

    def _park(
        self, verdicts: Verdicts, rows: Rows, at: int, state: ParkedState, why: DeliveryError
    ) -> None:
        self._recorded.add(int(rows.positions[at]))
        verdicts.to_park.append(parked_row(self._lane, rows, at, state, str(why)))

    def _stop(self, rows: Rows, at: int, why: OutcomeUnknown) -> str:
        lane = self._lane
        return (
            f"{lane.assignment.place(lane.sink)}: event {rows.id(at)} of {rows.entity(at)!r} is in "
            f"doubt ({why}), and on_doubt is 'stop'. Look at the destination, then say `semel "
            "resolve EVENT delivered|resend|discard --reason ...` and start the query again"
        )


def stop_if_held(scribe: Scribe, sink: Sink, place: str) -> None:
    """Let nothing go on under policy `stop` before a person has said what happened.

    Raises `HeldInDoubt`, which names the `place`.
    """
    if sink.on_doubt is not OnDoubt.STOP:
        return
    rows = [row for _, row, _ in read_parked(scribe, sink.name) if row.state is ParkedState.HELD]
    if rows:
        raise HeldInDoubt(
            f"{place}: {len(rows)} events are in doubt, the first is event {rows[0].event} of "
            f"{rows[0].entity!r}. Look at the destination, then say `semel resolve EVENT "
            "delivered|resend|discard --reason ...` for each and start the query again"
        )
