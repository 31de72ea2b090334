"""What a destination of each capability does, as plain state: the simulator and the tests share it.

Always true:
- there is no clock, no connection and no fault here: the caller passes the time and decides what
  happens to a call;
- a method changes everything it has to, or raises and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semel.errors import Fenced
from semel.events import EntityIds, IdSet
from semel.sinks import Progress, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events import Attempt, Chunk, EventID, Minibatch
    from semel.sinks import Target

Content = TypeVar("Content")
Place = tuple[str, str, str]
"""Pipeline, sink and partition."""


def place_of(target: Target) -> Place:
    """Return the place that a session writes to."""
    return target.pipeline, target.sink, target.partition


@dataclass(eq=False)
class SeenKeys:
    """REPEATABLE: a key that was seen has no second effect, for as long as keys are remembered."""

    remembers_s: float = 86_400.0
    at: dict[str, float] = field(default_factory=dict)

    def fresh(self, key: str, now: float) -> bool:
        """Whether a key is new; remember it."""
        seen = self.at.get(key)
        if seen is not None and now - seen <= self.remembers_s:
            return False
        self.at[key] = now
        return True


@dataclass(eq=False)
class ProgressTable:
    """TRANSACTIONAL: a progress row for each place; a later attempt or minibatch fences an earlier
    one.
    """

    rows: dict[Place, Progress] = field(default_factory=dict)

    def take_over(self, target: Target) -> Progress | None:
        """Write the attempt into the row; return the row as it stood."""
        stood = self.rows.get(place_of(target))
        self.fence(stood, target)
        row = stood or Progress(target.minibatch, target.attempt)
        self.rows[place_of(target)] = row.taken_by(target.minibatch, target.attempt)
        return stood

    def fence(self, stood: Progress | None, target: Target) -> None:
        """Raise `Fenced` if a row names a later attempt or minibatch."""
        if stood is None:
            return
        if stood.attempt > target.attempt or stood.minibatch > target.minibatch:
            raise Fenced(f"the progress row names attempt {stood.attempt}")

    def require_next(self, target: Target, progress: Progress) -> Progress | None:
        """Raise if the effects of `progress` may not happen now; return the row as it stands."""
        stood = self.rows.get(place_of(target))
        self.fence(stood, target)
        if _same_minibatch(stood, progress) and stood is not None and stood.done > progress.start:
            raise Fenced(f"the progress row stands at {stood.done} already")
        progress.require_kept(stood, f"the row of partition {target.partition}")
        return stood

    def move(
        self, target: Target, chunk: Chunk, progress: Progress, refused: Mapping[int, object]
    ) -> None:
        """Write the row that belongs to the effects of a chunk: the ids of the minibatch so far,
        and the events that have no effect, which `refused` names by place.
        """
        stood = self.require_next(target, progress)
        same = stood is not None and _same_minibatch(stood, progress)
        positions = chunk.rows.positions.tolist()
        self.rows[place_of(target)] = replace(
            progress,
            ids=stood.ids | progress.ids if stood is not None and same else progress.ids,
            rejected={positions[at]: str(why) for at, why in refused.items()},
            rejected_events={
                positions[at]: (chunk.rows.scope(at), chunk.rows.id(at)) for at in refused
            },
        )


def _same_minibatch(stood: Progress | None, progress: Progress) -> bool:
    return stood is not None and stood.minibatch == progress.minibatch


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a log; the last one of a chunk carries the stamp."""

    osn: int
    entity: str
    event: EventID
    minibatch: Minibatch
    sort_key: list[Any]
    stamp: Progress | None = None
    resend: int = 0


@dataclass(eq=False)
class SequencedLog:
    """SEQUENCED: the log of one place, which returns its tail and refuses a replaced writer.

    `epoch` is the attempt of its writer; where the last opener wins, the number of the opening.
    """

    records: list[LogRecord] = field(default_factory=list)
    epoch: Any = None

    def tail(self) -> Tail:
        """Return the end of the log."""
        live = [record for record in self.records if not record.resend]
        last = max(live, key=lambda record: record.osn, default=None)
        stamps = [record.stamp for record in live if record.stamp is not None]
        return Tail(
            osn=last.osn if last else 0,
            minibatch=last.minibatch if last else None,
            sort_key=last.sort_key if last else None,
            stamp=stamps[-1] if stamps else None,
            resent=max((record.resend for record in self.records), default=0),
        )

    def take_over(self, target: Target, opening: int | None) -> Tail:
        """Make an attempt the writer, unless its opening already did, and return the tail."""
        if opening is None:
            self.refuse_replaced(target, None)
            self.epoch = target.attempt
        return self.tail()

    def refuse_replaced(self, target: Target, opening: int | None) -> None:
        """Raise `Fenced` if a session is not the writer."""
        if opening is not None:
            replaced = opening != self.epoch
        else:
            replaced = self.epoch is not None and self.epoch > target.attempt
        if replaced:
            raise Fenced(f"the log's epoch is {self.epoch}")

    def append(
        self, records: Iterable[LogRecord], target: Target, opening: int | None = None
    ) -> None:
        """Append records that follow each other."""
        added = list(records)
        self.refuse_replaced(target, opening)
        if added and not added[0].resend and added[0].osn <= self.tail().osn:
            raise Fenced(f"the log stands at {self.tail().osn} already")
        self.records += added

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Return the events of a minibatch that are in the log."""
        found: dict[str, list[EventID]] = {}
        for record in self.records:
            if record.minibatch == minibatch:
                found.setdefault(record.entity, []).append(record.event)
        return EntityIds.of({entity: IdSet.of(ids) for entity, ids in found.items()})


def log_records(
    chunk: Chunk, target: Target, progress: Progress | None, resend: int
) -> list[LogRecord]:
    """Return the records of a chunk."""
    events = list(chunk.events())
    return [
        LogRecord(
            event.osn,
            event.entity,
            event.id,
            target.minibatch,
            chunk.rows.sort_key(at),
            progress if at == len(events) - 1 else None,
            resend,
        )
        for at, event in enumerate(events)
    ]


@dataclass(eq=False)
class OverwrittenPlaces(Generic[Content]):
    """Places that are written as a whole: each holds what the latest attempt put there."""

    contents: dict[str, Content] = field(default_factory=dict)
    writers: dict[str, Attempt] = field(default_factory=dict)

    def put(self, place: str, attempt: Attempt, content: Content | None) -> None:
        """Replace a place; None leaves it empty."""
        writer = self.writers.get(place)
        if writer is not None and writer > attempt:
            raise Fenced(f"attempt {writer} has written this place")
        self.writers[place] = attempt
        self.contents.pop(place, None)
        if content is not None:
            self.contents[place] = content
