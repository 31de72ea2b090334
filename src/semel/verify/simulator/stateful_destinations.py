"""Simulated destinations that keep semel's progress: a database, a log, and overwritten places.

Always true:
- a progress row and its effects change together or not at all;
- after a crash a log may hold part of a chunk;
- a place holds what was last written there, as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import Rejected
from semel.protocol import Capability, OnReject
from semel.sinks import DELIVERED, Receipt
from semel.verify.models import (
    OverwrittenPlaces,
    Place,
    ProgressTable,
    SequencedLog,
    log_records,
    place_of,
)
from semel.verify.simulator.destinations import (
    RecordedEffect,
    SimulatedDestination,
    SimulatedSink,
    WitnessSession,
)
from semel.verify.simulator.faults import Kind

if TYPE_CHECKING:
    from semel.events import Chunk, EntityIds, Minibatch
    from semel.sinks import Ended, Progress, Tail, Target


# -- TRANSACTIONAL


@dataclass(eq=False)
class SimulatedDatabase(SimulatedDestination):
    """Commits effects together with a progress row for each (pipeline, sink, partition)."""

    progress: ProgressTable = field(default_factory=ProgressTable)


@dataclass(frozen=True, kw_only=True)
class SimulatedTransactionalSink(SimulatedSink):
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
            Kind.ASK,
            ("take over the progress row of", self.target.partition),
            lambda: self.destination.progress.take_over(self.target),
        )
        return found

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """One transaction: the row, then the effects."""
        self.begin(chunk)
        began = self.began
        refused = self.destination.refused(chunk)
        if refused and not self.one_script:
            raise Rejected("an event of the chunk is refused")
        events = [event for place, event in enumerate(chunk.events()) if place not in refused]

        def transaction() -> None:
            self.destination.progress.move(self.target, chunk, progress, refused)
            for event in events:
                self.destination.accept(event, self.target, began)

        what = ("commit", len(events), "events up to", progress.done, "of", self.target.partition)
        self.send(what, transaction, events)
        return Receipt(refused) if refused else DELIVERED


# -- SEQUENCED


@dataclass(eq=False)
class SimulatedLogs(SimulatedDestination):
    """A log for each (pipeline, sink, partition)."""

    logs: dict[Place, SequencedLog] = field(default_factory=dict)
    opened: int = 0

    def log(self, target: Target) -> SequencedLog:
        """Return the log that a session appends to."""
        return self.logs.setdefault(place_of(target), SequencedLog())


@dataclass(frozen=True, kw_only=True)
class SimulatedSequencedSink(SimulatedSink):
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
    opening: int | None = None

    def opened(self) -> None:
        """Take the epoch, if the last opener wins."""
        if self.opener_wins:
            self.destination.opened += 1
            self.opening = self.destination.log(self.target).epoch = self.destination.opened

    def take_over(self) -> Tail:
        """Take the epoch of the log and return its tail."""
        tail: Tail = self.wire.call(
            Kind.ASK,
            ("take the epoch of log", self.target.partition),
            lambda: self.destination.log(self.target).take_over(self.target, self.opening),
        )
        return tail

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk record by record, or as a whole if the log has transactions."""
        return self._append(chunk, progress, 0)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend."""
        return self._append(chunk, None, number)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Return the events of a minibatch that are in the log."""
        found: EntityIds = self.wire.call(
            Kind.ASK,
            ("ask for the events of", str(minibatch)),
            lambda: self.destination.log(self.target).delivered_ids(minibatch),
        )
        return found

    def _append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        self.begin(chunk, resend=bool(resend))
        began, log = self.began, self.destination.log(self.target)
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        events = list(chunk.events())
        records = log_records(chunk, self.target, progress, resend)

        def entries(places: range) -> None:
            log.append(records[places.start : places.stop], self.target, self.opening)
            for place in places:
                effect = self.destination.effect(events[place], self.target, began)
                self.destination.effects.append(replace(effect, resend=bool(resend)))

        if self.opener_wins:
            what: tuple[Any, ...] = ("append", len(events), "events as a whole")
            self.send(what, lambda: entries(range(len(events))), events)
            return DELIVERED
        for place, event in enumerate(events):
            what = ("append event", event.id, "of", event.entity, "as", event.osn)
            self.send_part(place, what, partial(entries, range(place, place + 1)), event)
        return DELIVERED


# -- places that are overwritten


@dataclass(eq=False)
class Places(SimulatedDestination):
    """Part files: a place holds only what was last written there, and readers see it once a
    manifest names it.
    """

    places: OverwrittenPlaces[list[RecordedEffect]] = field(default_factory=OverwrittenPlaces)
    manifests: dict[Minibatch, set[str]] = field(default_factory=dict)

    def seen(self) -> list[RecordedEffect]:
        """Return the effects at the places that a manifest names."""
        named = {place for places in self.manifests.values() for place in places}
        return [
            effect
            for name, place in sorted(self.places.contents.items())
            if name in named
            for effect in place
        ]

    def put_manifest(self, minibatch: Minibatch, places: set[str]) -> None:
        """Add places of a minibatch; a later manifest may name fewer, and removes none."""
        self.manifests.setdefault(minibatch, set()).update(places)


@dataclass(frozen=True, kw_only=True)
class PlacesSink(SimulatedSink):
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
            now = self.wire.hub.now
            late = now - began > self.destination.deadline_s
            made = [replace(effect, at=now, late=late) for effect in self.aside]
            self.destination.places.put(self.place, self.target.attempt, made or None)

        self.send(("put", len(self.aside), "events at", self.place), put)
        return {"place": self.place}
