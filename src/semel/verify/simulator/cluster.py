"""A simulated Spark cluster and ledger store: runs, minibatches, tasks and attempts.

Always true of the cluster:
- a minibatch is replayed under the same batch id with the same rows, in other Arrow batches;
- a report reaches the driver only from a task that ended, and only once for each partition;
- a process that died loses its connections; a paused one keeps them and continues when woken.

Always true of the store, which is a dictionary with the semantics of the real ones:
- a commit happens as a whole or not at all, as `arrange` defines it for every store;
- keys are ordered by their bytes: Python compares text by code points, as UTF-8 does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.errors import (
    DeliveryError,
    Fenced,
    HeldInDoubt,
    LedgerUnavailable,
    SemelError,
    StopRequested,
)
from semel.events import Attempt, Minibatch
from semel.ledger import (
    OPEN_TABLE,
    PARKED_TABLE,
    STREAMS_TABLE,
    HeadMoved,
    Journal,
    LedgerClient,
    OpenRow,
    Owners,
    ParkedRow,
    PartitionRow,
    make_prefix,
)
from semel.ledger.store import Conflict, Key, arrange
from semel.protocol import PartitionState
from semel.runtime import Runtime
from semel.verify.simulator.faults import TWIN_PASSED, FaultyStore, FaultyWire, Kind, NoFaults, over
from semel.verify.simulator.scheduler import VirtualClock
from semel.verify.simulator.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.ledger import OpenMinibatch, Report
    from semel.ledger.store import Payload, Requirement, Update
    from semel.runtime import Process
    from semel.verify.simulator.cases import Case
    from semel.verify.simulator.destinations import SimulatedDestination
    from semel.verify.simulator.faults import Plan
    from semel.verify.simulator.inputs import Feed
    from semel.verify.simulator.scheduler import Actor, Hub, Job

PIPELINE = "world"
FAILURES_MAX = 4
"""The number of failed tasks that fails the query, as `spark.task.maxFailures` does."""


RETRIED = (Fenced, LedgerUnavailable, DeliveryError, ConnectionError, TimeoutError)
"""Errors that injected faults explain; any other error that stops a pipeline is a finding."""


class MemoryStore:
    """The ledger of one simulated world."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Payload]] = {}

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Return the rows that exist among `keys`."""
        found: dict[Key, Payload] = {}
        for key in keys:
            payload = self._tables.get(key.table, {}).get(key.key)
            if payload is not None:
                found[key] = payload
        return found

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Return the rows under `prefix` above `after`, in key order."""
        rows = self._tables.get(table)
        if not rows:
            return iter(())
        chosen = sorted(key for key in rows if key > after and key.startswith(prefix))
        return iter([(Key(table, key), rows[key]) for key in chosen[:limit]])

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Make all updates if all requirements hold. Raises `Conflict`."""
        arranged = arrange(requirements, updates)
        for required in arranged.equals:
            found = self._tables.get(required.key.table, {}).get(required.key.key)
            if found != required.payload:
                raise Conflict(required.key)
        for absent in sorted(arranged.absent):
            if absent.key in self._tables.get(absent.table, ()):
                raise Conflict(absent)
        for sweep in arranged.sweeps:
            rows = self._tables.get(sweep.table, {})
            for key in [key for key in rows if key.startswith(sweep.prefix)]:
                del rows[key]
        for at, payload in arranged.writes.items():
            rows = self._tables.setdefault(at.table, {})
            if payload is None:
                rows.pop(at.key, None)
            else:
                rows[at.key] = payload

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def rows(self) -> dict[Key, Payload]:
        """Return all rows, to be compared or shown."""
        return {
            Key(table, key): payload
            for table, rows in sorted(self._tables.items())
            for key, payload in sorted(rows.items())
        }


@dataclass(eq=False)
class Machine:
    """One process with its connections: a driver, a Python worker, or a person's terminal."""

    actor: Actor
    wire: FaultyWire
    client: LedgerClient
    journal: Journal


@dataclass(eq=False)
class Lead:
    """A driver that runs a query, with its run."""

    machine: Machine
    driver: Driver
    cases: tuple[Case, ...]
    tasks: Any = field(default_factory=lambda: count(1))


