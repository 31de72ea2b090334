"""Parked events and heads: what is kept out of the way of the stream, and who has to wait for it.

Always true:
- an event is parked at most once for its minibatch: the key decides;
- while an event blocks its entity there is a head, and only the partition of the entity makes one
  while it runs;
- parking behind, draining and unblocking all require the head as they saw it, so none misses
  another.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, LedgerError, LedgerUnavailable
from semel.ledger.keys import HEADS, PARKED, key, prefix
from semel.ledger.keys import event as event_part
from semel.ledger.rows import HeadRow, ParkedRow
from semel.ledger.store.commit import Absent, Conflict, Equals, Put
from semel.protocol import Judgement, ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.events.event import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Requirement, Update

Entity = tuple[str, str]
"""The ordering key and the scope of its ids: the entity twice, or entity and source partition."""

Heads = dict[Entity, tuple[HeadRow, str]]
"""The heads as they were last seen, with their text."""


ANEW = f"{Judgement.AS_REPLAYED.value}: "
"""What the reason of an event begins with that was discarded because its minibatch is delivered as
replayed.
"""


class HeadMoved(LedgerError):
    """A head is not as it was when last seen; nothing was written. Never leaves the delivery."""


@dataclass(frozen=True, slots=True)
class Parks:
    """What a commit requires and writes to park events, and the heads it leaves."""

    rows: tuple[ParkedRow, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    updates: tuple[Update, ...] = ()
    heads: tuple[tuple[Entity, HeadRow], ...] = ()

    def stand(self, client: LedgerClient) -> bool:
        """Say whether these events have been parked, whatever became of them since."""
        keys = [update.key for update in self.updates if isinstance(update, Put)]
        parked = [each for each in keys if each.table == PARKED]
        return bool(parked) and len(client.read(*parked)) == len(parked)

    def apply_to(self, heads: Heads) -> None:
        """Remember the heads as the commit left them."""
        for entity, head in self.heads:
            heads[entity] = (head, head.dump())


NOTHING = Parks()


def parked_key(pipeline: str, sink: str, row: ParkedRow) -> Key:
    """Name the row of a parked event."""
    return key(
        PARKED,
        pipeline,
        sink,
        row.entity,
        event_in_key(row),
        row.minibatch.generation,
        row.minibatch.batch,
    )


def event_in_key(row: ParkedRow) -> str:
    """Write the event as it stands in the key of its row."""
    return event_part(_event_of(row.entity, row.scope, row.event))


def _event_of(entity: str, scope: str, event: EventID) -> EventID:
    """With position identity an ordering entity says nothing of the event: its source partition
    does.
    """
    if entity == scope:
        return event
    return (scope, *event) if isinstance(event, tuple) else (scope, event)


def head_key(pipeline: str, sink: str, entity: Entity) -> Key:
    """Name the head of an entity."""
    parts = (entity[0],) if entity[0] == entity[1] else entity
    return key(HEADS, pipeline, sink, *parts)


def parking(
    pipeline: str,
    sink: str,
    rows: Sequence[ParkedRow],
    heads: Heads,
    marks: Mapping[Key, str] | None = None,
) -> Parks:
    """Make what a commit needs to park `rows`, given the heads and marks as they were last seen.

    A mark is a row that only says there was a doubt about an event; such a row may be parked over.
    """
    requirements: list[Requirement] = []
    updates: list[Update] = []
    waiting: dict[Entity, int] = {}
    firsts: dict[Entity, ParkedRow] = {}
    for row in rows:
        row_key = parked_key(pipeline, sink, row)
        mark = (marks or {}).get(row_key)
        requirements.append(Absent(row_key) if mark is None else Equals(row_key, mark))
        doubted = row.doubted or mark is not None
        updates.append(Put(row_key, replace(row, doubted=doubted).dump()))
        if row.blocks:
            entity = (row.entity, row.scope)
            firsts.setdefault(entity, row)
            waiting[entity] = waiting.get(entity, 0) + (row.state is ParkedState.WAITING)
    made: list[tuple[Entity, HeadRow]] = []
    for entity, behind in waiting.items():
        at = head_key(pipeline, sink, entity)
        seen = heads.get(entity)
        if seen is None:
            first = firsts[entity]
            origin = _origin(parked_key(pipeline, sink, first), first)
            head = HeadRow(entity[0], entity[1], 1, behind, origin)
            requirements.append(Absent(at))
        else:
            head = replace(seen[0], version=seen[0].version + 1, waiting=seen[0].waiting + behind)
            requirements.append(Equals(at, seen[1]))
        updates.append(Put(at, head.dump()))
        made.append((entity, head))
    return Parks(tuple(rows), tuple(requirements), tuple(updates), tuple(made))


def _origin(row_key: Key, row: ParkedRow) -> str:
    """Name what made a head: the event, and how often it had been tried and resolved by then."""
    return f"{row_key.key}#{row.attempts}#{row.state.value}"


def read_heads(client: LedgerClient, sink: str) -> Heads:
    """Give every blocked entity of a sink."""
    found: Heads = {}
    for at, text in client.scan(HEADS, prefix(client.pipeline, sink)):
        head = HeadRow.load(text, at)
        found[head.entity, head.scope] = (head, text)
    return found


def read_parked(
    client: LedgerClient, sink: str, entity: str | None = None, minibatch: Minibatch | None = None
) -> list[tuple[Key, ParkedRow, str]]:
    """Give parked rows of a sink with their keys and texts, in the order in which they came."""
    parts = (client.pipeline, sink) if entity is None else (client.pipeline, sink, entity)
    rows = [
        (row_key, ParkedRow.load(text, row_key), text)
        for row_key, text in client.scan(PARKED, prefix(*parts))
    ]
    chosen = [row for row in rows if minibatch is None or row[1].minibatch == minibatch]
    return sorted(chosen, key=lambda row: (row[1].minibatch, row[1].position))


def fill(client: LedgerClient, row_key: Key, text: str, full: ParkedRow) -> None:
    """Give a parked event its payload, also where a person has said meanwhile that it is to be
    sent again: it does not come a further time.
    """
    while True:
        try:
            client.commit([Equals(row_key, text)], [Put(row_key, full.dump())])
        except Conflict:
            found = client.read_one(row_key)
            row = None if found is None else ParkedRow.load(found, row_key)
            if found is None or row is None or row.value is not None or row.state.final:
                return
            full = replace(row, value=full.value, schema=full.schema, shown=full.shown)
            text = found
            continue
        return


def note(client: LedgerClient, sink: str, row: ParkedRow) -> None:
    """Park a row that only tells, if the ledger answers at once and nothing stands there."""
    parks = parking(client.pipeline, sink, [row], {})
    with suppress(Conflict, LedgerUnavailable):
        client.store.commit(parks.requirements, parks.updates)


def resolve(
    client: LedgerClient, sink: str, row_key: Key, decision: ParkedState, by: str, reason: str
) -> ParkedRow:
    """Record what a person says of a parked event: DELIVERED, DISCARDED, or RESEND.

    An event that has no payload yet, because a checkpoint was lost while it was being sent, goes
    when it has come again. May be repeated. RESEND can be taken back until a sender has claimed
    the event: both require the row as it stood. Raises `ConfigurationError` when there is no such
    event or it cannot be resolved so.
    """
    if reason.startswith(ANEW):
        raise ConfigurationError(
            f"pipeline {client.pipeline!r}: a reason must not begin with {ANEW!r}: that marks "
            "events that come again because their minibatch was judged. Give another reason"
        )
    while True:
        text = client.read_one(row_key)
        if text is None:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}, sink {sink!r}: nothing is parked at {row_key.key}; "
                "`semel parked ls` shows what is"
            )
        row = ParkedRow.load(text, row_key)
        if row.state is decision:
            return row
        _refuse(client.pipeline, row)
        done = replace(
            row, state=decision, by=by, reason=reason, blocks=_still_blocks(row, decision)
        )
        entity = (row.entity, row.scope)
        at = head_key(client.pipeline, sink, entity)
        head_text = client.read_one(at)
        requirements: list[Requirement] = [Equals(row_key, text)]
        updates: list[Update] = [Put(row_key, done.dump())]
        if head_text is not None:
            head = HeadRow.load(head_text, at)
            requirements.append(Equals(at, head_text))
            left = head.waiting - (decision.final and head.waiting > 0)
            bumped = replace(head, version=head.version + 1, waiting=left)
            updates.append(Put(at, bumped.dump()))
        elif decision is ParkedState.RESEND:
            requirements.append(Absent(at))
            head = HeadRow(row.entity, row.scope, 1, 0, _origin(row_key, row))
            updates.append(Put(at, head.dump()))
        try:
            client.commit(requirements, updates, partial(client.stands, updates[:1]))
        except Conflict:
            continue
        return done


def _still_blocks(row: ParkedRow, decision: ParkedState) -> bool:
    """An event that is to be sent again holds its followers back until it is."""
    return decision is ParkedState.RESEND or (row.blocks and not decision.final)


def _refuse(pipeline: str, row: ParkedRow) -> None:
    """Say why a parked event cannot be resolved."""
    name = f"pipeline {pipeline!r}: event {row.event} of {row.entity!r}"
    if row.state not in (ParkedState.HELD, ParkedState.REJECTED, ParkedState.RESEND):
        raise ConfigurationError(
            f"{name} is {row.state.value}: only what is held or rejected waits for a decision, and "
            "a resend can be taken back while nobody has begun it. The query finds out what became "
            "of one that is sending"
        )


def next_of(
    rows: Iterable[tuple[Key, ParkedRow, str]], entity: Entity
) -> tuple[Key, ParkedRow, str] | None:
    """Give the first parked event of an entity that is not final and that anybody waits for or
    asked for.
    """
    for item in rows:
        row = item[1]
        if (row.entity, row.scope) == entity and row.blocks and not row.state.final:
            return item
    return None
