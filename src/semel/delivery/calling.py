"""Calls a destination: what is retried, how an outcome is classified, and which failures stop it.

Always true:
- an unclassified error is an unknown outcome;
- opening a connection has no effect, so any error there can be retried;
- a programming error stops the query as long as the sink has not delivered anything; afterwards it
  concerns its event only, like any other unknown outcome;
- only calls that were made count towards the ten in a row, and not those that a person resolved;
- the first traceback of each kind is logged once per process of a run, and kept once per attempt.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from semel.delivery.observer import FirstFailure
from semel.errors import (
    DeliveryError,
    HeldInDoubt,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
    SinkBroken,
    plain_text,
)
from semel.ledger import read_parked
from semel.protocol import Capability, Fault, ParkedState, SpanState
from semel.sinks import (
    DELIVERED,
    Receipt,
    Unclassified,
    checked_session,
    is_programming,
    left_to_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.observer import Figures
    from semel.events import Chunk, Event, Rows
    from semel.ledger import ParkedRow, SpanRow
    from semel.runtime import Runtime
    from semel.sinks import AnySession, Retry, Session, Sink, Target


UNKNOWN_MAX = 10

KINDS_MAX = 10
"""How many kinds of errors an attempt keeps a traceback of."""

TRACE_MAX = 4_000
"""How many characters of a traceback are kept: its beginning and its end."""

LINE_MAX = 400

_COUNTED = (ParkedState.HELD, ParkedState.SKIPPED, ParkedState.RESENT)
_RESOLVE = (
    "run `semel resolve EVENT delivered|resend|discard --reason ...` for each event that `semel "
    "parked ls` lists"
)
_AFTERWARDS = {
    Capability.OPAQUE: "The call may have had an effect, so on_doubt was applied. Fix the sink, "
    f"{_RESOLVE}, then restart the query",
    Capability.REPEATABLE: "Fix the sink, then restart the query: it repeats the call with the "
    "same key",
}
_ASKED = "Fix the sink, then restart the query: it asks the destination what arrived"


class Forgotten(Exception):
    """The events to send may have arrived before, and their key may be forgotten."""


class RefusedInDoubt(OutcomeUnknown):
    """The event was refused, but an earlier call may have arrived: a refusal undoes nothing."""

    @classmethod
    def after(cls, why: Rejected) -> RefusedInDoubt:
        """Return the error for an event that was refused with `why`."""
        return cls(f"{why}; an earlier call for it got no reply, so it may have arrived")


def outcome(call: Callable[[], Receipt | None]) -> Receipt | DeliveryError:
    """Make one call and return its outcome. Raises only semel's own errors other than
    `DeliveryError`.
    """
    try:
        receipt = call()
        if receipt is not None and not isinstance(receipt, Receipt):
            raise TypeError(f"the session returned {type(receipt).__name__}, not a Receipt")
    except DeliveryError as error:
        return error
    except SemelError:
        raise
    except Exception as error:  # noqa: BLE001 - an unclassified error is unknown
        return Unclassified.of(error)
    return DELIVERED if receipt is None else receipt


def call_patiently(
    call: Callable[[], Receipt | None],
    retry: Retry,
    runtime: Runtime,
    before_each: Callable[[], None] = lambda: None,
) -> Receipt | DeliveryError:
    """Call, and retry while nothing arrived, until the sink's retries are used up."""
    began, pauses = runtime.clock.monotonic(), None
    while True:
        before_each()
        result = outcome(call)
        if not isinstance(result, NotDelivered):
            return result
        pauses = pauses or retry.pauses(runtime.random, runtime.clock.monotonic, began)
        pause = next(pauses, None)
        if pause is None:
            return result
        runtime.clock.sleep(max(pause, result.retry_after_s or 0.0))