class QueryStopped(Exception):
    """The query failed and must be started again; `person`: after a person has decided."""

    def __init__(self, why: BaseException | None, *, person: bool = False) -> None:
        super().__init__(why)
        self.person = person


class PipelineBroken(Exception):
    """The pipeline stopped for a reason that no injected fault explains."""


@dataclass(eq=False)
class Cluster:
    """The processes, the ledger and the destinations of a world, and the calls that drive them.

    Attributes:
        cases: all sinks that the pipeline ever has; `active` names those of the next start.
        partitions: the number of partitions of the next start.
    """

    cases: tuple[Case, ...]
    feed: Feed
    hub: Hub
    plan: Plan
    chance: Random | None = None
    knows_the_dead: bool = True
    query: str = "query-1"
    store: MemoryStore = field(default_factory=MemoryStore)
    story: Story = field(default_factory=Story)
    lead: Lead | None = None
    runs: Any = field(default_factory=lambda: count(1))
    attempts: int = 0

    def __post_init__(self) -> None:
        self.partitions = self.case.partitions
        self.active = {case.name for case in self.cases}
        self.destinations = {case.name: case.destination(self.hub) for case in self.cases}
        self.clock = VirtualClock(self.hub)
        self.runtime = Runtime(self.clock, Random(7), self._gone)
        self.machines: list[Machine] = []
        self._idle: list[Machine] = []

    @property
    def case(self) -> Case:
        """The pipeline, and the first of its sinks."""
        return self.cases[0]

    @property
    def destination(self) -> SimulatedDestination:
        """The destination of the first sink."""
        return self.destinations[self.case.name]

    # -- processes

    def machine(self, name: str, plan: Plan | None = None) -> Machine:
        """Start a process with its connections."""
        actor = self.hub.actor(name)
        wire = FaultyWire(self.hub, actor, plan or self.plan, self.story, name)
        client = LedgerClient(FaultyStore(self.store, wire), PIPELINE, self.clock)
        made = Machine(actor, wire, client, Journal(client))
        self.machines.append(made)
        return made

    def _gone(self, process: Process) -> bool:
        return self.knows_the_dead and any(
            each.actor.dead for each in self.machines if each.actor.process == process
        )

    def worker(self) -> Machine:
        """Return a free Python worker, or start one."""
        self._idle = [each for each in self._idle if not each.actor.dead]
        return self._idle.pop() if self._idle else self.machine("worker")

    # -- the driver's part

    def start(self) -> Lead:
        """Start the query: a new run."""
        number = next(self.runs)
        machine = self.machine(f"driver of start {number}")
        cases = tuple(case for case in self.cases if case.name in self.active)
        driver = Driver(
            machine.client,
            [case.sink(self.destinations[case.name], machine.wire) for case in cases],
            self.case.identities.identity,
            process=machine.actor.process,
            nonce=f"start-{number}",
            runtime=self.runtime,
            partitions=None if self.case.identities.by_source else self.partitions,
        )
        lead = Lead(machine, driver, cases)
        self.lead = lead
        run = self.drive(lead, driver.start)
        machine.wire.title = f"driver of run {run}"
        return lead

    def drive(self, lead: Lead, call: Callable[[], Any]) -> Any:
        """Run a call of the driver. Raises `QueryStopped` if the query must be started again."""
        job = self.hub.start(lead.machine.actor, lead.machine.wire.title, call)
        self.hub.run_job(job)
        if job.done and job.error is None:
            return job.result
        self.lead = None
        if job.paused or job.crashed:
            raise QueryStopped(job.error)
        raise self.judged(job)

    def judged(self, job: Job) -> Exception:
        """Return what the error of a job means for the query."""
        self.story.note(
            self.hub.now, job.title, ("stopped:", type(job.error).__name__), str(job.error)
        )
        if isinstance(job.error, HeldInDoubt):
            return QueryStopped(job.error, person=True)
        if isinstance(job.error, (*RETRIED, StopRequested)):
            return QueryStopped(job.error)
        if isinstance(job.error, SemelError):
            return PipelineBroken(f"{type(job.error).__name__}: {job.error}")
        return PipelineBroken(f"{job.title}: {job.error!r}")

    # -- tasks

    def task(
        self, lead: Lead, opening: OpenMinibatch, partition: str, rows: tuple[int, int]
    ) -> Job:
        """Start an attempt at one partition, in a worker."""
        machine = self.worker()
        attempt = Attempt(lead.driver.run, next(lead.tasks))
        title = f"attempt {attempt} of partition {partition}"
        machine.wire.title = title
        body = self.body(lead, opening, partition, rows, attempt, machine)

        def run() -> list[Report]:
            reports = body()
            self._idle.append(machine)
            return reports

        return self.hub.start(machine.actor, title, run)

    def body(
        self,
        lead: Lead,
        opening: OpenMinibatch,
        partition: str,
        rows: tuple[int, int],
        attempt: Attempt,
        machine: Machine,
    ) -> Callable[[], list[Report]]:
        """Return the function of an attempt, from its first row to its report."""
        self.attempts += 1
        wire = machine.wire
        window, span = self.case.window, self.case.span_chunks
        if self.chance is not None:
            window, span = self.chance.randint(1, window), self.chance.randint(1, 3)
        assignment = Assignment(
            PIPELINE,
            opening,
            self.case.identities.identity,
            partition,
            attempt,
            machine.actor.process,
            task=self.feed.partitions.index(partition),
            waited=lead.driver.waited,
        )
        sinks = [case.sink(self.destinations[case.name], wire, window, span) for case in lead.cases]
        batches = self.feed.batches(partition, *rows, self.chance)

        def run() -> list[Report]:
            wire.cut = False
            delivery = PartitionDelivery(
                assignment, sinks, machine.client, machine.journal, self.runtime
            )
            reports = delivery.run(over(wire, batches))
            wire.call(Kind.REPORT, ("report",), lambda: None)
            return reports

        return run

    def parked(self, sink: str | None = None) -> list[ParkedRow]:
        """Return every parked row of a sink, directly from the store."""
        rows = self.store.scan(PARKED_TABLE, make_prefix(PIPELINE, sink or self.case.name))
        return [ParkedRow.load(text, at) for at, text in rows]

    def pending(self, sink: str, minibatch: Minibatch) -> list[str]:
        """Return the partitions of a minibatch that are half delivered to a sink, by the ledger."""
        start = make_prefix(PIPELINE, sink, minibatch.generation, minibatch.batch)
        rows = [PartitionRow.load(text) for _, text in self.store.scan(STREAMS_TABLE, start)]
        return [row.partition for row in rows if row.state is PartitionState.PENDING]

    def opened(self) -> OpenRow | None:
        """Return the minibatch that is open in the ledger."""
        return next((OpenRow.load(text) for _, text in self.store.scan(OPEN_TABLE, "")), None)

    def newest(self) -> Minibatch:
        """Return the newest minibatch of the ledger, even if an earlier one is being run again."""
        opened = self.opened()
        if opened is None:
            return Minibatch(1, -1)
        return Minibatch(opened.minibatch.generation, opened.reached()[0])

    def generation(self) -> int:
        """Return the current generation of the ledger."""
        opened = self.opened()
        return 1 if opened is None else opened.minibatch.generation

    def findings(self) -> list[str]:
        """Return what must never happen: errors that no fault explains, repeated commits."""
        wild = [
            f"{job.title}: {job.error!r}"
            for job in self.hub.failed
            if isinstance(job.error, Conflict | HeadMoved)
            or not isinstance(job.error, (SemelError, *RETRIED))
        ]
        twins = [f"{who}: {how}" for _, who, _, how in self.story.steps if how == TWIN_PASSED]
        return wild + twins

    def ask_to_stop(self) -> None:
        """Ask the run that has the pipeline to stop, at once and without faults."""
        owners = Owners(LedgerClient(self.store, PIPELINE, self.clock))
        if owners.request_stop("a person") is not None:
            self.story.note(self.hub.now, "a person", ("asked the run to stop",))

    def person(self) -> Machine:
        """Start the terminal of a person, where no faults happen."""
        return self.machine("a person", NoFaults())
