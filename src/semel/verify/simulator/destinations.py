"""Simulated destinations, one for each capability, that record everything they get.

Always true:
- an effect is recorded when it happens, with the attempt that caused it and the time;
- a session reaches its destination only through its wire, so that every effect is a numbered call;
- a call that a gateway refuses has no effect, whatever an earlier call did;
- an effect after the deadline of its call is marked as late: no capability covers it.
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
from semel.verify.models import SeenKeys
from semel.verify.simulator.faults import FaultyWire, Kind
from semel.verify.simulator.scheduler import Crashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semel.events import Attempt, Chunk, Event, EventID, Minibatch
    from semel.sinks import Session, Target
    from semel.verify.simulator.scheduler import Hub

NUMBER = "n"
"""The column with the number of the event in the world, whatever its identity is."""
RESENDS = "~resend"
"""The partition of parked events that are sent again."""


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """One effect of one event at a destination.

    Attributes:
        number: the number of the event in the world.
        late: whether it happened after the deadline of its call.
        resend: whether it is a parked event that was sent again.
        scale: how often the pipeline was rescaled before its minibatch: OSNs restart each time, and
            an earlier zombie keeps its own.
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
    """A gateway before a destination that may refuse repeats for a while after a lost reply.

    It answers 403 or 413: that call had no effect, and nothing is known about the one before.
    """

    hub: Hub
    shuts_for: Callable[[], float]
    shut_until: float = 0.0
    quiet: bool = False

    def lost(self) -> None:
        """Record a lost reply: the gateway may close now."""
        if not self.quiet:
            self.shut_until = max(self.shut_until, self.hub.now + self.shuts_for())

    @property
    def shut(self) -> bool:
        """Whether a call that arrives now is refused."""
        return not self.quiet and self.hub.now < self.shut_until


@dataclass(eq=False)
class SimulatedDestination:
    """A destination: its effects, and the events that it refuses.

    Attributes:
        refuses: events that it never accepts, unless a person fixes them.
        broken: events whose call never gets a clear answer (a 500) and has no effect.
        poison: events that raise an unclassified error when they are sent again.
        needs: a column that a new release of the sink requires.
        turned_away: events that its gateway refused, or that a new release cannot send.
        rescaled: the newest minibatch at each rescaling of the pipeline.
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
        """Whether an event took effect."""
        return any(effect.number == number for effect in self.seen())

    def seen(self) -> list[RecordedEffect]:
        """Return the effects, in the order in which they happened."""
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
        """Raise, before a session sends anything, if it cannot send a chunk."""
        if self.needs is None and not (resend and self.poison):
            return
        for event in chunk.events():
            if self.needs is not None and self.needs not in event.value:
                self.turned_away.add(event.value[NUMBER])
                raise ConfigurationError(f"the sink needs column {self.needs!r}")
            if resend and event.value[NUMBER] in self.poison:
                raise RuntimeError(f"number {event.value[NUMBER]} cannot be sent like this")

    def meet(self, events: Iterable[Event], effect: Callable[[], Any]) -> Any:
        """Let a call take effect, unless a gateway or a broken event prevents it."""
        if self.gateway is None and not self.broken:
            return effect()
        numbers = {event.value[NUMBER] for event in events}
        if self.gateway is not None and self.gateway.shut:
            self.turned_away |= numbers
            raise Rejected("the gateway refuses it")
        if numbers & self.broken:
            raise OutcomeUnknown("500: it may have taken effect")
        return effect()

    def refused(self, chunk: Chunk) -> dict[int, DeliveryError]:
        """Return the events of a chunk that this destination never accepts, by position."""
        if not self.refuses:
            return {}
        return {
            place: Rejected(f"number {event.value[NUMBER]} is refused")
            for place, event in enumerate(chunk.events())
            if event.value[NUMBER] in self.refuses
        }


@dataclass(frozen=True, kw_only=True)
class SimulatedSink(Sink):
    """A sink with a simulated destination, reached through the wire of one process."""

    destination: Any = field(repr=False)
    wire: FaultyWire = field(repr=False)

    def connect(self, target: Target) -> None:
        """Open a connection, without an effect at the destination."""
        self.wire.call(Kind.OPEN, ("open a session for", target.partition), lambda: None)


@dataclass(eq=False)
class WitnessSession:
    """One connection of one attempt."""

    destination: Any
    wire: FaultyWire
    target: Target
    began: float = 0.0

    def begin(self, chunk: Chunk | None = None, *, resend: bool = False) -> None:
        """Begin a call; its deadline counts from here."""
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
        """Make one of several requests of a call: after the first, a failure makes the outcome of
        the whole call unknown.
        """
        try:
            self.send(what, effect, (event,))
        except (NotDelivered, Rejected) as error:
            if place:
                raise OutcomeUnknown("a part of it was sent") from error
            raise

    def close(self) -> None:
        """Close the connection."""


# -- OPAQUE


@dataclass(frozen=True, kw_only=True)
class OpaqueSink(SimulatedSink):
    """Sends events without any way to find out later what arrived.

    `per_event`: a call has an outcome for each event (a function called for each), not only for
    the whole.
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
    """Sends event after event and stops at the first failure."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Send the events in order; return an outcome for each."""
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
        """Send the chunk; any failure makes the outcome of all its events unknown."""
        self.begin(chunk)
        if self.destination.refused(chunk):
            raise Rejected("an event of the chunk is refused")
        for place, event in enumerate(chunk.events()):
            self.send_part(place, _event(event), _accepting(self, event), event)
        return DELIVERED