def deliver_chunk(session: Session, chunk: Chunk) -> Receipt | None:
    """Deliver a chunk; if no event of it arrived, raise that for the whole chunk."""
    receipt = session.deliver(chunk)
    failures = receipt.failures if isinstance(receipt, Receipt) else {}
    absent = [why for why in failures.values() if isinstance(why, NotDelivered)]
    if absent and len(absent) == len(chunk):
        raise failures[min(failures)]
    return receipt


def answer_of(probe: Callable[[Event], bool | None], event: Event) -> bool | None:
    """Ask a probe about an event. Raises `OutcomeUnknown` for an answer that was not run (a
    coroutine or generator).
    """
    answer = probe(event)
    left = left_to_run(answer)
    if left is not None:
        raise OutcomeUnknown(f"it gave {left}")
    return answer


def forgets(sink: Sink, age_s: float) -> bool:
    """Whether a REPEATABLE destination may have forgotten a key of this age by the time a repeat
    sent now arrives.
    """
    absorbs = sink.capability is Capability.REPEATABLE
    return absorbs and age_s + sink.deadline_s > sink.remembers_s


def open_session(
    sink: Sink,
    target: Target,
    runtime: Runtime,
    look_at: Callable[[Exception], None] = lambda _: None,
) -> AnySession:
    """Open a session, with retries. Raises `NotDelivered` if the destination cannot be reached, and
    what `look_at` raises for an unclassified error.
    """
    last: Exception | None = None
    for _ in sink.retry.tries(runtime):
        try:
            return checked_session(sink, sink.open(target))
        except NotDelivered as error:
            last = error
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - connecting sends nothing
            look_at(error)
            last = error
    raise NotDelivered(
        f"pipeline {target.pipeline!r}, sink {target.sink!r}, partition {target.partition}: the "
        f"destination could not be reached ({last}). Nothing was sent. Check that it runs, then "
        "restart the query"
    ) from last


