"""Finding the minibatch of an event that no span names, in the rows that are kept for a replay.

TRANSACTIONAL and SEQUENCED destinations know what they have, so no span is recorded. The row of a
complete partition still has time and attempt, and the journal has the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from semel.events import Minibatch, shape_of
from semel.ledger import keys
from semel.ledger.damage import read_row
from semel.ledger.journal import (
    COUNTERS,
    Operator,
    State,
    number_in,
    require_counts,
    require_reached,
    sets_in,
    states_of,
    watermark_of,
)
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import OPEN_TABLE, STREAMS_TABLE, make_prefix
from semel.ledger.rows import OpenRow, PartitionRow
from semel.ledger.verbs.runs import PIPELINES_TABLE, read_description
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from semel.events import EventID
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key


@dataclass(frozen=True, slots=True)
class Recent:
    """The minibatch and partition in which an event was handled.

    Attributes:
        certain: whether the event itself is recorded there, or only a range that contains its id.
    """

    minibatch: Minibatch
    row: PartitionRow
    certain: bool


def minibatch_of(at: Key) -> Minibatch:
    """Read the minibatch in the key of a row of `streams` or `events`. Raises `DamagedRow`."""
    return read_row(at.table, at, lambda: _minibatch(keys.split_key(at.key)))


def _minibatch(parts: tuple[str, ...]) -> Minibatch:
    return Minibatch(keys.key_number(parts[2]), keys.key_number(parts[3]))


def find_recent(client: LedgerClient, sink: str, entity: str, event: EventID) -> Recent | None:
    """Look for an event among the complete partitions whose rows are kept, the newest first."""
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
            return Recent(minibatch, row, certain)
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
        only = State({name: ids for name, ids in after.values.items() if name == str(serial)})
        return True if sets_in(only, place).contains(entity, event) else None
    was, now = before.values.get(entity), after.values.get(entity)
    if kind == "counter":
        counted = isinstance(now, int) and isinstance(event, int) and (was or 0) < event <= now
        return True if counted else None
    reached, last = (_last(value) for value in (was, now))
    if last is None or last == reached or not is_upto(event, last):
        return None
    return None if is_upto(event, reached) else event == last


def is_upto(event: EventID, last: EventID | None) -> bool:
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
    client: LedgerClient, operator: Operator, partition: str, serial: int
) -> tuple[State, State, str]:
    """Return the state of a partition before and after a minibatch, and the prefix of its keys."""
    place = make_prefix(client.pipeline, operator.name, partition)
    numbered = [(number_in(row[0]), row) for row in client.scan(JOURNAL, place)]
    before = states_of(row for number, row in numbered if number < serial)
    after = states_of(row for number, row in numbered if number <= serial)
    return before.get(place, State()), after.get(place, State()), place


def _last(value: Any) -> EventID | None:
    """Return the last id that an entity reached, of increasing ids."""
    if not isinstance(value, list) or not value:
        return None
    last: EventID | None = tuple(value[0]) if isinstance(value[0], list) else value[0]
    return last
