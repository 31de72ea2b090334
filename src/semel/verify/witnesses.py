"""Witnesses: destinations that remember everything they were given, one for each capability.

Always true:
- an effect is remembered the moment it happens, with the attempt that caused it and the time;
- a session reaches its destination only over its wire, so that every effect is a numbered boundary;
- a call that takes effect later than its deadline is marked: no claim of a destination covers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import DeliveryError, NotDelivered, OutcomeUnknown, Rejected
from semel.protocol import Capability
from semel.sinks import DELIVERED, Receipt, Sink
from semel.verify.faults import Kind, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Attempt, Chunk, Event, EventID, Minibatch
    from semel.sinks import Session, Target
    from semel.verify.scheduler import Hub

NUMBER = "n"
"""The column that says which event of the world this is, whatever semel calls it."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of one event at a destination.

    Attributes:
        number: which event of the world it is.
        late: whether it happened later than the deadline of its call allows.
        resend: whether it was sent by whoever drains parked events.
    """

    number: int
    entity: str
    event: EventID
    osn: int
    minibatch: Minibatch
    attempt: Attempt
    partition: str
    at: float
    late: bool = False
    resend: bool = False


@dataclass(eq=False)
class Destination:
    """What a destination has seen, and which events it refuses."""

    hub: Hub
    deadline_s: float = 30.0
    effects: list[Effect] = field(default_factory=list)
    refuses: set[int] = field(default_factory=set)

    def has(self, number: int) -> bool:
        """Say whether an event took effect."""
        return any(effect.number == number for effect in self.seen())

    def seen(self) -> list[Effect]:
        """Give the effects that stand, in the order in which they happened."""
        return self.effects

    def accept(self, event: Event, target: Target, began: float) -> None:
        """Let an event take effect."""
        self.effects.append(self.effect(event, target, began))

    def effect(self, event: Event, target: Target, began: float) -> Effect:
        """Describe the effect that happens now."""
        return Effect(
            number=event.value[NUMBER],
            entity=event.entity,
            event=event.id,
            osn=event.osn,
            minibatch=target.minibatch,
            attempt=target.attempt,
            partition=target.partition,
            at=self.hub.now,
            late=self.hub.now - began > self.deadline_s,
            resend=target.partition == "~resend",
        )

    def refused(self, chunk: Chunk) -> dict[int, DeliveryError]:
        """Give the events of a chunk that this destination will never take, by their place."""
        if not self.refuses:
            return {}
        return {
            place: Rejected(f"number {event.value[NUMBER]} is refused")
            for place, event in enumerate(chunk.events())
            if event.value[NUMBER] in self.refuses
        }


@dataclass(frozen=True, kw_only=True)
class WitnessSink(Sink):
    """A sink whose destination is a witness, as one process reaches it over its wire."""

    destination: Any = field(repr=False)
    wire: Wire = field(repr=False)

    def connect(self, target: Target) -> None:
        """Open a connection: nothing happens at the destination."""
        self.wire.call(Kind.OPEN, ("open a session for", target.partition), lambda: None)


@dataclass(eq=False)
class WitnessSession:
    """One connection of one attempt."""

    destination: Any
    wire: Wire
    target: Target
    began: float = 0.0

    def begin(self) -> None:
        """A call begins: its deadline counts from here."""
        self.began = self.wire.hub.now

    def send(self, what: tuple[Any, ...], effect: Callable[[], Any]) -> Any:
        """Make a request that has an effect."""
        return self.wire.call(Kind.SEND, what, effect)

    def send_part(self, place: int, what: tuple[Any, ...], effect: Callable[[], Any]) -> None:
        """Make one of several requests of a call: once a part has arrived, a failure is unknown of
        the whole.
        """
        try:
            self.send(what, effect)
        except NotDelivered as error:
            if place:
                raise OutcomeUnknown("a part of it was sent") from error
            raise

    def close(self) -> None:
        """Give the connection back."""


# -- OPAQUE


@dataclass(frozen=True, kw_only=True)
class OpaqueSink(WitnessSink):
    """Takes events one by one and answers nothing of use.

    `told_apart` says whether a call tells of single events (a function called for each), or only
    of the whole.
    """

    told_apart: bool = True

    @property
    def capability(self) -> Capability:
        """OPAQUE."""
        return Capability.OPAQUE

    def open(self, target: Target) -> Session:
        """Connect."""
        self.connect(target)
        kind = OpaqueSession if self.told_apart else BatchSession
        return kind(self.destination, self.wire, target)


class OpaqueSession(WitnessSession):
    """Sends event after event and stops at the first that fails."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the events in order; tell of each."""
        self.begin()
        for place, event in enumerate(chunk.events()):
            failure = self._failure(event)
            if failure is not None:
                if isinstance(failure, NotDelivered) and not place:
                    raise failure
                untried = NotDelivered("not tried")
                rest = dict.fromkeys(range(place + 1, len(chunk)), untried)
                return Receipt({place: failure, **rest})
        return DELIVERED

    def _failure(self, event: Event) -> DeliveryError | None:
        if event.value[NUMBER] in self.destination.refuses:
            return Rejected(f"number {event.value[NUMBER]} is refused")
        try:
            self.send(_event(event), _accepting(self, event))
        except DeliveryError as error:
            return error
        except TimeoutError as error:
            return OutcomeUnknown(str(error))
        return None