# -- REPEATABLE


@dataclass(eq=False)
class AbsorbingDestination(SimulatedDestination):
    """Absorbs calls with a key that it has seen, for as long as it remembers keys."""

    keys: SeenKeys = field(default_factory=SeenKeys)

    def fresh(self, key: str) -> bool:
        """Whether a key is new; remember it."""
        return self.keys.fresh(key, self.hub.now)


@dataclass(frozen=True, kw_only=True)
class SimulatedRepeatableSink(SimulatedSink):
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
        """Send the events in order; after a refusal or a missing answer the rest is not sent."""
        self.begin(chunk)
        failures = self.destination.refused(chunk)
        for place, event in enumerate(chunk.events()):
            failure = failures.get(place) or self._failure(place, event)
            if failure is not None:
                rest = range(place + 1, len(chunk))
                return Receipt({place: failure, **dict.fromkeys(rest, NotDelivered("not tried"))})
        return DELIVERED

    def _failure(self, place: int, event: Event) -> DeliveryError | None:
        """Send one event; a lost reply makes the outcome of the whole call unknown."""
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
class ProbedDestination(SimulatedDestination):
    """Can be asked for the key of a chunk; absorbs nothing."""

    arrived: set[str] = field(default_factory=set)

    def fresh(self, key: str) -> bool:
        """Remember a key; a repeat takes effect again."""
        self.arrived.add(key)
        return True


@dataclass(frozen=True, kw_only=True)
class SimulatedProbingSink(SimulatedSink):
    """Can be asked whether a chunk arrived."""

    @property
    def capability(self) -> Capability:
        """PROBING."""
        return Capability.PROBING

    def open(self, target: Target) -> Session:
        """Connect."""
        self.connect(target)
        return ProbingWitnessSession(self.destination, self.wire, target)


class ProbingWitnessSession(KeyedChunkSession):
    """Sends chunks as a whole, and asks whether they arrived."""

    def arrived(self, key: str) -> bool:
        """Ask whether a chunk arrived."""
        arrived: bool = self.wire.call(
            Kind.ASK, ("ask for chunk", key), lambda: key in self.destination.arrived
        )
        return arrived


def _accepting(session: WitnessSession, event: Event) -> Callable[[], None]:
    """Return the effect of one event in the call that began last."""
    began = session.began
    return lambda: session.destination.accept(event, session.target, began)


def _event(event: Event) -> tuple[Any, ...]:
    return ("send event", event.id, "of", event.entity)
