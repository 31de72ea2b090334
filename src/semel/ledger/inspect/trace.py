"""What the ledger knows of one event or one entity at a sink.

Always true: an answer is never stronger than the record behind it. Watermarks and counters show
that an event is `handled`, not that it was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter, or_
from typing import TYPE_CHECKING, Any, cast

from semel.events import IdSet, shape_of
from semel.ledger import keys
from semel.ledger.journal import (
    COUNTERS,
    JOURNAL_TABLE,
    JournalState,
    number_in,
    read_unsure,
    require_counts,
    require_reached,
    sets_in,
    states_of,
    watermark_of,
)
from semel.ledger.keys import EVENTS_TABLE, OPEN_TABLE, PIPELINES_TABLE, STREAMS_TABLE, make_prefix
from semel.ledger.payloads import read_row
from semel.ledger.rows import (
    HeadRow,
    OpenRow,
    ParkedRow,
    PartitionRow,
    SpanRow,
    minibatch_of,
    read_description,
)
from semel.ledger.store.commit import Key
from semel.ledger.verbs.batch_jobs import finished_batch
from semel.ledger.verbs.complete import SEQUENCES_TABLE as SEQUENCES
from semel.ledger.verbs.complete import SequenceRow, sequence_key
from semel.ledger.verbs.divergence import comes_anew
from semel.ledger.verbs.parked import head_key, read_heads, read_parked
from semel.ledger.verbs.pruning import OutcomeRow, outcome_key
from semel.ledger.verbs.reset import ResetRow, read_resets
from semel.protocol import ParkedState, PartitionState, SpanState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.events import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.journal import StateOperator


@dataclass(frozen=True, slots=True)
class Trace:
    """What the ledger knows of one event at one sink.

    `state` is one of
    - `delivered`: the ledger has a record of this event;
    - `handled`: the ledger is past its id. If it existed, it was delivered or resolved, or it came
      before this sink was added and was not sent to it;
    - `discarded` by a person; `skipped by policy`, which was in doubt and not sent again;
    - `in doubt`, `parked`, `not seen`;
    - `pending`: an attempt has its partition; only the destination knows how far it came.

    `source`: the record that the answer is from, the ledger or the audit log.
    """

    sink: str
    state: str
    minibatch: Minibatch | None = None
    attempt: str | None = None
    osn: tuple[int, int] | None = None
    at: float | None = None
    why: str | None = None
    source: str = "ledger"


@dataclass(frozen=True, slots=True)
class EntityTrace:
    """What the ledger knows of one entity at one sink.

    Attributes:
        upto: every event up to this id is handled; with position, increasing or counted ids.
        ids: further ids that are remembered as handled.
        heads: the entity is blocked while there is one.
    """

    sink: str
    upto: EventID | None
    ids: IdSet
    parked: list[tuple[Key, ParkedRow]]
    heads: list[HeadRow]

    @property
    def waiting(self) -> int:
        """How many events of the entity wait behind a parked one."""
        return sum(row.state is ParkedState.WAITING for _, row in self.parked)

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
    ParkedState.DISCARDED: "a person discarded it; the time and the reason are no longer kept",
    ParkedState.SKIPPED: "it was in doubt and policy skip did not send it again; the time and the "
    "reason are no longer kept",
}


def trace_entity(client: LedgerClient, sink: str, entity: str) -> EntityTrace:
    """Return what the ledger knows of an entity at a sink."""
    upto, ids = handled(client, sink, entity)
    parked = [(at, row) for at, row, _ in _parked_of(client, sink, entity)]
    return EntityTrace(sink, upto, ids, parked, _heads_of(client, sink, entity))


def _is_scope(client: LedgerClient) -> bool:
    """Whether an entity that is asked for may be the source partition of other entities' events:
    with position identity and an entity column.
    """
    at = keys.make_key(PIPELINES_TABLE, client.pipeline)
    identity = read_description(client.read_one(at), at).get("identity") or {}
    return identity.get("kind") == "position" and identity.get("entity") is not None


def _parked_of(client: LedgerClient, sink: str, entity: str) -> list[tuple[Key, ParkedRow, str]]:
    """Return the parked events of an entity or of a source partition, in their order."""
    found = read_parked(client, sink, None if _is_scope(client) else entity)
    return [each for each in found if entity in (each[1].entity, each[1].scope)]


def _heads_of(client: LedgerClient, sink: str, entity: str) -> list[HeadRow]:
    """Return the heads of an entity or of a source partition."""
    if _is_scope(client):
        return [head for who, (head, _) in read_heads(client, sink).items() if entity in who]
    at = head_key(client.pipeline, sink, (entity, entity))
    text = client.read_one(at)
    return [] if text is None else [HeadRow.load(text, at)]


def trace_event(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace:
    """Return what the ledger knows of an event at a sink."""
    resets = read_resets(client)
    repeated = max((each.minibatch for each in resets if each.repeat), default=None)
    parked = _in_parked(client, sink, entity, event)
    if parked is not None and not (parked[1] or _is_before(parked[0].minibatch, repeated)):
        return parked[0]
    outcome = _in_outcomes(client, sink, entity, event)
    found = (
        (outcome if repeated is None else None)
        or _in_spans(client, sink, entity, event)
        or _in_recent(client, sink, entity, event)
        or _in_watermarks(client, sink, entity, event)
        or _in_unsure(client, sink, entity, event)
        or _in_pending(client, sink)
        or (None if parked is None else parked[0])
        or outcome
        or _in_finished(client, sink)
        or _counted(client, sink, entity, event)
        or Trace(sink, "not seen")
    )
    return _with_resets(found, resets)


def _is_before(minibatch: Minibatch | None, reset: Minibatch | None) -> bool:
    """Whether a minibatch is not later than the last one before a reset."""
    return minibatch is not None and reset is not None and minibatch <= reset


def _with_resets(found: Trace, resets: Sequence[ResetRow]) -> Trace:
    """Return an answer that a reset makes weaker with the reason: ids that were forgotten to be
    repeated are not seen any more, and positions that were skipped count as handled.
    """
    if not resets or found.state not in ("handled", "not seen"):
        return found
    last = resets[-1]
    what = (
        "events that it skipped count as handled too"
        if found.state == "handled"
        else "what was delivered before it may not be remembered"
    )
    why = f"the pipeline was reset (reset {last.number} to {last.to}, by {last.by}): {what}"
    return replace(found, why=f"{found.why}; {why}" if found.why else why)


def _in_parked(
    client: LedgerClient, sink: str, entity: str, event: EventID
) -> tuple[Trace, bool] | None:
    """Return the newest parked row of an event, and whether the event is delivered again."""
    for _, row, _ in reversed(_parked_of(client, sink, entity)):
        state = _PARKED_AS.get(row.state)
        if state is not None and row.event == event:
            osn = (row.osn, row.osn)
            resolved = f"; {row.by}: {row.reason}" if row.by else ""
            trace = Trace(sink, state, row.minibatch, None, osn, row.at, row.why + resolved)
            return trace, comes_anew(row)
    return None


def _in_outcomes(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    at = outcome_key(client.pipeline, sink, entity)
    text = client.read_one(at)
    state = None if text is None else OutcomeRow.load(text, at).state_of(event)
    return None if state is None else Trace(sink, _PARKED_AS[state], why=_GONE[state])


def _in_recent(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    found = _find_recent(client, sink, entity, event)
    if found is None:
        return None
    row = found.row
    osn = (row.osn + 1, row.osn + (row.count or 0))
    if not found.certain:
        why = f"its id is in the range of partition {row.partition}"
        return Trace(sink, "handled", found.minibatch, str(row.attempt), osn, row.at, why)
    if row.taken:
        why = f"attempt {row.attempt} completed its partition, which it took over: it or one before"
        why += " delivered the event"
        return Trace(sink, "delivered", found.minibatch, None, osn, None, why)
    return Trace(sink, "delivered", found.minibatch, str(row.attempt), osn, row.at)


def _in_spans(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    for at, text in client.scan(EVENTS_TABLE, make_prefix(client.pipeline, sink)):
        span = SpanRow.load(text, at)
        if not any(ids.contains(entity, event) for ids in span.ids):
            continue
        stream_key = Key(STREAMS_TABLE, at.key.rpartition("/")[0])
        stream = client.read_one(stream_key)
        complete = stream is not None and (
            PartitionRow.load(stream, stream_key).state is PartitionState.COMPLETE
        )
        before = span.handled.contains(entity, event)  # while others of its span are still sent
        settled = complete or before or span.state is SpanState.SETTLED
        return Trace(
            sink,
            "delivered" if settled else "in doubt",
            minibatch_of(at),
            str(span.attempt),
            span.osn,
            span.at,
            None if settled else "an attempt is sending it, or ended while sending it",
        )
    return None


def _in_watermarks(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    upto, ids = handled(client, sink, entity)
    if _is_upto(event, upto):
        return Trace(sink, "handled", why=f"everything up to {upto} is handled")
    if event in ids:
        return Trace(sink, "handled", why="its id is remembered")
    return None


def _in_unsure(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    if not read_unsure(client, sink).contains(entity, event):
        return None
    why = "it may have been sent before a checkpoint was lost; it is sent when it is read again"
    return Trace(sink, "in doubt", why=why)


def _in_finished(client: LedgerClient, sink: str) -> Trace | None:
    known = (finished_batch(client) or {}).get(sink)
    if known is None:
        return None
    if not known.count:
        return Trace(sink, "not seen", why="the batch job is finished and had no events")
    why = (
        f"the batch job is finished with {known.count} events, and each of them was delivered or "
        "is parked; the ledger does not keep whether this one was among them"
    )
    return Trace(sink, "handled", why=why)


def _counted(client: LedgerClient, sink: str, entity: str, event: EventID) -> Trace | None:
    """Return that an id was counted, where the ledger has no record that this sink got it."""
    last = counted_up_to(client, entity)
    if not isinstance(event, int) or not 0 < event <= last:
        return None
    why = (
        f"ids up to {last} were counted for the pipeline, but this sink was added later or "
        "left out for a while, or its minibatches were judged or rescaled: the ledger has no "
        "record of which ids it got"
    )
    return Trace(sink, "not seen", why=why)


def _in_pending(client: LedgerClient, sink: str) -> Trace | None:
    for at, text in client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink)):
        row = PartitionRow.load(text, at)
        if row.state is PartitionState.PENDING:
            return Trace(
                sink,
                "pending",
                minibatch_of(at),
                str(row.attempt),
                at=row.at,
                why=f"not recorded; it may be among the events of partition {row.partition}, which "
                "is pending: only the destination knows how far the attempt came",
            )
    return None


def handled(client: LedgerClient, sink: str, entity: str) -> tuple[EventID | None, IdSet]:
    """Return the id up to which all events of an entity are handled, and further handled ids.

    Positions are in `sequences`. In the journal a maximum is a list under the entity's name, a
    counter an integer in an operator of its own, and remembered ids are sets under a serial.
    """
    upto: EventID | None = None
    ids = IdSet.EMPTY
    for at, text in client.scan(SEQUENCES, make_prefix(client.pipeline, sink)):
        row = SequenceRow.load(text, at)
        if row.after.mark is not None and row.partition == entity:
            upto, ids = row.after.mark.upto, row.after.mark.above
    for place, state in _states_of(client, COUNTERS):
        require_counts(state.values, place)
        if entity in state.values and _had_all(client, sink, place, state):
            upto = state.values[entity]
    for place, state in _states_of(client, watermark_of(sink)):
        reached = state.values.get(entity)
        if isinstance(reached, list):
            require_reached(state.values, place)
            upto = tuple(reached[0]) if isinstance(reached[0], list) else reached[0]
            ids = read_row(JOURNAL_TABLE, place, partial(_with_above, ids, reached))
        found = sets_in(state, place).get(entity)
        ids = read_row(JOURNAL_TABLE, place, partial(or_, ids, found))
    return upto, ids


def _had_all(client: LedgerClient, sink: str, place: str, counted: JournalState) -> bool:
    """Whether a sink got every event that was counted in a partition. Counters belong to the
    pipeline: a sink that was added later, or left out for a while, has fewer numbers.
    """
    pipeline_key, open_key = (
        keys.make_key(PIPELINES_TABLE, client.pipeline),
        keys.make_key(OPEN_TABLE, client.pipeline),
    )
    known = client.read_one(pipeline_key)
    if known is not None and len(read_description(known, pipeline_key).get("sinks", {})) == 1:
        return True
    partition = keys.key_text(keys.split_key(place.removesuffix("/"))[2])
    at = sequence_key(client.pipeline, sink, partition)
    opened, text = client.read_one(open_key), client.read_one(at)
    if opened is None or text is None:
        return False
    if OpenRow.load(opened, open_key).minibatch.generation > 1:
        return False  # a judged minibatch has used numbers without events
    return bool(SequenceRow.load(text, at).after.osn == sum(counted.values.values()))


def _with_above(ids: IdSet, reached: list[Any]) -> IdSet:
    return ids | IdSet.from_json(reached[2]) if len(reached) > 2 else ids


def _states_of(client: LedgerClient, operator: StateOperator) -> list[tuple[str, JournalState]]:
    """Return the current journaled state of each partition, and the place of its rows."""
    rows = client.scan(JOURNAL_TABLE, make_prefix(client.pipeline, operator.name))
    return sorted(states_of(rows).items(), key=itemgetter(0))


def counted_up_to(client: LedgerClient, entity: str) -> int:
    """Return the last id that was counted for an entity, at any sink."""
    last = 0
    for place, state in _states_of(client, COUNTERS):
        require_counts(state.values, place)
        last = max(last, state.values.get(entity, 0))
    return last


@dataclass(frozen=True, slots=True)
class _Recent:
    """The minibatch and partition in which an event was handled.

    Attributes:
        certain: whether the event itself is recorded there, or only a range that contains its id.
    """

    minibatch: Minibatch
    row: PartitionRow
    certain: bool


def _find_recent(client: LedgerClient, sink: str, entity: str, event: EventID) -> _Recent | None:
    """Look for an event among the complete partitions whose rows are kept, the newest first.

    TRANSACTIONAL and SEQUENCED destinations know what they have, so no span names the event. The
    row of a complete partition still has time and attempt, and the journal has the ids.
    """
    open_key, pipeline_key = (
        keys.make_key(OPEN_TABLE, client.pipeline),
        keys.make_key(PIPELINES_TABLE, client.pipeline),
    )
    rows = client.read(open_key, pipeline_key)
    if open_key not in rows or pipeline_key not in rows:
        return None
    opened = OpenRow.load(rows[open_key], open_key)
    identity = read_description(rows[pipeline_key], pipeline_key).get("identity") or {}
    found = client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink))
    for at, text in reversed(found):
        row, minibatch = PartitionRow.load(text, at), minibatch_of(at)
        if row.state is not PartitionState.COMPLETE:
            continue
        if minibatch.generation != opened.minibatch.generation:
            continue
        serial = opened.serial + minibatch.batch - opened.minibatch.batch
        certain = _holds(client, sink, identity, (row, serial), (entity, event))
        if certain is not None:
            return _Recent(minibatch, row, certain)
    return None


def _holds(
    client: LedgerClient,
    sink: str,
    identity: dict[str, Any],
    where: tuple[PartitionRow, int],
    what: tuple[str, EventID],
) -> bool | None:
    """Return whether an event is certainly, or may be, in a partition; None if it is not."""
    (row, serial), (entity, event) = where, what
    kind = identity.get("kind")
    if kind == "position":
        return _in_range(row, event) if row.partition == entity else None
    operator = COUNTERS if kind == "counter" else watermark_of(sink)
    before, after, place = _states(client, operator, row.partition, serial)
    if kind == "counter":
        require_counts(after.values, place)
    elif identity.get("increasing"):
        require_reached(after.values, place)
    if kind == "given" and not identity.get("increasing"):
        only = JournalState(
            {name: ids for name, ids in after.values.items() if name == str(serial)}
        )
        return True if sets_in(only, place).contains(entity, event) else None
    was, now = before.values.get(entity), after.values.get(entity)
    if kind == "counter":
        counted = isinstance(now, int) and isinstance(event, int) and (was or 0) < event <= now
        return True if counted else None
    reached, last = (_last(value) for value in (was, now))
    if last is None or last == reached or not _is_upto(event, last):
        return None
    return None if _is_upto(event, reached) else event == last


def _is_upto(event: EventID, last: EventID | None) -> bool:
    """Whether an id is not after another; ids of two shapes do not compare."""
    if last is None or shape_of(event) != shape_of(last):
        return False
    return bool(cast("Any", event) <= cast("Any", last))


def _in_range(row: PartitionRow, event: EventID) -> bool | None:
    """Return, with position identity, whether an event is certainly in a range, because no offset
    of it is missing; None if it is not in the range.
    """
    wanted = list(event) if isinstance(event, tuple) else [event]
    ends = row.first or [], row.last or []
    if any(list(map(type, each)) != list(map(type, wanted)) for each in ends):
        return None
    if not ends[0] <= wanted <= ends[1]:
        return None
    if wanted in ends:
        return True
    return len(wanted) == 1 and ends[1][0] - ends[0][0] + 1 == row.count


def _states(
    client: LedgerClient, operator: StateOperator, partition: str, serial: int
) -> tuple[JournalState, JournalState, str]:
    """Return the state of a partition before and after a minibatch, and the prefix of its keys."""
    place = make_prefix(client.pipeline, operator.name, partition)
    numbered = [(number_in(row[0]), row) for row in client.scan(JOURNAL_TABLE, place)]
    before = states_of(row for number, row in numbered if number < serial)
    after = states_of(row for number, row in numbered if number <= serial)
    return before.get(place, JournalState()), after.get(place, JournalState()), place


def _last(value: Any) -> EventID | None:
    """Return the last id that an entity reached, of increasing ids."""
    if not isinstance(value, list) or not value:
        return None
    last: EventID | None = tuple(value[0]) if isinstance(value[0], list) else value[0]
    return last
