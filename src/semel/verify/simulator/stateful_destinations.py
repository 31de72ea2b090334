"""Simulated destinations that keep semel's progress: a database, a log, and overwritten places.

Always true:
- a progress row and its effects change together or not at all; a later attempt or minibatch fences
  an earlier one;
- a log refuses a writer whose epoch is not the last; after a crash it may hold part of a chunk;
- a place holds what was last written there, as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import Fenced, Rejected
from semel.events import Attempt, EntityIds, IdSet, Minibatch
from semel.protocol import Capability, OnReject
from semel.sinks import DELIVERED, Progress, Receipt, Tail
from semel.verify.simulator.destinations import (
    Destination,
    RecordedEffect,
    WitnessSession,
    WitnessSink,
)
from semel.verify.simulator.faults import Kind

if TYPE_CHECKING:
    from semel.events import Chunk
    from semel.sinks import Ended, Target

Place = tuple[str, str, str]


# -- TRANSACTIONAL


@dataclass(eq=False)
class Database(Destination):
    """Commits effects together with a progress row for each (pipeline, sink, partition)."""

    progress: dict[Place, Progress] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TransactionalSink(WitnessSink):
    """Commits semel's progress with the effect. `one_script` applies the valid events of a chunk
    and records the refused ones.
    """

    one_script: bool = False

    @property
    def capability(self) -> Capability:
        """TRANSACTIONAL."""
        return Capability.TRANSACTIONAL

    def open(self, target: Target) -> DatabaseSession:
        """Connect."""
        self.connect(target)
        alone = self.on_reject is OnReject.BLOCK  # a later event must not pass a refused one
        one_script = self.one_script and not alone
        return DatabaseSession(self.destination, self.wire, target, one_script=one_script)


@dataclass(eq=False)
class DatabaseSession(WitnessSession):
    """One connection to the database."""

    one_script: bool = False

    def take_over(self) -> Progress | None:
        """Write the attempt into the progress row."""
        found: Progress | None = self.wire.call(
            Kind.ASK, ("take over the progress row of", self.target.partition), self._take
        )
        return found

    def _take(self) -> Progress | None:
        rows, target = self.destination.progress, self.target
        stood = rows.get(_place(target))
        _refuse_later(stood, target)
        before = stood or Progress(target.minibatch, target.attempt)
        rows[_place(target)] = before.taken_by(target.minibatch, target.attempt)
        return None if stood is None else stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """One transaction: the row, then the effects."""
        self.begin(chunk)
        began = self.began
        refused = self.destination.refused(chunk)
        if refused and not self.one_script:
            raise Rejected("an event of the chunk is refused")
        events = [event for place, event in enumerate(chunk.events()) if place not in refused]
        positions = chunk.rows.positions.tolist()
        kept = {positions[place]: str(why) for place, why in refused.items()}
        named = {
            positions[place]: (chunk.rows.scope(place), chunk.rows.id(place)) for place in refused
        }

        def transaction() -> None:
            stood = self.destination.progress.get(_place(self.target))
            _refuse_later(stood, self.target)
            _refuse_past(stood, progress)
            progress.require_kept(stood, f"partition {self.target.partition}")
            same = stood is not None and stood.minibatch == progress.minibatch
            ids = stood.ids | progress.ids if stood is not None and same else progress.ids
            row = replace(progress, rejected=kept, rejected_events=named, ids=ids)
            self.destination.progress[_place(self.target)] = row
            for event in events:
                self.destination.accept(event, self.target, began)

        what = ("commit", len(events), "events up to", progress.done, "of", self.target.partition)
        self.send(what, transaction, events)
        return Receipt(refused) if refused else DELIVERED


def _refuse_later(stood: Progress | None, target: Target) -> None:
    if stood is not None and (stood.attempt > target.attempt or stood.minibatch > target.minibatch):
        raise Fenced(f"the progress row names attempt {stood.attempt}")


def _refuse_past(stood: Progress | None, progress: Progress) -> None:
    same = stood is not None and stood.minibatch == progress.minibatch
    if stood is not None and same and stood.done > progress.start:
        raise Fenced(f"the progress row stands at {stood.done} already")


# -- SEQUENCED


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log."""

    effect: RecordedEffect
    sort_key: list[Any]
    stamp: Progress | None = None
    resend: int = 0


