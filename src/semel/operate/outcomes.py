"""What became of an event of an inbox at each sink of each pipeline that reads its stream.

Always true: an answer is never stronger than the record behind it. Where the ledger does not show
whether a pipeline has the event, or where, the state is `unknown`, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from semel.errors import RangeUnavailable
from semel.ledger import COUNTERS_TABLE, CounterRow, Trace, make_key
from semel.operate.find import trace_to_json
from semel.streams import Inbox, list_streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.ledger import Ledger
    from semel.streams import InboxPartition

UNKNOWN = "unknown"
SEARCHED_EVENTS = 100_000
"""How many of the newest events of each partition are searched for the offset of an event."""

_FIRST_EVENTS = 1_000
_POSITIONS_MAX = 10_000
_SETTLED = frozenset({"delivered", "handled", "discarded", "skipped by policy", "parked"})

Place = tuple[int, int]
"""Partition and offset of an event in its inbox."""


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


class Outcomes:
    """Finds outcomes of the events of one stream, for one thread at a time.

    A pipeline reads the stream if it is named here, if it is registered as a reader of the inbox,
    if its events are the same when the columns `entity` and `event` are, or if it has read from a
    partition of the stream before.
    """

    def __init__(self, ledger: Ledger, stream: str, pipelines: Sequence[str] = ()) -> None:
        self._ledger = ledger
        self._stream = stream
        self._named = pipelines
        self._inbox = Inbox(ledger.store, stream)
        self._places: dict[tuple[str, int], Place] = {}

    def last_event(self, entity: str) -> int:
        """Return the id of the newest event of an entity; 0 if it has none."""
        at = make_key(COUNTERS_TABLE, self._stream, entity)
        text = self._ledger.store.read([at]).get(at)
        return 0 if text is None else CounterRow.load(text, at).last

    def find(self, entity: str, event: int, place: Place | None = None) -> list[Outcome]:
        """Return what became of an event at each sink; `place` is where it is, if that is known.

        Raises `ConfigurationError` for a pipeline that was named and that the ledger does not have,
        `LedgerError` when a row that the answer needs is damaged.
        """
        readers = {each.reader for each in self._inbox.readers()}
        found: list[Outcome] = []
        for pipeline in self._named or self._ledger.pipelines():
            identity = self._ledger.identity(pipeline)
            reads = bool(self._named) or pipeline in readers
            if _is_of_inbox_ids(identity):
                found += self._by_ids(pipeline, entity, event, reads=reads)
            elif _is_of_positions(identity) and (reads or self._has_read(pipeline)):
                found += self._by_place(pipeline, entity, event, place)
            elif reads:
                why = "its events have another identity than those of the inbox"
                found += self._unknown(pipeline, why)
        return found

    def _by_ids(self, pipeline: str, entity: str, event: int, *, reads: bool) -> list[Outcome]:
        if not reads and len(list_streams(self._ledger.store)) > 1:
            why = (
                "the ledger has several streams, and does not record which one this pipeline "
                "reads; name it: semel ingest --pipeline"
            )
            return self._unknown(pipeline, why)
        return [Outcome(pipeline, each) for each in self._ledger.find(pipeline, entity, event)]

    def _by_place(
        self, pipeline: str, entity: str, event: int, place: Place | None
    ) -> list[Outcome]:
        place = place or self._place_of(entity, event)
        if place is None:
            why = (
                f"its events are known by their offsets, and this one is not among the newest "
                f"{SEARCHED_EVENTS} that are kept"
            )
            return self._unknown(pipeline, why)
        partition, offset = place
        name = f"{self._stream}/{partition}"
        return [Outcome(pipeline, each) for each in self._ledger.find(pipeline, name, offset)]

    def _unknown(self, pipeline: str, why: str) -> list[Outcome]:
        sinks = self._ledger.sinks(pipeline)
        return [Outcome(pipeline, Trace(sink, UNKNOWN, why=why)) for sink in sinks]

    def _has_read(self, pipeline: str) -> bool:
        """Whether a pipeline with position identity has delivered from a partition before."""
        return any(
            trace
            for each in self._inbox.layout()
            for trace in self._ledger.about(pipeline, f"{self._stream}/{each.partition}")
        )

    def _place_of(self, entity: str, event: int) -> Place | None:
        """Search the newest events for the place of one."""
        known = self._places.get((entity, event))
        if known is not None:
            return known
        for each in self._inbox.layout():
            for start, stop in _windows(each):
                try:
                    table = self._inbox.read(each.partition, start, stop)
                except RangeUnavailable:  # pruned since the layout was read
                    return self._place_of(entity, event)
                same = pc.and_(pc.equal(table["entity"], entity), pc.equal(table["event"], event))
                row = pc.index(same, True).as_py()
                if row >= 0:
                    if len(self._places) >= _POSITIONS_MAX:
                        self._places.clear()
                    self._places[entity, event] = each.partition, start + row
                    return each.partition, start + row
        return None


def _windows(partition: InboxPartition) -> Iterator[tuple[int, int]]:
    """Yield ranges of offsets from the end of a partition backwards, each larger than the last."""
    stop, size = partition.end, _FIRST_EVENTS
    least = max(partition.begin, partition.end - SEARCHED_EVENTS)
    while stop > least:
        start = max(least, stop - size)
        yield start, stop
        stop, size = start, 4 * size


def _is_of_inbox_ids(identity: dict[str, Any]) -> bool:
    """Whether events are the same when the columns `entity` and `event` of an inbox are."""
    names = identity.get("kind"), identity.get("entity"), list(identity.get("event", []))
    return names == ("given", "entity", ["event"])


def _is_of_positions(identity: dict[str, Any]) -> bool:
    """Whether events are the same when their position is, in the columns of an inbox."""
    columns = [identity.get(name) for name in ("topic", "partition", "offset")]
    ordinals = identity.get("ordinals")
    is_position = identity.get("kind") == "position"
    return is_position and columns == ["topic", "partition", "offset"] and not ordinals
