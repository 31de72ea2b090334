"""Parked events and heads: events that are kept beside the stream, and entities that wait for them.

Always true:
- an event is parked at most once for its minibatch: the key decides;
- while an event blocks its entity there is a head, and only the partition of the entity creates one
  while it runs;
- parking behind, draining and unblocking all require the head as they read it, so none misses
  another.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, LedgerError, LedgerUnavailable
from semel.ledger.keys import HEADS_TABLE, PARKED_TABLE, make_key, make_prefix, written_event
from semel.ledger.rows import HeadRow, ParkedRow
from semel.ledger.store.commit import Absent, Conflict, Equals, Put
from semel.protocol import Judgement, ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semel.events import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Requirement, Update

Entity = tuple[str, str]
"""The ordering key and the scope of its ids: the entity twice, or entity and source partition."""

Heads = dict[Entity, tuple[HeadRow, str]]
"""The heads as they were last read, with their text."""


AS_REPLAYED_MARK = f"{Judgement.AS_REPLAYED.value}: "
"""How the reason of an event begins that was discarded because its minibatch is delivered as
replayed."""


SCAN_ROWS = 200
"""How many parked rows are read at once where all of them would not fit."""
HEADS_KEPT = 1 << 16
"""How many heads a process keeps as it read them."""
TOGETHER_MAX = 3
"""How often the changes of several events are tried in one commit before each gets its own."""


class HeadMoved(LedgerError):
    """A head changed since it was read; nothing was written. Never leaves the room `delivery`."""


@dataclass(frozen=True, slots=True)
class Parks:
    """The requirements and updates that park events, and the heads after the commit."""

    rows: tuple[ParkedRow, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    updates: tuple[Update, ...] = ()
    heads: tuple[tuple[Entity, HeadRow], ...] = ()

    def stand(self, client: LedgerClient) -> bool:
        """Whether these events have been parked, whatever their state is now."""
        keys = [update.key for update in self.updates if isinstance(update, Put)]
        parked = [each for each in keys if each.table == PARKED_TABLE]
        return bool(parked) and len(client.read(*parked)) == len(parked)

    def apply_to(self, heads: Heads) -> None:
        """Update the known heads after the commit."""
        for entity, head in self.heads:
            heads[entity] = (head, head.dump())


NO_PARKS = Parks()


def parked_key(pipeline: str, sink: str, row: ParkedRow) -> Key:
    """Return the key of a parked event."""
    return make_key(
        PARKED_TABLE,
        pipeline,
        sink,
        row.entity,
        event_in_key(row),
        row.minibatch.generation,
        row.minibatch.batch,
    )


def event_in_key(row: ParkedRow) -> str:
    """Return the event id as it is written in the key of its row."""
    return written_event(_event_of(row.entity, row.scope, row.event))


def _event_of(entity: str, scope: str, event: EventID) -> EventID:
    """Return the id with its source partition, if the ordering entity does not contain it (position
    identity).
    """
    if entity == scope:
        return event
    return (scope, *event) if isinstance(event, tuple) else (scope, event)


def head_key(pipeline: str, sink: str, entity: Entity) -> Key:
    """Return the key of the head of an entity."""
    parts = (entity[0],) if entity[0] == entity[1] else entity
    return make_key(HEADS_TABLE, pipeline, sink, *parts)


def plan_parking(
    pipeline: str,
    sink: str,
    rows: Sequence[ParkedRow],
    heads: Heads,
    marks: Mapping[Key, str] | None = None,
) -> Parks:
    """Return the requirements and updates that park `rows`, for heads and marks as last read.

    A mark is a row that only records a doubt about an event; a parked event may replace it.
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
    """Return what created a head: the event, its attempts and its state at that time."""
    return f"{row_key.key}#{row.attempts}#{row.state.value}"


def read_heads(client: LedgerClient, sink: str) -> Heads:
    """Return every blocked entity of a sink."""
    found: Heads = {}
    for at, text in client.scan(HEADS_TABLE, make_prefix(client.pipeline, sink)):
        head = _read_head(text, at)
        found[head.entity, head.scope] = (head, text)
    return found


