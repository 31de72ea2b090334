"""One world of a pipeline under test: a ledger of its own, a clock that only skips, and runs.

A minibatch is delivered as in production: the driver opens it, each partition is delivered, the
driver completes it. A run that crashed or stopped is followed by the next, which begins with the
minibatch that was not finished, as Spark does.
"""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from semel.delivery import Assignment, Driver, PartitionDelivery, Runtime
from semel.errors import ConfigurationError, SemelError
from semel.events import Attempt, bucket, bucket_name, column, sort
from semel.ledger import Journal, Ledger, LedgerClient, read_parked
from semel.protocol import ParkedState
from semel.runtime import Process
from semel.testing.steps import NumberedSteps, ProcessCrashed, SteppedStore, stepped_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from semel.events import Event, EventID, Identity
    from semel.ledger import OpenMinibatch, Report
    from semel.ledger.store import Store
    from semel.sinks import AuditLog, Sink

    EventName: TypeAlias = tuple[str, EventID]
    """An event: its entity and its id."""
    InputRows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch

STARTS_MAX = 5
"""How often a query is started in one world before its error counts."""

RESTART_S = 60.0

_DOUBTED = frozenset(
    {
        ParkedState.HELD,
        ParkedState.SENDING,
        ParkedState.SKIPPED,
        ParkedState.RESENT,
        ParkedState.LATE,
    }
)


@dataclass(frozen=True)
class CrashOutcome:
    """What became of the events of one world. An event is a pair of its entity and its id.

    Attributes:
        where: what went wrong, and at which step.
        pipeline: the name of the pipeline of this world.
        delivered: the events that the ledger records as delivered, in the order of their delivery.
        parked: those that surely did not arrive, and those that wait behind another one.
        in_doubt: those that may or may not have arrived, whatever the policy did with them.
        arrived: what is at the destination, in the order of arrival.
        error: the error with which the query stops, however often it is started again.
        unrecorded: the events of which the ledger has no outcome, because the query stopped.
        steps: every step that was taken.
    """

    where: str
    pipeline: str
    delivered: list[EventName]
    parked: list[EventName]
    in_doubt: list[EventName]
    arrived: list[EventName]
    error: SemelError | None = None
    unrecorded: list[EventName] = field(default_factory=list)
    steps: list[str] = field(default_factory=list, repr=False)

    @property
    def lost(self) -> list[EventName]:
        """The events that are recorded as delivered and did not arrive, and those of which nothing
        is recorded although the query ended well.
        """
        there = set(self.arrived)
        missing = [event for event in self.delivered if event not in there]
        return missing if self.error is not None else missing + self.unrecorded

    @property
    def repeated(self) -> list[EventName]:
        """The events that arrived more than once."""
        return [event for event, times in Counts(self.arrived).items() if times > 1]

    @property
    def exactly_once(self) -> bool:
        """Whether every event is recorded as delivered and arrived once, and nothing else did."""
        others = self.parked or self.in_doubt or self.unrecorded
        once = Counts(self.arrived) == Counts(self.delivered)
        return once and not others and self.error is None


class SkippingClock:
    """A clock that moves only where production would wait: no test waits."""

    def __init__(self) -> None:
        self._now = 1_700_000_000.0

    def monotonic(self) -> float:
        """Return seconds."""
        return self._now

    def wall(self) -> float:
        """Return seconds since 1970."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Skip the time."""
        self._now += max(seconds, 0.0)


class _Input(NamedTuple):
    """One event as it was passed in; `scope` is what its id is unique within."""

    name: EventName
    scope: str
    minibatch: int


