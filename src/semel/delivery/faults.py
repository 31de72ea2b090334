"""Decides from the failures of a sink whether its code is broken or its destination is silent.

Always true:
- a programming error stops the query as long as the sink has not delivered anything; afterwards it
  concerns its event only, like any other unknown outcome;
- only calls that were made count towards the ten in a row, and not those that a person resolved;
- the first traceback of each kind is logged once per process of a run, and kept once per attempt.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from semel.errors import HeldInDoubt, OutcomeUnknown, SemelError, SinkBroken, plain_text
from semel.ledger import read_parked
from semel.protocol import Capability, Fault, ParkedState, SpanState
from semel.sinks import Unclassified, is_programming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.delivery.lane import Lane
    from semel.events import Rows
    from semel.ledger import ParkedRow, SpanRow

UNKNOWN_MAX = 10

KINDS_MAX = 10
"""How many kinds of errors an attempt keeps a traceback of."""

TRACE_MAX = 4_000
"""How many characters of a traceback are kept: its beginning and its end."""

LINE_MAX = 400

_COUNTED = (ParkedState.HELD, ParkedState.SKIPPED, ParkedState.RESENT)
_RESOLVE = (
    "run `semel resolve EVENT delivered|resend|discard --reason ...` for what `semel parked ls` "
    "shows"
)
_AFTERWARDS = {
    Capability.OPAQUE: "It may have had an effect: what on_doubt says was done. Fix it, "
    f"{_RESOLVE}, then start again",
    Capability.REPEATABLE: "Fix it, then start again: that repeats it under the same key",
}
_ASKED = "Fix it, then start again: that asks the destination what arrived"

log = logging.getLogger("semel")


class Faults:
    """The failed calls of one lane.

    Attributes:
        calls: how many calls this attempt has made.
        in_a_row: how many calls in a row, up to now, have an unknown outcome; includes those of
            earlier attempts and minibatches that were not resolved since.
        succeeded: whether a call of this attempt delivered anything.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.calls = 0
        self.in_a_row = 0
        self.succeeded = False
        self._kept: set[str] = set()
        self._recorded: Sequence[ParkedRow] = ()

    # -- earlier attempts

    def recall(self, spans: Sequence[SpanRow] = (), rows: Sequence[ParkedRow] = ()) -> None:
        """Continue the count of earlier attempts, from the `spans` and parked `rows` that they
        recorded of this partition, and of earlier minibatches; nothing is read if those were all
        answered.
        """
        lane = self._lane
        self._recorded = rows
        delivered = self._last_delivered(spans)
        self.in_a_row = sum(_counts(row) and row.position > delivered for row in rows)
        known = lane.assignment.opening.sequence(lane.sink.name, lane.assignment.partition)
        if known.unanswered and delivered < 0:
            minibatch = lane.assignment.opening.row.minibatch
            older = sum(
                _counts(row)
                and row.partition == lane.assignment.partition
                and row.minibatch != minibatch
                for _, row, _ in read_parked(lane.client, lane.sink.name)
            )
            self.in_a_row += min(known.unanswered, older)

    def _last_delivered(self, spans: Sequence[SpanRow]) -> int:
        """Return the position of the last event that an earlier attempt delivered; -1 for none."""
        for span in reversed(spans):
            if span.state is SpanState.SETTLED:
                for position in reversed(range(span.start, span.stop)):
                    if position not in self._lane.parked_at:
                        return position
        return -1

    def stop_if_nothing_was_tried(self) -> None:
        """Stop the query again if an earlier start stopped it and nothing could be tried, because
        every event that is left has to wait.
        """
        lane = self._lane
        if self.calls or lane.figures.delivered or lane.figures.suppressed:
            return
        broken = [
            row
            for row in self._recorded
            if row.fault is Fault.CODE and row.state is ParkedState.HELD
        ]
        if broken and not lane.proven:
            raise SinkBroken(
                f"{lane.assignment.place(lane.sink)}: nothing could be tried, because every event "
                f"waits behind one that failed in an earlier start: event {broken[0].event} of "
                f"{broken[0].entity!r} failed with {plain_text(broken[0].why)}. Fix the sink, "
                f"{_RESOLVE}, then start again"
            )
        if self.in_a_row >= UNKNOWN_MAX:
            raise self._silent("an earlier start says why")

    # -- this attempt

    def answered(self) -> None:
        """Record that a call delivered something, which ends the unknown outcomes in a row."""
        self.succeeded, self.in_a_row = True, 0

    def count(self, rows: Rows, at: int, why: OutcomeUnknown) -> SemelError | None:
        """Count a call with an unknown outcome; return the error that stops the query, if any."""
        if is_programming(why) and not self._lane.proven:
            return self._broken(rows, at, why)
        self.in_a_row += 1
        return self._silent(why) if self.in_a_row >= UNKNOWN_MAX else None

    def look_at(self, rows: Rows, why: object) -> None:
        """Log the first error of its kind. Raises `SinkBroken` if a call of these rows failed with
        a programming error and the sink has not delivered anything.
        """
        if isinstance(why, Unclassified):
            self.trace(why)
            if is_programming(why) and not self._lane.proven:
                raise self._broken(rows, 0, why)

    def look_at_opening(self, error: Exception) -> None:
        """Do the same for an error outside of a call: nothing was sent."""
        why = Unclassified.of(error)
        self.trace(why)
        if is_programming(error) and not self._lane.proven:
            lane = self._lane
            raise SinkBroken(
                f"{lane.assignment.place(lane.sink)}: it could not be opened, asked or written: "
                f"{why}. The sink has not delivered anything before, so its code is taken to be "
                "broken. Fix it, then start again"
            ) from error

    def trace(self, why: OutcomeUnknown) -> str | None:
        """Log an error, and return its traceback to be kept, if it is the first of its kind."""
        error = why.__cause__ if isinstance(why, Unclassified) else None
        if error is None:
            return None
        lane, kind = self._lane, type(error).__name__
        logged, kept = lane.client.logged, self._kept
        told = (lane.sink.name, kind)
        new = kind not in kept and len(kept) < KINDS_MAX
        if not new and told in logged:
            return None
        text = _cut("".join(traceback.format_exception(error)))
        if told not in logged:
            logged.add(told)
            log.warning(
                "%s: the first %s of this run in this process (others are not logged):\n%s",
                lane.assignment.place(lane.sink),
                kind,
                text,
            )
        kept.add(kind)
        return text if new else None

    def _broken(self, rows: Rows, at: int, why: object) -> SinkBroken:
        lane = self._lane
        after = _AFTERWARDS.get(lane.sink.capability, _ASKED)
        return SinkBroken(
            f"{lane.assignment.place(lane.sink)}: event {rows.id(at)} of {rows.entity(at)!r} "
            f"failed with {why}. The sink has not delivered anything before, so its code is taken "
            f"to be broken. {after}"
        )

    def _silent(self, why: object) -> HeldInDoubt:
        return HeldInDoubt(
            f"{self._lane.assignment.place(self._lane.sink)}: {self.in_a_row} outcomes in a row "
            f"were unknown, the last because of: {why}. A broken destination or function must not "
            f"park a stream. Fix it, {_RESOLVE}, then start again"
        )


def _counts(row: ParkedRow) -> bool:
    """Whether an event was tried, got no answer, and was not resolved since."""
    return row.fault is not None and row.state in _COUNTED


def _cut(text: str) -> str:
    """Cut out the middle of a traceback: its beginning and its end matter."""
    text = "\n".join(plain_text(line, LINE_MAX) for line in text.split("\n"))
    if len(text) <= TRACE_MAX:
        return text
    head = text[: TRACE_MAX // 4]
    return f"{head}\n...\n{text[len(head) + 5 - TRACE_MAX :]}"
