"""Computes what a pipeline costs in its ledger: commits per event, and bytes kept per id.

Always true:
- all figures are computed: commits from the sink's settings, bytes from a row that the ledger's
  own code writes for a sample of ids;
- bytes are those of keys and payloads. A database file is larger, because it reuses the space of
  deleted rows only later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.events import EntityIds, Memory
from semel.ledger import COUNTERS, JournalEntry, StateOperator, journal_updates, watermark_of
from semel.ledger.store import Put
from semel.protocol import Capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.delivery import PipelineSpec
    from semel.events import EventID
    from semel.sinks import Sink

DAY_S = 86_400.0
ENTITIES = 1_000
"""The number of entities in the sample of a snapshot."""
STEP = 17
"""The distance between sample ids, so that no two are consecutive."""


@dataclass(frozen=True)
class Load:
    """The input that a cost is computed for.

    Attributes:
        partitions: used if the pipeline does not set it.
        minibatches: the number of earlier minibatches; every row contains it.
    """

    events_per_s: float = 10.0
    minibatch_s: float = 1.0
    partitions: int = 8
    minibatches: int = 1_000_000


@dataclass(frozen=True)
class Cost:
    """What one sink of a pipeline costs in the ledger.

    Attributes:
        commits_per_event: besides 2 for each minibatch and 1 for each partition of it.
        remembered_per: "event" or "entity"; None if nothing grows with either.
        bytes_each: bytes of keys and payloads in the ledger for each of them.
        kept_s: how long they are kept; None for as long as the pipeline exists.
        bytes_per_day: bytes that `load` adds in a day; 0 if they do not grow with events.
    """

    commits_per_event: float
    remembered_per: str | None = None
    bytes_each: float = 0.0
    kept_s: float | None = None
    bytes_per_day: float = 0.0
    load: Load = Load()


def cost(sink: Sink, spec: PipelineSpec | None = None, load: Load | None = None) -> Cost:
    """Compute what a sink costs, in this pipeline or by itself."""
    load = load or Load()
    commits = 0.0 if _records_no_intent(sink) else 1 / (sink.chunk_rows * sink.span_chunks)
    if spec is None:
        return Cost(commits, load=load)
    identity = spec.identity
    if identity.assigns_ids:
        counts = {_entity(at): at * STEP for at in range(ENTITIES)}
        return Cost(commits, "entity", _bytes(spec, COUNTERS, counts, load) / ENTITIES, load=load)
    if not identity.memory.keeps_ids:
        return Cost(commits, load=load)
    operator = watermark_of(sink.name)
    if identity.memory is Memory.HIGHEST_IDS:
        reached = {_entity(at): [_plain(_id(spec, at)), 1] for at in range(ENTITIES)}
        return Cost(commits, "entity", _bytes(spec, operator, reached, load) / ENTITIES, load=load)
    partitions = spec.partitions or load.partitions
    events = max(1, round(load.events_per_s * load.minibatch_s / partitions))
    ids = EntityIds.of({_entity(at): [_id(spec, at)] for at in range(events)})
    each = _bytes(spec, operator, {str(load.minibatches): ids.written()}, load) / events
    day = each * load.events_per_s * DAY_S
    return Cost(commits, "event", each, spec.remember_s, day, load)


def _records_no_intent(sink: Sink) -> bool:
    """Whether the destination itself records what is done, so that the ledger records no span."""
    return sink.whole or sink.capability in (Capability.TRANSACTIONAL, Capability.SEQUENCED)


# -- a sample row

_AT = 1_700_000_000.123456
_FORMS: Mapping[str, EventID] = {
    "integer": 1_000_000,
    "date": 20_000,
    "timestamp": 1_700_000_000_000_000,
    "timestamp without zone": 1_700_000_000_000_000,
    "text": "7f9c2ba4-e88f-427d-8f1b-000000000000",
}
"""A sample id of each form: a number of seven digits, a string as long as a UUID."""


def _bytes(spec: PipelineSpec, operator: StateOperator, state: dict[str, Any], load: Load) -> int:
    """Return the size of the row that the journal writes for this state."""
    place = f"0of{spec.partitions or load.partitions}"
    entry = JournalEntry.of(operator.name, place, load.minibatches, state, _AT)
    [put] = journal_updates(spec.name, [entry])
    assert isinstance(put, Put)
    return len(put.key.key.encode()) + len(put.payload.encode())


def _entity(at: int) -> str:
    return f"c{at * 7_919 % 10_000_000:07d}"


def _id(spec: PipelineSpec, at: int) -> EventID:
    parts = [_part(spec.forms.get(name, "integer"), at) for name in spec.identity.id_columns]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _part(form: str, at: int) -> int | str:
    sample = _FORMS[form]
    if isinstance(sample, int):
        return sample + at * STEP
    assert isinstance(sample, str)
    return sample[:-12] + f"{at * STEP:012d}"


def _plain(event: EventID) -> Any:
    return list(event) if isinstance(event, tuple) else event