@lru_cache(maxsize=HEADS_KEPT)
def _read_head(text: str, at: Key) -> HeadRow:
    """Read a head; most have not changed since the minibatch before, and are not read again."""
    return HeadRow.load(text, at)


def scan_parked(client: LedgerClient, start: str) -> Iterator[list[tuple[Key, str]]]:
    """Return the parked rows whose keys begin with `start`, in the order of their keys, page by
    page: no more than `SCAN_ROWS` are in memory.
    """
    after = ""
    while True:
        page = client.scan(PARKED_TABLE, start, after=after, limit=SCAN_ROWS)
        if page:
            yield page
        if len(page) < SCAN_ROWS:
            return
        after = page[-1][0].key


def read_parked(
    client: LedgerClient, sink: str, entity: str | None = None, minibatch: Minibatch | None = None
) -> list[tuple[Key, ParkedRow, str]]:
    """Return parked rows of a sink with their keys and texts, in the order of their arrival."""
    parts = (client.pipeline, sink) if entity is None else (client.pipeline, sink, entity)
    rows = [
        (row_key, ParkedRow.load(text, row_key), text)
        for row_key, text in client.scan(PARKED_TABLE, make_prefix(*parts))
    ]
    chosen = [row for row in rows if minibatch is None or row[1].minibatch == minibatch]
    return sorted(chosen, key=lambda row: (row[1].minibatch, row[1].position))


def fill_parked(client: LedgerClient, row_key: Key, text: str, full: ParkedRow) -> None:
    """Write the payload of a parked event, even if a person has released it meanwhile: the event
    does not come a further time.
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


def note_doubt(client: LedgerClient, sink: str, row: ParkedRow) -> None:
    """Record a mark: a row that only records a doubt. One try; a row that is there stays."""
    parks = plan_parking(client.pipeline, sink, [row], {})
    with suppress(Conflict, LedgerUnavailable):
        client.store.commit(parks.requirements, parks.updates)


def resolve_parked(
    client: LedgerClient, sink: str, row_key: Key, decision: ParkedState, by: str, reason: str
) -> ParkedRow:
    """Record a person's decision about a parked event: DELIVERED, DISCARDED, or RESEND.

    An event without a payload, because a checkpoint was lost while it was being sent, is sent when
    it has arrived again. May be repeated. RESEND can be taken back until a sender has claimed the
    event: both require the row as it was read. Raises `ConfigurationError` if there is no such
    event or it cannot be resolved like this.
    """
    refuse_reason(reason)
    while True:
        text = client.read_one(row_key)
        if text is None:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}, sink {sink!r}: nothing is parked at {row_key.key}; "
                "`semel parked ls` lists parked events"
            )
        row = ParkedRow.load(text, row_key)
        if row.state is decision:
            return row
        _refuse(client.pipeline, row)
        done = ParkedChange(row_key, text, row, decided(row, decision, by, reason))
        if change_parked(client, sink, [done]):
            return done.after


def refuse_reason(reason: str) -> None:
    """Raise `ConfigurationError` for a reason that looks like one that semel writes itself."""
    if reason.startswith(AS_REPLAYED_MARK):
        raise ConfigurationError(
            f"a reason must not begin with {AS_REPLAYED_MARK!r}: that marks events that come "
            "again because their minibatch was judged. Give another reason"
        )


def decided(row: ParkedRow, decision: ParkedState, by: str, reason: str) -> ParkedRow:
    """Return a parked event as it is after a person's decision."""
    blocks = _still_blocks(row, decision)
    return replace(row, state=decision, by=by, reason=reason, blocks=blocks, unsure=False)


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """A person's change of one parked event: the row as it was read, and as it becomes."""

    key: Key
    text: str
    before: ParkedRow
    after: ParkedRow

    @property
    def entity(self) -> Entity:
        """The entity whose head counts it."""
        return (self.before.entity, self.before.scope)

    def passed(self, text: str | None) -> bool:
        """Whether the row shows that this change was made, and the query has gone on since."""
        row = None if text is None else ParkedRow.load(text, self.key)
        if row is None:
            return False
        edited = self.after.edited
        if edited is not None and edited is not self.before.edited:
            return row.edited is not None and row.edited.at == edited.at
        moved = row.state is not self.before.state
        return moved and (row.by, row.reason) == (self.after.by, self.after.reason)


