"""What the ledger knows of one event or one entity at a sink, and never more than that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.ledger.finished import finished
from semel.ledger.handled import counted_up_to, handled
from semel.ledger.journal import read_unsure
from semel.ledger.judging import comes_anew
from semel.ledger.keys import EVENTS, STREAMS, prefix
from semel.ledger.outcomes import OutcomeRow, outcome_key
from semel.ledger.parked import read_heads, read_parked
from semel.ledger.recent import find_recent, is_upto, minibatch_of
from semel.ledger.rows import HeadRow, ParkedRow, SpanRow, StreamRow
from semel.ledger.store import Key
from semel.protocol import ParkedState, PartitionState, SpanState

if TYPE_CHECKING:
    from semel.events import EventID, IdSet, Minibatch
    from semel.ledger.scribe import Scribe


@dataclass(frozen=True, slots=True)
class Trace:
    """What the ledger knows of one event at one sink, and never more than that.

    `state` is one of
    - `delivered`: a record says so of this very event;
    - `handled`: the ledger has passed its id: it was delivered or resolved, if there was such an
      event at all;
    - `discarded`: a person said so;
    - `skipped by policy`: it was in doubt, and policy `skip` did not send it again;
    - `in doubt`, `parked`, `not seen`;
    - `pending`: an attempt has its partition, and the destination, not the ledger, knows how far it
      came.
    """

    sink: str
    state: str
    minibatch: Minibatch | None = None
    attempt: str | None = None
    osn: tuple[int, int] | None = None
    at: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of one entity at one sink.

    Attributes:
        upto: every event up to this id is handled, where ids are positions, increasing or counted.
        ids: further ids that are remembered as handled.
        heads: not empty while the entity is blocked.
    """

    sink: str
    upto: EventID | None
    ids: IdSet
    parked: list[tuple[Key, ParkedRow]]
    heads: list[HeadRow]

    def __bool__(self) -> bool:
        return self.upto is not None or bool(self.ids) or bool(self.parked) or bool(self.heads)


_PARKED_AS = {
    ParkedState.HELD: "in doubt",
    ParkedState.REJECTED: "parked",
    ParkedState.WAITING: "parked",
    ParkedState.RESEND: "parked",
    ParkedState.SENDING: "in doubt",
    ParkedState.DELIVERED: "delivered",
    ParkedState.DISCARDED: "discarded",
    ParkedState.SKIPPED: "skipped by policy",
}

_GONE = {
    ParkedState.DISCARDED: "a person discarded it, longer ago than when and why are kept",
    ParkedState.SKIPPED: "it was in doubt and policy skip did not send it again, longer ago than "
    "when and why are kept",
}


def known(scribe: Scribe, sink: str, entity: str) -> Known:
    """Say what is known of an entity at a sink."""
    upto, ids = handled(scribe, sink, entity)
    parked = [
        (at, row) for at, row, _ in read_parked(scribe, sink) if entity in (row.entity, row.scope)
    ]
    heads = [head for who, (head, _) in read_heads(scribe, sink).items() if entity in who]
    return Known(sink, upto, ids, parked, heads)


