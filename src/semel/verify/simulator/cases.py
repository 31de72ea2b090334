"""The cases of simulated worlds: destination, policies and identity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks import Retry
from semel.verify.models import SeenKeys
from semel.verify.simulator.destinations import (
    NUMBER,
    AbsorbingDestination,
    OpaqueSink,
    ProbedDestination,
    SimulatedDestination,
    SimulatedProbingSink,
    SimulatedRepeatableSink,
)
from semel.verify.simulator.faults import Kind
from semel.verify.simulator.inputs import Identities
from semel.verify.simulator.stateful_destinations import (
    Places,
    PlacesSink,
    SimulatedDatabase,
    SimulatedLogs,
    SimulatedSequencedSink,
    SimulatedTransactionalSink,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import Event
    from semel.verify.simulator.destinations import SimulatedSink
    from semel.verify.simulator.faults import FaultyWire
    from semel.verify.simulator.scheduler import Hub

SINK = "witness"
LEASE_S = 10.0
DEADLINE_S = 30.0
RETRY = Retry(first_s=0.1, most_s=5.0, for_s=12.0)


class Variant(StrEnum):
    """The simulated destinations."""

    TRANSACTIONAL = "transactional"
    SCRIPT = "transactional, one script"
    SEQUENCED = "sequenced"
    LAST_OPENER = "sequenced, last opener wins"
    REPEATABLE = "repeatable by event"
    REPEATABLE_CHUNKS = "repeatable by chunk"
    PLACES = "repeatable, whole places"
    PROBING = "probing"
    OPAQUE = "opaque"
    OPAQUE_BATCHES = "opaque, batches"

    @property
    def capability(self) -> Capability:
        """The capability of such a destination."""
        return Capability(self.value.partition(",")[0].partition(" ")[0])


@dataclass(frozen=True)
class Case:
    """The settings of a pipeline and of one of its destinations."""

    variant: Variant
    on_doubt: OnDoubt = OnDoubt.HOLD
    on_reject: OnReject = OnReject.PARK
    identities: Identities = Identities.INCREASING
    partitions: int = 1
    window: int = 3
    span_chunks: int = 2
    remembers_s: float = 86_400.0
    forgetful_probe: bool = False
    name: str = SINK

    @property
    def capability(self) -> Capability:
        """The capability of the destination."""
        return self.variant.capability

    def destination(self, hub: Hub) -> SimulatedDestination:
        """Create the destination."""
        match self.variant:
            case Variant.TRANSACTIONAL | Variant.SCRIPT:
                return SimulatedDatabase(hub, DEADLINE_S)
            case Variant.SEQUENCED | Variant.LAST_OPENER:
                return SimulatedLogs(hub, DEADLINE_S)
            case Variant.REPEATABLE | Variant.REPEATABLE_CHUNKS:
                return AbsorbingDestination(hub, DEADLINE_S, keys=SeenKeys(self.remembers_s))
            case Variant.PLACES:
                return Places(hub, DEADLINE_S)
            case Variant.PROBING:
                return ProbedDestination(hub, DEADLINE_S)
            case Variant.OPAQUE | Variant.OPAQUE_BATCHES:
                return SimulatedDestination(hub, DEADLINE_S)

    def sink(
        self,
        destination: SimulatedDestination,
        wire: FaultyWire,
        window: int | None = None,
        span_chunks: int | None = None,
    ) -> SimulatedSink:
        """Create the sink of one process; chunk sizes may differ between processes."""
        opaque = self.capability is Capability.OPAQUE
        settings: dict[str, Any] = {
            "name": self.name,
            "destination": destination,
            "wire": wire,
            "chunk_rows": window or self.window,
            "span_chunks": 1 if opaque else span_chunks or self.span_chunks,
            "on_doubt": self.on_doubt,
            "on_reject": self.on_reject,
            "lease_s": LEASE_S,
            "deadline_s": DEADLINE_S,
            "remembers_s": self.remembers_s,
            "retry": RETRY,
        }
        if self.on_doubt is OnDoubt.PROBE:
            settings["probe"] = self._probe(destination, wire)
        match self.variant:
            case Variant.TRANSACTIONAL | Variant.SCRIPT:
                return SimulatedTransactionalSink(
                    **settings, one_script=self.variant is Variant.SCRIPT
                )
            case Variant.SEQUENCED | Variant.LAST_OPENER:
                last = self.variant is Variant.LAST_OPENER
                return SimulatedSequencedSink(**settings, last_opener_wins=last)
            case Variant.REPEATABLE | Variant.REPEATABLE_CHUNKS:
                by_event = self.variant is Variant.REPEATABLE
                return SimulatedRepeatableSink(**settings, keyed_by_event=by_event)
            case Variant.PLACES:
                return PlacesSink(**settings)
            case Variant.PROBING:
                return SimulatedProbingSink(**settings)
            case Variant.OPAQUE | Variant.OPAQUE_BATCHES:
                return OpaqueSink(**settings, per_event=self.variant is Variant.OPAQUE)

    def _probe(
        self, destination: SimulatedDestination, wire: FaultyWire
    ) -> Callable[[Event], bool | None]:
        """Return the user's function for `on_doubt="probe"`, which asks the destination."""

        def probe(event: Event) -> bool | None:
            number = event.value[NUMBER]
            if self.forgetful_probe and number % 3 == 0:
                return None
            what = ("probe event", event.id, "of", event.entity)
            return wire.call(Kind.ASK, what, lambda: destination.has(number))

        return probe