class Faults:
    """Decides from the failures of a sink whether its code is broken or its destination is silent,
    for one partition.

    Attributes:
        in_a_row: how many calls in a row, up to now, have an unknown outcome; includes those of
            earlier attempts and minibatches that were not resolved since.
    """

    def __init__(self, partition: SinkPartition) -> None:
        self._partition = partition
        self.in_a_row = 0
        self._succeeded = False
        self._delivered = False
        self._kept: set[str] = set()
        self._recorded: Sequence[ParkedRow] = ()

    # -- earlier attempts

    def recall(
        self,
        spans: Sequence[SpanRow] = (),
        rows: Sequence[ParkedRow] = (),
        parked: AbstractSet[int] = frozenset(),
    ) -> None:
        """Continue the count of earlier attempts, from the `spans` and parked `rows` that they
        recorded of this partition, and of earlier minibatches; nothing is read if those were all
        answered. `parked` are the positions of the events that are not sent.
        """
        self._recorded = rows
        delivered = _last_delivered(spans, parked)
        self.in_a_row = sum(_counts(row) and row.position > delivered for row in rows)
        assignment, sink = self._partition.assignment, self._partition.sink
        known = assignment.opening.sequence(sink.name, assignment.partition)
        if known.unanswered and delivered < 0:
            minibatch = assignment.opening.row.minibatch
            older = sum(
                _counts(row)
                and row.partition == assignment.partition
                and row.minibatch != minibatch
                for _, row, _ in read_parked(self._partition.client, sink.name)
            )
            self.in_a_row += min(known.unanswered, older)

    def stop_if_nothing_was_tried(self) -> None:
        """Stop the query again if an earlier start stopped it and no call could be made, because
        every event that is left has to wait.
        """
        if self._delivered:
            return
        broken = [
            row
            for row in self._recorded
            if row.fault is Fault.CODE and row.state is ParkedState.HELD
        ]
        if broken and not self._proven:
            raise SinkBroken(
                f"{self._partition.place}: no event could be sent, because every event waits "
                f"behind one that failed in an earlier run: event {broken[0].event} of "
                f"{broken[0].entity!r} failed with {plain_text(broken[0].why)}. Fix the sink, "
                f"{_RESOLVE}, then restart the query"
            )
        if self.in_a_row >= UNKNOWN_MAX:
            raise self._silent("see the log of the earlier run")

    # -- this attempt

    def answered(self) -> None:
        """Record that a call delivered something, which ends the unknown outcomes in a row."""
        self._succeeded, self.in_a_row = True, 0

    def heard(self) -> None:
        """Record that the destination answered, whatever it answered: this ends them too."""
        self.in_a_row = 0

    def note(self, figures: Figures) -> None:
        """Note what this attempt delivered, or found delivered: the sink's code works."""
        if figures.delivered or figures.suppressed:
            self._delivered = True

    @property
    def _proven(self) -> bool:
        """Whether the sink is known to have delivered anything: in this partition of the minibatch,
        or in any partition of one that is complete.
        """
        opening = self._partition.assignment.opening
        return bool(
            self._succeeded
            or self._delivered
            or opening.delivered_before(self._partition.sink.name)
        )

    def count(self, rows: Rows, at: int, why: OutcomeUnknown) -> SemelError | None:
        """Count a call with an unknown outcome; return the error that stops the query, if any."""
        if is_programming(why) and not self._proven:
            return self._broken(rows, at, why)
        self.in_a_row += 1
        return self._silent(why) if self.in_a_row >= UNKNOWN_MAX else None

    def look_at(self, rows: Rows, why: object) -> None:
        """Log the first error of its kind. Raises `SinkBroken` if a call of these rows failed with
        a programming error and the sink has not delivered anything.
        """
        if isinstance(why, Unclassified):
            self.trace(why)
            if is_programming(why) and not self._proven:
                raise self._broken(rows, 0, why)

    def look_at_opening(self, error: Exception) -> None:
        """Do the same for an error outside of a call: nothing was sent."""
        why = Unclassified.of(error)
        self.trace(why)
        if is_programming(error) and not self._proven:
            raise SinkBroken(
                f"{self._partition.place}: the sink could not be opened, asked or written: "
                f"{why}. It has never delivered an event, so the fault is assumed to be in its "
                "code. Fix the sink, then restart the query"
            ) from error

    def trace(self, why: OutcomeUnknown) -> str | None:
        """Log an error, and return its traceback to be kept, if it is the first of its kind."""
        error = why.__cause__ if isinstance(why, Unclassified) else None
        if error is None:
            return None
        kind, kept = type(error).__name__, self._kept
        partition = self._partition
        new = kind not in kept and len(kept) < KINDS_MAX
        first = partition.client.first_time(partition.sink.name, kind)
        if not new and not first:
            return None
        text = _cut(partition.client.conceal("".join(traceback.format_exception(error))))
        if first:
            partition.observer.observe(FirstFailure(partition.place, kind, text))
        kept.add(kind)
        return text if new else None

    def _broken(self, rows: Rows, at: int, why: object) -> SinkBroken:
        after = _AFTERWARDS.get(self._partition.sink.capability, _ASKED)
        return SinkBroken(
            f"{self._partition.place}: event {rows.id(at)} of {rows.entity(at)!r} "
            f"failed with {why}. The sink has never delivered an event, so the fault is assumed "
            f"to be in its code. {after}"
        )

    def _silent(self, why: object) -> HeldInDoubt:
        return HeldInDoubt(
            f"{self._partition.place}: {self.in_a_row} outcomes in a row "
            f"were unknown; the last cause: {why}. The pipeline stops, because a destination or "
            "function that is broken would leave every event in doubt. Fix it, "
            f"{_RESOLVE}, then restart the query"
        )


def _last_delivered(spans: Sequence[SpanRow], parked: AbstractSet[int]) -> int:
    """Return the position of the last event that an earlier attempt delivered; -1 for none."""
    for span in reversed(spans):
        if span.state is SpanState.SETTLED:
            for position in reversed(range(span.start, span.stop)):
                if position not in parked:
                    return position
    return -1


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