class BatchSession(WitnessSession):
    """Sends a chunk in one call that arrives event by event; only the whole has an outcome."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the chunk; whatever happens on the way is unknown of all of it."""
        self.begin()
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        for place, event in enumerate(chunk.events()):
            self.send_part(place, _event(event), _accepting(self, event))
        return DELIVERED


# -- REPEATABLE


@dataclass(eq=False)
class AbsorbingDestination(Destination):
    """Absorbs what carries a key it has seen, for as long as it remembers."""

    remembers_s: float = 86_400.0
    keys: dict[str, float] = field(default_factory=dict)

    def fresh(self, key: str) -> bool:
        """Say whether a key is new, and remember it."""
        at = self.keys.get(key)
        if at is not None and self.hub.now - at <= self.remembers_s:
            return False
        self.keys[key] = self.hub.now
        return True


@dataclass(frozen=True, kw_only=True)
class RepeatableSink(WitnessSink):
    """Absorbs a repeat by the event's key or by the chunk's."""

    @property
    def capability(self) -> Capability:
        """REPEATABLE."""
        return Capability.REPEATABLE

    def open(self, target: Target) -> Session:
        """Connect."""
        self.connect(target)
        kind = KeyedEventSession if self.keyed_by_event else KeyedChunkSession
        return kind(self.destination, self.wire, target)


class KeyedEventSession(WitnessSession):
    """Sends event after event, each under its key."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the events in order."""
        self.begin()
        failures = self.destination.refused(chunk)
        for place, event in enumerate(chunk.events()):
            if place in failures:
                rest = range(place + 1, len(chunk))
                return Receipt({place: failures[place], **dict.fromkeys(rest, NotDelivered(""))})
            self.send_part(place, _event(event), self._absorbing(event))
        return DELIVERED

    def _absorbing(self, event: Event) -> Callable[[], None]:
        accept = _accepting(self, event)

        def effect() -> None:
            if self.destination.fresh(event.key):
                accept()

        return effect


class KeyedChunkSession(WitnessSession):
    """Sends a chunk as a whole, under its key."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the chunk in one call that arrives as a whole."""
        self.begin()
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        accepts = [_accepting(self, event) for event in chunk.events()]

        def effect() -> None:
            if self.destination.fresh(chunk.key):
                for accept in accepts:
                    accept()

        self.send(("send chunk", chunk.key), effect)
        return DELIVERED


# -- PROBING


@dataclass(eq=False)
class ProbedDestination(Destination):
    """Can be asked for the key of a chunk; does not absorb anything."""

    arrived: set[str] = field(default_factory=set)

    def fresh(self, key: str) -> bool:
        """Remember a key; whatever carries it takes effect, also once more."""
        self.arrived.add(key)
        return True


@dataclass(frozen=True, kw_only=True)
class ProbingSink(WitnessSink):
    """Tells whether a chunk arrived."""

    @property
    def capability(self) -> Capability:
        """PROBING."""
        return Capability.PROBING

    def open(self, target: Target) -> Session:
        """Connect."""
        self.connect(target)
        return ProbingWitnessSession(self.destination, self.wire, target)


class ProbingWitnessSession(KeyedChunkSession):
    """Sends chunks as a whole, and asks for them."""

    def arrived(self, key: str) -> bool:
        """Ask for a chunk."""
        arrived: bool = self.wire.call(
            Kind.ASK, ("ask for chunk", key), lambda: key in self.destination.arrived
        )
        return arrived


def _accepting(session: WitnessSession, event: Event) -> Callable[[], None]:
    """The effect of one event in the call that began last."""
    began = session.began
    return lambda: session.destination.accept(event, session.target, began)


def _event(event: Event) -> tuple[Any, ...]:
    return ("send event", event.id, "of", event.entity)