def change_parked(client: LedgerClient, sink: str, changes: Sequence[ParkedChange]) -> set[Key]:
    """Make changes to parked events of one sink in one commit; return the keys of those that were
    made. The others were changed by the query or by another person since they were read.

    May be repeated: a change that was made does not fit a second time.
    """
    left, tries = list(changes), 0
    while left:
        requirements, updates = _changing(client, sink, left)
        own = updates[: len(left)]
        try:
            client.commit(requirements, updates, partial(client.stands, own))
        except Conflict:
            found = client.read(*(each.key for each in left))
            made = {each.key for each in left if each.passed(found.get(each.key))}
            still = [each for each in left if found.get(each.key) == each.text]
            if made or tries >= TOGETHER_MAX:  # one by one, where heads move all the time
                for each in still:
                    made |= _change_one(client, sink, each)
                return made
            left, tries = still, tries + 1
            continue
        return {each.key for each in left}
    return set()


def _change_one(client: LedgerClient, sink: str, change: ParkedChange) -> set[Key]:
    """Make one change, as often as only the head of its entity has moved."""
    while True:
        requirements, updates = _changing(client, sink, [change])
        try:
            client.commit(requirements, updates, partial(client.stands, updates[:1]))
        except Conflict:
            text = client.read_one(change.key)
            if text == change.text:
                continue
            return {change.key} if change.passed(text) else set()
        return {change.key}


def _changing(
    client: LedgerClient, sink: str, changes: Sequence[ParkedChange]
) -> tuple[list[Requirement], list[Update]]:
    """Return the commit of changes: the rows first, then the heads of their entities."""
    moved = [each for each in changes if each.after.state is not each.before.state]
    places = {each.entity: head_key(client.pipeline, sink, each.entity) for each in moved}
    texts = client.read(*places.values()) if places else {}
    heads: dict[Entity, HeadRow | None] = {
        entity: HeadRow.load(texts[at], at) if at in texts else None
        for entity, at in places.items()
    }
    for each in moved:
        head, state = heads[each.entity], each.after.state
        if head is not None:
            left = head.waiting - (state.final and head.waiting > 0)
            heads[each.entity] = replace(head, version=head.version + 1, waiting=left)
        elif state is ParkedState.RESEND:
            origin = _origin(each.key, each.before)
            heads[each.entity] = HeadRow(*each.entity, 1, 0, origin)
    requirements: list[Requirement] = [Equals(each.key, each.text) for each in changes]
    updates: list[Update] = [Put(each.key, each.after.dump()) for each in changes]
    for entity, at in places.items():
        head = heads[entity]
        if head is not None:
            requirements.append(Equals(at, texts[at]) if at in texts else Absent(at))
            updates.append(Put(at, head.dump()))
    return requirements, updates


def _still_blocks(row: ParkedRow, decision: ParkedState) -> bool:
    """Whether later events wait: for one to be resent until it is sent, else as before."""
    return decision is ParkedState.RESEND or (row.blocks and not decision.final)


def _refuse(pipeline: str, row: ParkedRow) -> None:
    """Raise `ConfigurationError` if a parked event cannot be resolved."""
    name = f"pipeline {pipeline!r}: event {row.event} of {row.entity!r}"
    if row.state not in (ParkedState.HELD, ParkedState.REJECTED, ParkedState.RESEND):
        raise ConfigurationError(
            f"{name} is {row.state.value}: only held or rejected events wait for a decision, and "
            "a resend can be taken back until it begins. The query records the outcome of an event "
            "that is being sent"
        )


def next_parked(
    rows: Iterable[tuple[Key, ParkedRow, str]], entity: Entity
) -> tuple[Key, ParkedRow, str] | None:
    """Return the first parked event of an entity that is not final and that other events, or a
    person, wait for.
    """
    for item in rows:
        row = item[1]
        if (row.entity, row.scope) == entity and row.blocks and not row.state.final:
            return item
    return None
