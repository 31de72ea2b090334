"""Witnesses: destinations that remember everything they were given, one for each capability.

Always true:
- an effect is remembered the moment it happens, with the attempt that caused it and the time;
- a session reaches its destination only over its wire, so that every effect is a numbered boundary;
- what a gateway turns away had no effect by that call, whatever an earlier call did;
- a call that takes effect later than its deadline is marked: no claim of a destination covers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
)
from semel.protocol import Capability
from semel.sinks import DELIVERED, Receipt, Sink
from semel.verify.simulator.faults import FaultyWire, Kind
from semel.verify.simulator.scheduler import Crashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semel.events import Attempt, Chunk, Event, EventID, Minibatch
    from semel.sinks import Session, Target
    from semel.verify.simulator.scheduler import Hub

NUMBER = "n"
"""The column that says which event of the world this is, whatever semel calls it."""
RESENDS = "~resend"
"""The partition under which parked events are sent again."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """One effect of one event at a destination.

    Attributes:
        number: which event of the world it is.
        late: whether it happened later than the deadline of its call allows.
        resend: whether it was sent by whoever drains parked events.
        scale: how often the pipeline had been rescaled before its minibatch: numbers begin anew
            each time, and a zombie from before keeps those it was given.
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
    scale: int = 0


@dataclass(eq=False)
class Gateway:
    """Stands in front of a destination and, after a reply was lost, may refuse what is repeated.

    It answers 403 or 413 for a while: that call had no effect, and says nothing of the one before.
    """

    hub: Hub
    shuts_for: Callable[[], float]
    shut_until: float = 0.0
    quiet: bool = False

    def lost(self) -> None:
        """A reply was lost on its way: perhaps the gateway shuts now."""
        if not self.quiet:
            self.shut_until = max(self.shut_until, self.hub.now + self.shuts_for())

    @property
    def shut(self) -> bool:
        """Whether a call that arrives now is turned away."""
        return not self.quiet and self.hub.now < self.shut_until


@dataclass(eq=False)
class Destination:
    """What a destination has seen, and which events it refuses.

    Attributes:
        refuses: events that it will never take; a person may make it take them.
        broken: events whose call never gets an answer that tells anything (a 500); nothing happens.
        poison: events that break whoever sends them again, with an error nobody classified.
        needs: a column that a new release of the sink cannot do without.
        turned_away: events that its gateway refused, or that a new release cannot send.
        rescaled: the newest minibatch of each time that the pipeline was rescaled.
    """

    hub: Hub
    deadline_s: float = 30.0
    effects: list[RecordedEffect] = field(default_factory=list)
    refuses: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    poison: set[int] = field(default_factory=set)
    needs: str | None = None
    gateway: Gateway | None = None
    turned_away: set[int] = field(default_factory=set)
    rescaled: list[Minibatch] = field(default_factory=list)

    def has(self, number: int) -> bool:
        """Say whether an event took effect."""
        return any(effect.number == number for effect in self.seen())

    def seen(self) -> list[RecordedEffect]:
        """Give the effects that stand, in the order in which they happened."""
        return self.effects

    def accept(self, event: Event, target: Target, began: float) -> None:
        """Let an event take effect."""
        self.effects.append(self.effect(event, target, began))

    def effect(self, event: Event, target: Target, began: float) -> RecordedEffect:
        """Describe the effect that happens now."""
        return RecordedEffect(
            number=event.value[NUMBER],
            entity=event.entity,
            event=event.id,
            osn=event.osn,
            minibatch=target.minibatch,
            attempt=target.attempt,
            partition=target.partition,
            at=self.hub.now,
            late=self.hub.now - began > self.deadline_s,
            resend=target.partition == RESENDS,
            scale=sum(target.minibatch > newest for newest in self.rescaled),
        )

    def look_at(self, chunk: Chunk, *, resend: bool) -> None:
        """What a session does before it sends anything: it may find that it cannot."""
        if self.needs is None and not (resend and self.poison):
            return
        for event in chunk.events():
            if self.needs is not None and self.needs not in event.value:
                self.turned_away.add(event.value[NUMBER])
                raise ConfigurationError(f"the sink needs column {self.needs!r}")
            if resend and event.value[NUMBER] in self.poison:
                raise RuntimeError(f"number {event.value[NUMBER]} cannot be sent like this")

    def meet(self, events: Iterable[Event], effect: Callable[[], Any]) -> Any:
        """A call arrives: it takes effect, unless a gateway or a broken event stands in its way."""
        if self.gateway is None and not self.broken:
            return effect()
        numbers = {event.value[NUMBER] for event in events}
        if self.gateway is not None and self.gateway.shut:
            self.turned_away |= numbers
            raise Rejected("the gateway refuses it")
        if numbers & self.broken:
            raise OutcomeUnknown("500: nobody knows whether it took effect")
        return effect()

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
    wire: FaultyWire = field(repr=False)

    def connect(self, target: Target) -> None:
        """Open a connection: nothing happens at the destination."""
        self.wire.call(Kind.OPEN, ("open a session for", target.partition), lambda: None)


