"""What watermarks and counters say of an entity's events: handled, and never more than that."""

from __future__ import annotations

from functools import partial
from operator import itemgetter, or_
from typing import TYPE_CHECKING, Any

from semel.events import IdSet
from semel.ledger import keys
from semel.ledger.damage import readable
from semel.ledger.journal import (
    COUNTERS,
    require_counts,
    require_reached,
    sets_in,
    states_of,
    watermark_of,
)
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.keys import OPEN, prefix
from semel.ledger.owners import PIPELINES, described
from semel.ledger.rows import OpenRow
from semel.ledger.sequences import TABLE as SEQUENCES
from semel.ledger.sequences import SequenceRow, sequence_key

if TYPE_CHECKING:
    from semel.events import EventID
    from semel.ledger.journal import Operator, State
    from semel.ledger.scribe import Scribe


def handled(scribe: Scribe, sink: str, entity: str) -> tuple[EventID | None, IdSet]:
    """Give the id up to which all events of an entity are handled, and further handled ones.

    Positions stand in `sequences`. In the journal a maximum is a list under the entity's name, a
    counter an integer in an operator of its own, and remembered ids are sets under a serial.
    """
    upto: EventID | None = None
    ids = IdSet.EMPTY
    for at, text in scribe.scan(SEQUENCES, prefix(scribe.pipeline, sink)):
        row = SequenceRow.load(text, at)
        if row.after.mark is not None and row.partition == entity:
            upto, ids = row.after.mark.upto, row.after.mark.above
    for place, state in _states_of(scribe, COUNTERS):
        require_counts(state.values, place)
        if entity in state.values and _had_all(scribe, sink, place, state):
            upto = state.values[entity]
    for place, state in _states_of(scribe, watermark_of(sink)):
        reached = state.values.get(entity)
        if isinstance(reached, list):
            require_reached(state.values, place)
            upto = tuple(reached[0]) if isinstance(reached[0], list) else reached[0]
            ids = readable(JOURNAL, place, partial(_with_above, ids, reached))
        found = sets_in(state, place).get(entity)
        ids = readable(JOURNAL, place, partial(or_, ids, found))
    return upto, ids


def _had_all(scribe: Scribe, sink: str, place: str, counted: State) -> bool:
    """Whether a sink had every event that was counted in a partition. Counters are of the pipeline:
    one sink may have been added later, or left out for a while, and then has fewer numbers.
    """
    pipeline_key, open_key = keys.key(PIPELINES, scribe.pipeline), keys.key(OPEN, scribe.pipeline)
    known = scribe.read_one(pipeline_key)
    if known is not None and len(described(known, pipeline_key).get("sinks", {})) == 1:
        return True
    partition = keys.text_of(keys.split(place.removesuffix("/"))[2])
    at = sequence_key(scribe.pipeline, sink, partition)
    opened, text = scribe.read_one(open_key), scribe.read_one(at)
    if opened is None or text is None:
        return False
    if OpenRow.load(opened, open_key).minibatch.generation > 1:
        return False  # a minibatch that was judged has used up numbers that count nothing
    return bool(SequenceRow.load(text, at).after.osn == sum(counted.values.values()))


def _with_above(ids: IdSet, reached: list[Any]) -> IdSet:
    return ids | IdSet.from_json(reached[2]) if len(reached) > 2 else ids


def _states_of(scribe: Scribe, operator: Operator) -> list[tuple[str, State]]:
    """Give the journaled state of each partition as of now, and where its rows are."""
    rows = scribe.scan(JOURNAL, prefix(scribe.pipeline, operator.name))
    return sorted(states_of(rows).items(), key=itemgetter(0))


def counted_up_to(scribe: Scribe, entity: str) -> int:
    """Give the last id that was counted for an entity of the pipeline, whichever sink had it."""
    last = 0
    for place, state in _states_of(scribe, COUNTERS):
        require_counts(state.values, place)
        last = max(last, state.values.get(entity, 0))
    return last
