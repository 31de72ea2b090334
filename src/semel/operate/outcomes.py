"""What became of an event of an inbox at each sink of each pipeline that reads its stream.

Always true: an answer is never stronger than the record behind it. Where the ledger does not show
whether a pipeline reads the stream, or where it has the event, the state is `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.ledger import COUNTERS_TABLE, CounterRow, Trace, make_key
from semel.operate.find import trace_to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.ledger import Ledger

_SETTLED = frozenset({"delivered", "handled", "discarded", "skipped by policy", "parked"})
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class InboxEvent:
    """An event of an inbox. `position` is its partition and offset, where they are known."""

    stream: str
    entity: str
    event: int
    position: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an event at one sink of a pipeline."""

    pipeline: str
    trace: Trace

    @property
    def settled(self) -> bool:
        """Whether this sink is done with the event, or a person has to decide about it."""
        return self.trace.state in _SETTLED

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"pipeline": self.pipeline, **trace_to_json(self.trace)}


def last_event(ledger: Ledger, stream: str, entity: str) -> int:
    """Return the id of the newest event of an entity in an inbox; 0 if it has none."""
    at = make_key(COUNTERS_TABLE, stream, entity)
    text = ledger.store.read([at]).get(at)
    return 0 if text is None else CounterRow.load(text, at).last


def find_outcomes(
    ledger: Ledger, event: InboxEvent, pipelines: Sequence[str] = ()
) -> list[Outcome]:
    """Return what became of an event of an inbox at each sink.

    Without names, a pipeline reads the stream if its events are the same when `entity` and `event`
    are, the columns of an inbox, or when their position is.

    Raises `ConfigurationError` for a pipeline that the ledger does not have, `LedgerError` when a
    row that the answer needs is damaged.
    """
    found: list[Outcome] = []
    for pipeline in pipelines or ledger.pipelines():
        identity = ledger.identity(pipeline)
        name = _name_in(identity, event)
        if name is not None:
            entity, number = name
            found += [Outcome(pipeline, each) for each in ledger.find(pipeline, entity, number)]
        elif pipelines or _is_of_positions(identity):
            found += _unknown(ledger, pipeline, identity)
    return found


def _name_in(identity: dict[str, Any], event: InboxEvent) -> tuple[str, int] | None:
    """Return the entity and the id by which a pipeline knows an event of the inbox."""
    kind, entity = identity.get("kind"), identity.get("entity")
    if kind == "given" and entity == "entity" and list(identity.get("event", [])) == ["event"]:
        return event.entity, event.event
    if _is_of_positions(identity) and event.position is not None and not identity.get("ordinals"):
        partition, offset = event.position
        return f"{event.stream}/{partition}", offset
    return None


def _is_of_positions(identity: dict[str, Any]) -> bool:
    columns = [identity.get(name) for name in ("topic", "partition", "offset")]
    return identity.get("kind") == "position" and columns == ["topic", "partition", "offset"]


def _unknown(ledger: Ledger, pipeline: str, identity: dict[str, Any]) -> list[Outcome]:
    """Return that nothing is known of an event at the sinks of a pipeline, and why."""
    why = "its events have other columns as their identity than the inbox"
    if _is_of_positions(identity):
        why = "its events are known by their offsets, and the offset of this one is not known here"
    return [Outcome(pipeline, Trace(sink, UNKNOWN, why=why)) for sink in ledger.sinks(pipeline)]