@dataclass(eq=False)
class WitnessSession:
    """One connection of one attempt."""

    destination: Any
    wire: FaultyWire
    target: Target
    began: float = 0.0

    def begin(self, chunk: Chunk | None = None, *, resend: bool = False) -> None:
        """A call begins: its deadline counts from here."""
        self.began = self.wire.hub.now
        if chunk is not None:
            self.destination.look_at(chunk, resend=resend or self.target.partition == RESENDS)

    def send(
        self, what: tuple[Any, ...], effect: Callable[[], Any], events: Iterable[Event] = ()
    ) -> Any:
        """Make a request that has an effect."""
        gateway: Gateway | None = self.destination.gateway
        try:
            return self.wire.call(Kind.SEND, what, lambda: self.destination.meet(events, effect))
        except (OutcomeUnknown, TimeoutError, Crashed):
            if gateway is not None:
                gateway.lost()
            raise

    def send_part(
        self, place: int, what: tuple[Any, ...], effect: Callable[[], Any], event: Event
    ) -> None:
        """Make one of several requests of a call: once a part has arrived, a failure is unknown of
        the whole.
        """
        try:
            self.send(what, effect, (event,))
        except (NotDelivered, Rejected) as error:
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

    per_event: bool = True

    @property
    def capability(self) -> Capability:
        """OPAQUE."""
        return Capability.OPAQUE

    def open(self, target: Target) -> Session:
        """Connect."""
        self.connect(target)
        kind = OpaqueSession if self.per_event else BatchSession
        return kind(self.destination, self.wire, target)


class OpaqueSession(WitnessSession):
    """Sends event after event and stops at the first that fails."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the events in order; tell of each."""
        self.begin(chunk)
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
            self.send(_event(event), _accepting(self, event), (event,))
        except DeliveryError as error:
            return error
        except TimeoutError as error:
            return OutcomeUnknown(str(error))
        return None


class BatchSession(WitnessSession):
    """Sends a chunk in one call that arrives event by event; only the whole has an outcome."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the chunk; whatever happens on the way is unknown of all of it."""
        self.begin(chunk)
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        for place, event in enumerate(chunk.events()):
            self.send_part(place, _event(event), _accepting(self, event), event)
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
        """Send the events in order; one that is refused or has no answer leaves the rest unsent."""
        self.begin(chunk)
        failures = self.destination.refused(chunk)
        for place, event in enumerate(chunk.events()):
            failure = failures.get(place) or self._failure(place, event)
            if failure is not None:
                rest = range(place + 1, len(chunk))
                return Receipt({place: failure, **dict.fromkeys(rest, NotDelivered("not tried"))})
        return DELIVERED

    def _failure(self, place: int, event: Event) -> DeliveryError | None:
        """Send one event; lost replies are unknown of the whole call, as before any answer came."""
        try:
            self.send(_event(event), self._absorbing(event), (event,))
        except Rejected as error:
            return error
        except OutcomeUnknown as error:
            if event.value[NUMBER] in self.destination.broken:
                return error
            raise
        except NotDelivered as error:
            if place:
                raise OutcomeUnknown("a part of it was sent") from error
            raise
        return None

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
        self.begin(chunk)
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        accepts = [_accepting(self, event) for event in chunk.events()]

        def effect() -> None:
            if self.destination.fresh(chunk.key):
                for accept in accepts:
                    accept()

        self.send(("send chunk", chunk.key), effect, chunk.events())
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