@dataclass(eq=False)
class SimulatedLog:
    """The log of one partition, and the epoch of its writer."""

    records: list[LogEntry] = field(default_factory=list)
    epoch: Any = None

    def tail(self) -> Tail:
        """Return the end of the log."""
        live = [record for record in self.records if not record.resend]
        last = max(live, key=lambda record: record.effect.osn, default=None)
        stamps = [record.stamp for record in live if record.stamp is not None]
        return Tail(
            osn=last.effect.osn if last else 0,
            minibatch=last.effect.minibatch if last else None,
            sort_key=last.sort_key if last else None,
            stamp=stamps[-1] if stamps else None,
            resent=max((record.resend for record in self.records), default=0),
        )


@dataclass(eq=False)
class Logs(Destination):
    """A log for each (pipeline, sink, partition)."""

    logs: dict[Place, SimulatedLog] = field(default_factory=dict)
    opened: int = 0

    def log(self, target: Target) -> SimulatedLog:
        """Return the log that a session appends to."""
        return self.logs.setdefault(_place(target), SimulatedLog())


@dataclass(frozen=True, kw_only=True)
class SequencedSink(WitnessSink):
    """Appends to logs; with `last_opener_wins` the epoch is a counter, and chunks are atomic."""

    last_opener_wins: bool = False

    @property
    def capability(self) -> Capability:
        """SEQUENCED."""
        return Capability.SEQUENCED

    def open(self, target: Target) -> SimulatedLogSession:
        """Connect."""
        session = SimulatedLogSession(
            self.destination, self.wire, target, opener_wins=self.last_opener_wins
        )
        self.wire.call(Kind.OPEN, ("open a session for", target.partition), session.opened)
        return session


