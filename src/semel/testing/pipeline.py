"""A pipeline under test: rows go through an identity and a sink without Spark, and it can crash.

Driver, delivery, ledger and sink are the ones of production. Spark is left out: a minibatch is a
list of rows, its partitions are delivered one after the other in this process, and no test waits.

Always true:
- every crash is tried in a world of its own: a new pipeline, of which the ledger has no record;
- after a crash a new run continues, as after `query.start()`, until it ends or cannot go on;
- what is recorded is read from the ledger, what arrived from the destination: the two are compared,
  and neither is derived from the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import CHOICES, Named, implied
from semel.ledger import open_store
from semel.sinks import AuditLog, Function, Sink
from semel.sinks import sink as make_sink
from semel.testing.steps import NumberedSteps, PlannedFault
from semel.testing.world import PipelineWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from os import PathLike
    from pathlib import Path

    from semel.events import Identity
    from semel.testing.world import CrashOutcome, EventName, InputRows


class PipelineUnderTest:
    """Delivers rows to one sink without Spark, and crashes on request. `semel_pipeline` makes it.

    Args:
        to: a sink, or a function.
        ledger: the file of its ledger; it is created.
        entity, event, identity, order_by, increasing: what identifies an event, as for
            `semel.deliver`.
        partitions: how many partitions entities are spread over.
        arrived: returns what is at the destination as pairs of entity and event id, in the order of
            arrival. A function has a default: the events for which it returned.
        reset: empties the destination; called before each world of `crash_everywhere` and
            `fail_everywhere`. Without it, what arrived before a world does not count for it.
        audit: the folder of an audit log, as for `semel.deliver`.
    """

    def __init__(  # noqa: PLR0913 - the parameters of `semel.deliver`; most have a default
        self,
        to: Sink | Callable[..., object],
        ledger: Path,
        *,
        entity: str | None = None,
        event: str | Sequence[str] | None = None,
        identity: str | Identity | None = None,
        order_by: str | Sequence[str] | None = None,
        increasing: bool = False,
        partitions: int = 1,
        arrived: Callable[[], Iterable[tuple[object, object]]] | None = None,
        reset: Callable[[], object] | None = None,
        audit: str | PathLike[str] | None = None,
    ) -> None:
        self.sink = to if isinstance(to, Sink) else make_sink(to)
        found = implied(Named(identity, entity, event, order_by, increasing))
        if found is None:
            raise ConfigurationError(f"no parameter says which rows are the same event: {CHOICES}")
        if arrived is None and not isinstance(self.sink, Function):
            raise ConfigurationError(
                f"sink {self.sink.name!r}: pass arrived=, a function that returns what is at the "
                "destination as pairs of entity and event id, in the order of arrival"
            )
        self.identity: Identity = found
        self._partitions = None if found.uses_source_partitions else partitions
        self._store = open_store(f"sqlite:///{ledger}")
        self._arrived = arrived
        self._reset = reset
        self._audit = None if audit is None else AuditLog(audit)
        self._worlds = 0
        self._ongoing = self._current = self._new_world(None)

    # -- one world that goes on

    def deliver(self, rows: InputRows) -> None:
        """Deliver one minibatch. Raises the error that stops the query; `restart` goes on."""
        self._current = self._ongoing
        self._ongoing.add(rows)
        self._ongoing.go_on()

    def restart(self) -> None:
        """Start the query again, as after a crash: what is not finished is delivered."""
        self._current = self._ongoing
        self._ongoing.start()
        self._ongoing.go_on()

    @property
    def outcome(self) -> CrashOutcome:
        """What became of all events that were passed to `deliver`."""
        return self._ongoing.outcome(None)

    @property
    def delivered(self) -> list[EventName]:
        """The events that the ledger records as delivered, in the order of their delivery."""
        return self.outcome.delivered

    @property
    def parked(self) -> list[EventName]:
        """The events that surely did not arrive, and those that wait behind another one."""
        return self.outcome.parked

    @property
    def in_doubt(self) -> list[EventName]:
        """The events that may or may not have arrived."""
        return self.outcome.in_doubt

    @property
    def arrived(self) -> list[EventName]:
        """What is at the destination, in the order of arrival."""
        return self.outcome.arrived

    # -- a world for each step

    def crash_everywhere(self, *minibatches: InputRows) -> Iterator[CrashOutcome]:
        """Deliver the minibatches in one world for each step, in which the process crashes before
        or after that step; yield what became of them. In the first world nothing goes wrong.
        """
        return self._everywhere(minibatches, crashes=True)

    def fail_everywhere(self, *minibatches: InputRows) -> Iterator[CrashOutcome]:
        """Do the same without a crash: the request of a step is lost, or the reply to it."""
        return self._everywhere(minibatches, crashes=False)

    def remote(self, call: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """Return a call that is a step of its own. Wrap the method through which the sink reaches
        its destination: it then crashes and fails there as well.
        """
        title = name or getattr(call, "__qualname__", type(call).__name__)

        def stepped(*arguments: Any, **options: Any) -> Any:
            steps = self._current.steps
            return steps.take(f"{title}()", lambda: call(*arguments, **options))

        return stepped

    def close(self) -> None:
        """Close the ledger."""
        self._store.close()

    def _everywhere(
        self, minibatches: Sequence[InputRows], *, crashes: bool
    ) -> Iterator[CrashOutcome]:
        yield self._play(None, minibatches)
        for after in (False, True):
            number = 1
            outcome = self._play(PlannedFault(number, after, crashes), minibatches)
            while self._current.steps.struck is not None:
                yield outcome
                number += 1
                outcome = self._play(PlannedFault(number, after, crashes), minibatches)

    def _play(self, plan: PlannedFault | None, minibatches: Sequence[InputRows]) -> CrashOutcome:
        if self._reset is not None:
            self._reset()
        world = self._current = self._new_world(plan)
        for rows in minibatches:
            world.add(rows)
        return world.outcome(world.play())

    def _new_world(self, plan: PlannedFault | None) -> PipelineWorld:
        self._worlds += 1
        return PipelineWorld(
            self.sink,
            self.identity,
            self._partitions,
            self._store,
            f"test-{self._worlds}",
            NumberedSteps(plan),
            self._arrived,
            self._audit,
        )
