"""Destinations that remember everything they were given, one for each capability.

A call to a destination goes through its script: the next reply says what happens to it. When the
script is at its end, all goes well. A crash is no `Exception`: nothing in production catches it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from semel.errors import DeliveryError, NotDelivered, OutcomeUnknown, Rejected
from semel.events import Attempt, Chunk, EntityIds, Event, Minibatch
from semel.events.event import EventID
from semel.protocol import Capability
from semel.sinks import DELIVERED, Function, Progress, Receipt, Sink, Tail, Target
from semel.verify.models import (
    OverwrittenPlaces,
    Place,
    ProgressTable,
    SeenKeys,
    SequencedLog,
    log_records,
    place_of,
)

Reply = Callable[[Callable[[], Any]], Any]


class Crash(BaseException):
    """The process is gone."""


# -- what can happen to a call


def fine(act: Callable[[], Any]) -> Any:
    return act()


def lost(act: Callable[[], Any]) -> Any:
    """It arrived, and the reply is lost."""
    act()
    raise TimeoutError("no reply")


def lost_on_the_way(act: Callable[[], Any]) -> Any:
    """It did not arrive, and the reply is lost too."""
    raise TimeoutError("no reply")


def away(act: Callable[[], Any]) -> Any:
    raise NotDelivered("nobody is there")


def crash(act: Callable[[], Any]) -> Any:
    raise Crash


def crash_after(act: Callable[[], Any]) -> Any:
    act()
    raise Crash


def after(meanwhile: Callable[[], object]) -> Reply:
    """Something else happens first: the caller was paused just before its call."""

    def reply(act: Callable[[], Any]) -> Any:
        meanwhile()
        return act()

    return reply


def before(meanwhile: Callable[[], object]) -> Reply:
    """Something else happens before the caller hears the answer."""

    def reply(act: Callable[[], Any]) -> Any:
        result = act()
        meanwhile()
        return result

    return reply


@dataclass
class NumberedWire:
    """What one world's processes reach ledger and destinations by: every call is numbered."""

    crossed: int = 0
    log: list[str] = field(default_factory=list)
    crash_before: int | None = None
    crash_after: int | None = None

    def cross(self, what: str, act: Callable[[], Any]) -> Any:
        self.crossed += 1
        number = self.crossed
        if number == self.crash_before:
            raise Crash
        try:
            result = act()
        finally:
            self.log.append(what)
        if number == self.crash_after:
            raise Crash
        return result

    def forget(self) -> None:
        """Number calls from here on, and let no further one crash."""
        self.crossed, self.crash_before, self.crash_after = 0, None, None
        self.log.clear()


@dataclass(frozen=True)
class Effect:
    """One effect of one event."""

    name: str
    entity: str
    event: EventID
    osn: int
    key: str
    value: dict[str, Any]
    at: float
    attempt: Attempt | None = None


def name_of(value: dict[str, Any]) -> str:
    """The name by which tests call an event."""
    return f"{value['c']}{value['id']}" if "c" in value else str(value["minibatch"])