@dataclass
class PipelineWorld:
    """One pipeline, what was passed to it, and how far it came.

    Attributes:
        partitions: over how many partitions entities are spread; None for those of the source.
        arrived: returns what is at the destination; None counts the calls that returned.
    """

    sink: Sink
    identity: Identity
    partitions: int | None
    store: Store
    name: str
    steps: NumberedSteps
    arrived: Callable[[], Iterable[tuple[object, object]]] | None
    audit: AuditLog | None = None
    _clock: SkippingClock = field(default_factory=SkippingClock)
    _inputs: list[_Input] = field(default_factory=list)
    _minibatches: list[dict[str, pa.RecordBatch]] = field(default_factory=list)
    _done: int = 0
    _starts: int = 0
    _tasks: int = 0
    _counted: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _returned: list[EventName] = field(default_factory=list)
    _driver: Driver | None = None

    def __post_init__(self) -> None:
        self._stepped = stepped_sink(self.sink, self.steps, self._heard)
        self._before = 0 if self.arrived is None else len(list(self.arrived()))

    def _heard(self, event: Event) -> None:
        self._returned.append((event.entity, event.id))

    # -- what is delivered

    def add(self, rows: InputRows) -> None:
        """Take the rows of the next minibatch. Raises `ConfigurationError`."""
        batches = self._split(_as_batch(rows))
        for partition, batch in batches.items():
            last = self._counted.get(partition)
            stamper = self.identity.stamper(partition, last=last)
            stamped = stamper.stamp(batch)
            for at in range(len(stamped)):
                name = (stamped.entity(at), stamped.id(at))
                self._inputs.append(_Input(name, stamped.scope(at), len(self._minibatches)))
            if self.identity.assigns_ids:
                self._counted[partition] = stamper.state()
        self._minibatches.append(batches)

    def _split(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """Cut rows into partitions, each in its order, as Spark would."""
        if self.partitions is None:
            found: dict[str, list[pa.RecordBatch]] = {}
            for name, part in self.identity.split(batch):
                found.setdefault(name, []).append(part)
            merged = {
                name: pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
                for name, parts in found.items()
            }
            return {name: sort(part, self.identity) for name, part in merged.items()}
        entity = self.identity.entity
        if entity is None:
            raise AssertionError("an identity without the source's partitions names an entity")
        buckets = bucket(column(batch, entity), self.partitions)
        parts = {
            bucket_name(number, self.partitions): batch.filter(pa.array(buckets == number))
            for number in range(self.partitions)
        }
        return {name: sort(part, self.identity) for name, part in parts.items() if part.num_rows}

    # -- runs

    def play(self) -> SemelError | None:
        """Deliver everything, and start the query again after a crash or an error; return the error
        with which it stops for good.
        """
        error: SemelError | None = None
        for _ in range(STARTS_MAX):
            try:
                self.start()
                self.go_on()
            except ProcessCrashed:
                error = None
            except SemelError as stopped:
                error = stopped
                self._clock.sleep(RESTART_S)
            else:
                return None
        return error

    def start(self) -> None:
        """Start the query: a new run, in a process of its own."""
        self._starts += 1
        self.steps.restart()
        self._driver = Driver(
            self._client(),
            [self._stepped],
            self.identity,
            self._process(),
            f"{self.name}-{self._starts}",
            self._runtime(),
            self.partitions,
            audit=self.audit,
        )
        self._driver.start()

    def go_on(self) -> None:
        """Deliver what is not finished. Raises the error that stops the query."""
        if self._driver is None:
            self.start()
        driver = self._driver
        if driver is None:
            raise AssertionError("the query was started")
        while self._done < len(self._minibatches):
            self._minibatch(driver, self._done)
            self._done += 1
        driver.drain()

    def _minibatch(self, driver: Driver, number: int) -> None:
        opening = driver.begin("query", number)
        if opening.settled:
            driver.end(opening, [])
            return
        reports: list[Report] = []
        skipped, repeats = 0, Counts[str]()
        for task, (partition, batch) in enumerate(self._minibatches[number].items()):
            delivery = self._delivery(opening, driver, partition, task)
            reports += delivery.run([batch])
            skipped += delivery.skipped
            repeats.update(delivery.repeats)
        driver.end(opening, reports, skipped=skipped, repeats=repeats)

    def _delivery(
        self, opening: OpenMinibatch, driver: Driver, partition: str, task: int
    ) -> PartitionDelivery:
        self._tasks += 1
        client = self._client()
        assignment = Assignment(
            self.name,
            opening,
            self.identity,
            partition,
            Attempt(opening.row.run, self._tasks),
            self._process(),
            task,
            waited=driver.waited,
        )
        return PartitionDelivery(
            assignment,
            [self._stepped],
            client,
            Journal(client),
            self._runtime(),
            audit=self.audit,
        )

    def _client(self) -> LedgerClient:
        return LedgerClient(SteppedStore(self.store, self.steps), self.name, self._clock)

    def _runtime(self) -> Runtime:
        alive = self._process()
        return Runtime(self._clock, Random(self._starts), lambda process: process != alive)

    def _process(self) -> Process:
        return Process("test", "test", 1, f"{self.name}-{self._starts}")

    # -- what became of it

    def outcome(self, error: SemelError | None) -> CrashOutcome:
        """Compare what the ledger records with what is at the destination."""
        found: dict[str, list[EventName]] = {
            state: [] for state in ("delivered", "parked", "in_doubt", "unrecorded")
        }
        parked = {
            (row.entity, row.event): row.state
            for _, row, _ in read_parked(LedgerClient(self.store, self.name), self.sink.name)
        }
        for name, each in {each.name: each for each in self._inputs}.items():
            found[self._recorded(each, parked.get(name))].append(name)
        where = self.steps.struck or "nothing went wrong"
        return CrashOutcome(
            where,
            self.name,
            arrived=self._at_destination(),
            error=error,
            steps=[*self.steps.taken],
            **found,
        )

    def _recorded(self, event: _Input, parked: ParkedState | None) -> str:
        """Return what the ledger records of an event."""
        if parked is not None:
            if parked in _DOUBTED:
                return "in_doubt"
            return "delivered" if parked is ParkedState.DELIVERED else "parked"
        trace = Ledger(self.store).find(self.name, event.scope, event.name[1], self.sink.name)
        state = trace[0].state if trace else "not seen"
        if state == "in doubt":
            return "in_doubt"
        # Beyond a watermark is only an outcome if the minibatch is complete.
        complete = event.minibatch < self._done
        recorded = state == "delivered" or (state == "handled" and complete)
        return "delivered" if recorded else "unrecorded"

    def _at_destination(self) -> list[EventName]:
        if self.arrived is None:
            return [*self._returned]
        known = {(str(name[0]), str(name[1])): name for name in (at.name for at in self._inputs)}
        return [
            known.get((str(entity), str(event)), (str(entity), event))  # type: ignore[arg-type]
            for entity, event in list(self.arrived())[self._before :]
        ]


def _as_batch(rows: InputRows) -> pa.RecordBatch:
    """Return rows as one Arrow batch. Raises `ConfigurationError`."""
    if isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.Table):
        table = rows
    else:
        odd = {type(row).__name__ for row in rows if not isinstance(row, dict)}
        if odd:
            raise ConfigurationError(
                "rows must be a list of dicts, an Arrow table or an Arrow batch, got "
                f"{type(rows).__name__} with {', '.join(sorted(odd))}"
            )
        table = pa.Table.from_pylist([*rows])
    if not table.num_rows:
        raise ConfigurationError("rows must have at least one row, got none")
    return table.combine_chunks().to_batches()[0]