def trace(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace:
    """Say what became of an event at a sink."""
    parked = _in_parked(scribe, sink, entity, event)
    if parked is not None and not parked[1]:
        return parked[0]
    return (
        _in_outcomes(scribe, sink, entity, event)
        or _in_spans(scribe, sink, entity, event)
        or _in_recent(scribe, sink, entity, event)
        or _in_watermarks(scribe, sink, entity, event)
        or _in_unsure(scribe, sink, entity, event)
        or _in_pending(scribe, sink)
        or (None if parked is None else parked[0])
        or _in_finished(scribe, sink)
        or _counted(scribe, sink, entity, event)
        or Trace(sink, "not seen")
    )


def _in_parked(scribe: Scribe, sink: str, entity: str, event: EventID) -> tuple[Trace, bool] | None:
    """Tell what the newest parked row of an event says, and whether the event comes anew."""
    for _, row, _ in reversed(read_parked(scribe, sink)):
        state = _PARKED_AS.get(row.state)
        if state is not None and row.event == event and entity in (row.entity, row.scope):
            osn = (row.osn, row.osn)
            said = f"; {row.by}: {row.reason}" if row.by else ""
            trace = Trace(sink, state, row.minibatch, None, osn, row.at, row.why + said)
            return trace, comes_anew(row)
    return None


def _in_outcomes(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    at = outcome_key(scribe.pipeline, sink, entity)
    text = scribe.read_one(at)
    state = None if text is None else OutcomeRow.load(text, at).state_of(event)
    return None if state is None else Trace(sink, _PARKED_AS[state], why=_GONE[state])


def _in_recent(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    found = find_recent(scribe, sink, entity, event)
    if found is None:
        return None
    row = found.row
    return Trace(
        sink,
        "delivered" if found.certain else "handled",
        found.minibatch,
        str(row.attempt),
        (row.osn + 1, row.osn + (row.count or 0)),
        row.at,
        None if found.certain else f"its id is within those of partition {row.partition}",
    )


def _in_spans(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    for at, text in scribe.scan(EVENTS, prefix(scribe.pipeline, sink)):
        span = SpanRow.load(text, at)
        if not any(ids.contains(entity, event) for ids in span.ids):
            continue
        stream_key = Key(STREAMS, at.key.rpartition("/")[0])
        stream = scribe.read_one(stream_key)
        complete = stream is not None and (
            StreamRow.load(stream, stream_key).state is PartitionState.COMPLETE
        )
        before = span.handled.contains(entity, event)  # beside others that are still sent
        settled = complete or before or span.state is SpanState.SETTLED
        return Trace(
            sink,
            "delivered" if settled else "in doubt",
            minibatch_of(at),
            str(span.attempt),
            span.osn,
            span.at,
            None if settled else "an attempt is sending it, or ended while it was",
        )
    return None


def _in_watermarks(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    upto, ids = handled(scribe, sink, entity)
    if is_upto(event, upto):
        return Trace(sink, "handled", why=f"everything up to {upto} is handled")
    if event in ids:
        return Trace(sink, "handled", why="its id is remembered")
    return None


def _in_unsure(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    if not read_unsure(scribe, sink).contains(entity, event):
        return None
    why = "it may have been sent before a checkpoint was lost; it is sent when it comes again"
    return Trace(sink, "in doubt", why=why)


def _in_finished(scribe: Scribe, sink: str) -> Trace | None:
    known = (finished(scribe) or {}).get(sink)
    if known is None:
        return None
    if not known.count:
        return Trace(sink, "not seen", why="the batch is finished, and had no events")
    why = (
        f"the batch is finished with {known.count} events, and each of them was delivered or "
        "is parked; whether this one was among them is not kept"
    )
    return Trace(sink, "handled", why=why)


def _counted(scribe: Scribe, sink: str, entity: str, event: EventID) -> Trace | None:
    """Say that an id was given, where the ledger does not tell whether this sink had it."""
    last = counted_up_to(scribe, entity)
    if not isinstance(event, int) or not 0 < event <= last:
        return None
    why = (
        f"ids up to {last} were counted for the pipeline, but this sink was added later, or "
        "left out, or its minibatches were judged or rescaled: which of them it had is not "
        "recorded"
    )
    return Trace(sink, "not seen", why=why)


def _in_pending(scribe: Scribe, sink: str) -> Trace | None:
    for at, text in scribe.scan(STREAMS, prefix(scribe.pipeline, sink)):
        row = StreamRow.load(text, at)
        if row.state is PartitionState.PENDING:
            return Trace(
                sink,
                "pending",
                minibatch_of(at),
                str(row.attempt),
                at=row.at,
                why=f"not recorded; it may be among those of partition {row.partition}, which "
                "is pending: the destination knows how far it came",
            )
    return None