@dataclass(eq=False)
class Destination:
    """What a destination has seen; `refuses` names the events it never takes."""

    wire: NumberedWire = field(default_factory=NumberedWire)
    now: Callable[[], float] = lambda: 0.0
    effects: list[Effect] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    script: deque[Reply] = field(default_factory=deque)
    always: Reply = fine
    calls: list[list[str]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    def plan(self, *replies: Reply) -> None:
        """Say what happens to the next calls."""
        self.script.extend(replies)

    @property
    def seen(self) -> str:
        """The events that took effect, in their order: `a1 b2 a3`."""
        return " ".join(effect.name for effect in self.effects)

    @property
    def numbers(self) -> list[int]:
        return [effect.osn for effect in self.effects]

    def send(self, names: list[str], act: Callable[[], Any]) -> Any:
        """A call that has an effect."""
        self.calls.append(names)
        reply = self.script.popleft() if self.script else self.always
        return self.wire.cross(f"send {' '.join(names)}", lambda: reply(act))

    def ask(self, what: str, act: Callable[[], Any]) -> Any:
        return self.wire.cross(what, act)

    def accept(self, event: Event, attempt: Attempt | None = None) -> None:
        self.effects.append(
            Effect(
                name_of(event.value),
                event.entity,
                event.id,
                event.osn,
                event.key,
                event.value,
                self.now(),
                attempt,
            )
        )

    def refused(self, chunk: Chunk) -> dict[int, Rejected]:
        return {
            place: Rejected(f"{name_of(event.value)} is refused")
            for place, event in enumerate(chunk.events())
            if name_of(event.value) in self.refuses
        }


def names_in(chunk: Chunk) -> list[str]:
    return [name_of(event.value) for event in chunk.events()]


@dataclass(eq=False)
class Line:
    """A session: one connection of one attempt."""

    destination: Any
    target: Target

    def __post_init__(self) -> None:
        self.destination.opened += 1

    def close(self) -> None:
        self.destination.closed += 1


@dataclass(frozen=True, kw_only=True)
class WitnessSink(Sink):
    destination: Any = field(repr=False)


# -- OPAQUE: a function, as users have it


@dataclass(eq=False)
class Post(Destination):
    """A place that takes events one by one and answers nothing of use."""

    def take(self, event: Event) -> None:
        name = name_of(event.value)

        def act() -> None:
            if name in self.refuses:
                raise Rejected(f"{name} is refused")
            self.accept(event)

        self.send([name], act)

    def take_all(self, batch: Any) -> None:
        values = batch.to_pylist()
        names = [name_of(value) for value in values]

        def act() -> None:
            if self.refuses.intersection(names):
                raise Rejected("one of them is refused")
            for value in values:
                self.accept(Event(value["c"], value["id"], 0, "", value))

        self.send(names, act)

    def sink(self, name: str = "out", *, batches: bool = False, **settings: Any) -> Function:
        settings.setdefault("window", settings.pop("chunk_rows", 1))
        settings.pop("span_chunks", None)
        function = self.take_all if batches else self.take
        return Function(name=name, function=function, batches=batches, **settings)


@dataclass(eq=False)
class Couriers(Destination):
    """Sends the events of a chunk side by side and reports each (OPAQUE)."""

    def sink(self, name: str = "out", **settings: Any) -> CouriersSink:
        settings.setdefault("span_chunks", 1)
        return CouriersSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class CouriersSink(WitnessSink):
    @property
    def capability(self) -> Capability:
        return Capability.OPAQUE

    def open(self, target: Target) -> CouriersLine:
        return CouriersLine(self.destination, target)


class CouriersLine(Line):
    def deliver(self, chunk: Chunk) -> Receipt:
        failures: dict[int, DeliveryError] = {}
        for place, event in enumerate(chunk.events()):
            accept = partial(self.destination.accept, event, self.target.attempt)
            try:
                self.destination.send([name_of(event.value)], accept)
            except DeliveryError as error:
                failures[place] = error
            except TimeoutError as error:
                failures[place] = OutcomeUnknown(str(error))
        return Receipt(failures)


# -- REPEATABLE


@dataclass(eq=False)
class Absorber(Destination):
    """Absorbs what carries a key it has seen, for as long as it remembers."""

    keys: SeenKeys = field(default_factory=SeenKeys)

    def fresh(self, key: str) -> bool:
        return self.keys.fresh(key, self.now())

    def sink(self, name: str = "out", **settings: Any) -> RepeatableSink:
        return RepeatableSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class RepeatableSink(WitnessSink):
    @property
    def capability(self) -> Capability:
        return Capability.REPEATABLE

    def open(self, target: Target) -> AbsorberLine:
        return AbsorberLine(self.destination, target, keyed_by_event=self.keyed_by_event)


@dataclass(eq=False)
class AbsorberLine(Line):
    keyed_by_event: bool = True

    def deliver(self, chunk: Chunk) -> Receipt:
        def act() -> Receipt:
            if self.destination.refused(chunk):
                raise Rejected("one of them is refused")
            if self.keyed_by_event:
                for event in chunk.events():
                    if self.destination.fresh(event.key):
                        self.destination.accept(event, self.target.attempt)
            elif self.destination.fresh(chunk.key):
                for event in chunk.events():
                    self.destination.accept(event, self.target.attempt)
            return DELIVERED

        receipt: Receipt = self.destination.send(names_in(chunk), act)
        return receipt


# -- PROBING


@dataclass(eq=False)
class Register(Destination):
    """Can be asked for the key of a chunk; absorbs nothing."""

    arrived: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def sink(self, name: str = "out", **settings: Any) -> ProbingSink:
        return ProbingSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class ProbingSink(WitnessSink):
    @property
    def capability(self) -> Capability:
        return Capability.PROBING

    def open(self, target: Target) -> RegisterLine:
        return RegisterLine(self.destination, target)


class RegisterLine(Line):
    def deliver(self, chunk: Chunk) -> Receipt:
        def act() -> Receipt:
            if self.destination.refused(chunk):
                raise Rejected("one of them is refused")
            self.destination.arrived.add(chunk.key)
            for event in chunk.events():
                self.destination.accept(event, self.target.attempt)
            return DELIVERED

        receipt: Receipt = self.destination.send(names_in(chunk), act)
        return receipt

    def arrived(self, key: str) -> bool:
        self.destination.asked.append(key)
        found: bool = self.destination.ask("ask for a key", lambda: key in self.destination.arrived)
        return found


# -- TRANSACTIONAL


@dataclass(eq=False)
class Database(Destination):
    """Commits effects together with a progress row.

    `one_script` applies the good events of a chunk and keeps the positions of the bad ones.
    """

    progress: ProgressTable = field(default_factory=ProgressTable)
    one_script: bool = False
    history: list[Progress] = field(default_factory=list)

    def sink(self, name: str = "out", **settings: Any) -> TransactionalSink:
        return TransactionalSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class TransactionalSink(WitnessSink):
    @property
    def capability(self) -> Capability:
        return Capability.TRANSACTIONAL

    def open(self, target: Target) -> DatabaseLine:
        return DatabaseLine(self.destination, target)


class Careless(ProgressTable):
    """Does not look at the attempt in the row: a planted fault."""

    def require_next(self, target: Target, progress: Progress) -> Progress | None:
        stood = self.rows.get(place_of(target))
        progress.require_kept(stood, "the row")
        return stood

    def fence(self, stood: Progress | None, target: Target) -> None:
        return


class ForgetsRejected(ProgressTable):
    """Does not keep which events it refused: a planted fault."""

    def move(
        self, target: Target, chunk: Chunk, progress: Progress, refused: Mapping[int, object]
    ) -> None:
        super().move(target, chunk, progress, {})


class DatabaseLine(Line):
    def take_over(self) -> Progress | None:
        table: ProgressTable = self.destination.progress
        taken: Progress | None = self.destination.ask(
            "take over the row", lambda: table.take_over(self.target)
        )
        return taken

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        table: ProgressTable = self.destination.progress

        def act() -> Receipt:
            table.require_next(self.target, progress)
            refused = self.destination.refused(chunk)
            if refused and not self.destination.one_script:
                raise Rejected("one of them is refused")
            table.move(self.target, chunk, progress, refused)
            self.destination.history.append(progress)
            for place, event in enumerate(chunk.events()):
                if place not in refused:
                    self.destination.accept(event, self.target.attempt)
            return Receipt(refused)

        receipt: Receipt = self.destination.send(names_in(chunk), act)
        return receipt


# -- SEQUENCED


@dataclass(eq=False)
class Logs(Destination):
    """A log for each partition; with `opener_wins` opening a session takes the epoch (Kafka)."""

    logs: dict[Place, SequencedLog] = field(default_factory=dict)
    whole_chunks: bool = False

    def sink(self, name: str = "out", **settings: Any) -> SequencedSink:
        return SequencedSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class SequencedSink(WitnessSink):
    last_opener_wins: bool = False

    @property
    def capability(self) -> Capability:
        return Capability.SEQUENCED

    def open(self, target: Target) -> LogLine:
        return LogLine(self.destination, target, opener_wins=self.last_opener_wins)


@dataclass(eq=False)
class LogLine(Line):
    opener_wins: bool = False
    opening: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opener_wins:
            self.opening = self.log.epoch = self.destination.opened

    @property
    def log(self) -> SequencedLog:
        log: SequencedLog = self.destination.logs.setdefault(place_of(self.target), SequencedLog())
        return log

    def take_over(self) -> Tail:
        tail: Tail = self.destination.ask(
            "take the epoch", lambda: self.log.take_over(self.target, self.opening)
        )
        return tail

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        return self._append(chunk, progress, 0)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        return self._append(chunk, None, number)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        return self.log.delivered_ids(minibatch)

    def _append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        if self.destination.refused(chunk):
            self.destination.calls.append(names_in(chunk))
            raise Rejected("one of them is refused")
        events = list(chunk.events())
        records = log_records(chunk, self.target, progress, resend)

        def put(places: range) -> Receipt:
            self.log.append(records[places.start : places.stop], self.target, self.opening)
            for place in places:
                self.destination.accept(events[place], self.target.attempt)
            return DELIVERED

        if self.destination.whole_chunks:
            self.destination.send(names_in(chunk), lambda: put(range(len(events))))
            return DELIVERED
        for place, event in enumerate(events):
            at = range(place, place + 1)
            self.destination.send([name_of(event.value)], lambda at=at: put(at))
        return DELIVERED


# -- a place that is overwritten


@dataclass(eq=False)
class FolderModel(Destination):
    """Part files: what was last put at a place is all that stands there."""

    parts: OverwrittenPlaces[list[str]] = field(default_factory=OverwrittenPlaces)

    @property
    def places(self) -> dict[str, list[str]]:
        return self.parts.contents

    def sink(self, name: str = "out", **settings: Any) -> FolderSink:
        return FolderSink(name=name, destination=self, **settings)


@dataclass(frozen=True, kw_only=True)
class FolderSink(WitnessSink):
    whole: bool = True

    @property
    def capability(self) -> Capability:
        return Capability.REPEATABLE

    def locate(self, target: Target) -> str:
        return f"{target.minibatch}/part-{target.partition}"

    def open(self, target: Target) -> FolderLine:
        return FolderLine(self.destination, target, self.locate(target))


@dataclass(eq=False)
class FolderLine(Line):
    place: str = ""
    written: list[str] = field(default_factory=list)

    def write(self, chunk: Chunk) -> None:
        self.destination.send(names_in(chunk), lambda: self.written.extend(names_in(chunk)))

    def finish(self) -> None:
        def put() -> None:
            self.destination.parts.put(self.place, self.target.attempt, list(self.written))

        self.destination.send(["(finish)"], put)