@dataclass(eq=False)
class SimulatedLogSession(WitnessSession):
    """One writer of one log."""

    opener_wins: bool = False
    epoch: Any = None

    def opened(self) -> None:
        """Take the epoch, if the last opener wins."""
        if self.opener_wins:
            self.destination.opened += 1
            self.epoch = self.destination.log(self.target).epoch = self.destination.opened

    def take_over(self) -> Tail:
        """Take the epoch of the log and return its tail."""
        tail: Tail = self.wire.call(
            Kind.ASK, ("take the epoch of log", self.target.partition), self._take
        )
        return tail

    def _take(self) -> Tail:
        log = self.destination.log(self.target)
        if not self.opener_wins:
            self._refuse_replaced(log)
            self.epoch = log.epoch = self.target.attempt
        tail: Tail = log.tail()
        return tail

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk record by record, or as a whole if the log has transactions."""
        return self._append(chunk, progress, 0)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend."""
        return self._append(chunk, None, number)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Return the events of a minibatch that are in the log."""
        return self.wire.call(
            Kind.ASK, ("ask for the events of", str(minibatch)), lambda: self._ids(minibatch)
        )

    def _ids(self, minibatch: Minibatch) -> EntityIds:
        found: dict[str, list[Any]] = {}
        for record in self.destination.log(self.target).records:
            if record.effect.minibatch == minibatch:
                found.setdefault(record.effect.entity, []).append(record.effect.event)
        return EntityIds.of({entity: IdSet.of(ids) for entity, ids in found.items()})

    def _append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        self.begin(chunk, resend=bool(resend))
        began, log = self.began, self.destination.log(self.target)
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        events = list(chunk.events())

        def entries(places: range) -> None:
            self._refuse_replaced(log)
            if not resend and events[places[0]].osn <= log.tail().osn:
                raise Fenced(f"the log stands at {log.tail().osn} already")
            for place in places:
                effect = self.destination.effect(events[place], self.target, began)
                effect = replace(effect, resend=bool(resend))
                stamp = progress if place == len(events) - 1 else None
                log.records.append(LogEntry(effect, chunk.rows.sort_key(place), stamp, resend))
                self.destination.effects.append(effect)

        if self.opener_wins:
            what: tuple[Any, ...] = ("append", len(events), "events as a whole")
            self.send(what, lambda: entries(range(len(events))), events)
            return DELIVERED
        for place, event in enumerate(events):
            what = ("append event", event.id, "of", event.entity, "as", event.osn)
            self.send_part(place, what, partial(entries, range(place, place + 1)), event)
        return DELIVERED

    def _refuse_replaced(self, log: SimulatedLog) -> None:
        if self.opener_wins:
            replaced = self.epoch != log.epoch
        else:
            replaced = log.epoch is not None and log.epoch > self.target.attempt
        if replaced:
            raise Fenced(f"the log's epoch is {log.epoch}")


# -- places that are overwritten


@dataclass(eq=False)
class Places(Destination):
    """Part files: a place holds only what was last written there, and readers see it once a
    manifest names it.
    """

    places: dict[str, list[RecordedEffect]] = field(default_factory=dict)
    writers: dict[str, Attempt] = field(default_factory=dict)
    manifests: dict[Minibatch, set[str]] = field(default_factory=dict)

    def seen(self) -> list[RecordedEffect]:
        """Return the effects at the places that a manifest names."""
        named = {place for places in self.manifests.values() for place in places}
        return [
            effect
            for name, place in sorted(self.places.items())
            if name in named
            for effect in place
        ]

    def put_manifest(self, minibatch: Minibatch, places: set[str]) -> None:
        """Add places of a minibatch; a later manifest may name fewer, and removes none."""
        self.manifests.setdefault(minibatch, set()).update(places)


@dataclass(frozen=True, kw_only=True)
class PlacesSink(WitnessSink):
    """Writes each partition of each minibatch to its own place."""

    whole: bool = True

    @property
    def capability(self) -> Capability:
        """REPEATABLE: each partition has its own place."""
        return Capability.REPEATABLE

    def locate(self, target: Target) -> str:
        """Return the name of the place."""
        return f"{target.minibatch}/{target.partition}"

    def conclude(self, ended: Ended) -> None:
        """Write the manifest of a complete minibatch; before, readers see nothing of it."""
        places = {f"{ended.minibatch}/{part.partition}" for part in ended.parts}
        self.wire.call(
            Kind.ASK,
            ("put the manifest of", str(ended.minibatch)),
            lambda: self.destination.put_manifest(ended.minibatch, places),
        )

    def open(self, target: Target) -> PlaceSession:
        """Connect."""
        self.connect(target)
        return PlaceSession(self.destination, self.wire, target, place=self.locate(target))


@dataclass(eq=False)
class PlaceSession(WitnessSession):
    """Writes to a temporary place, then moves it."""

    place: str = ""
    aside: list[RecordedEffect] = field(default_factory=list)

    def write(self, chunk: Chunk) -> None:
        """Write the next events to the temporary place."""
        self.begin(chunk)
        effects = [
            self.destination.effect(event, self.target, self.began) for event in chunk.events()
        ]
        self.send(("write", len(effects), "events aside"), lambda: self.aside.extend(effects))

    def finish(self) -> dict[str, str]:
        """Move it to its place; if nothing was written, the place is empty afterwards."""
        self.begin()
        began = self.began

        def put() -> None:
            places, now = self.destination, self.wire.hub.now
            writer = places.writers.get(self.place)
            if writer is not None and writer > self.target.attempt:
                raise Fenced(f"attempt {writer} has written this place")
            places.writers[self.place] = self.target.attempt
            late = now - began > places.deadline_s
            made = [replace(effect, at=now, late=late) for effect in self.aside]
            places.places.pop(self.place, None)
            if made:
                places.places[self.place] = made

        self.send(("put", len(self.aside), "events at", self.place), put)
        return {"place": self.place}


def _place(target: Target) -> Place:
    return target.pipeline, target.sink, target.partition
