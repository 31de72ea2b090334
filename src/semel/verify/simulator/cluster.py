"""Spark, as far as a delivery can tell: runs, minibatches, tasks and attempts.

Always true:
- a minibatch is replayed under the same batch id with the same rows, cut into other Arrow batches;
- a report reaches the driver only from a task that came to its end, and only once for each
  partition;
- a process that died takes its handles with it; one that is paused keeps them, and goes on when it
  is woken.

A store in a dictionary, with the semantics of the real ones.

Always true:
- a commit happens as a whole or not at all; what it means is settled by `arrange`, as for every
  store;
- keys are ordered by their bytes: Python compares text by code points, which is the order of UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from semel.delivery.assignment import Assignment
from semel.delivery.driver import Driver
from semel.delivery.partition import PartitionDelivery
from semel.errors import (
    DeliveryError,
    Fenced,
    HeldInDoubt,
    LedgerUnavailable,
    SemelError,
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
    ParkedRow,
    PartitionRow,
    make_prefix,
)
from semel.ledger.store import Conflict, Key, arrange
from semel.protocol import PartitionState
from semel.runtime import Runtime
from semel.verify.simulator.faults import TWIN_PASSED, FaultyStore, Kind, Peace, Wire, over
from semel.verify.simulator.scheduler import VirtualClock
from semel.verify.simulator.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.ledger import OpenMinibatch, Report
    from semel.ledger.store import Payload, Requirement, Update
    from semel.runtime import Process
    from semel.verify.simulator.cases import Case
    from semel.verify.simulator.destinations import Destination
    from semel.verify.simulator.faults import Plan
    from semel.verify.simulator.inputs import Feed
    from semel.verify.simulator.scheduler import Actor, Hub, Job

PIPELINE = "world"
FAILURES_MAX = 4
"""So many failed tries at a stage fail the query, as `spark.task.maxFailures` has it."""


RETRIED = (Fenced, LedgerUnavailable, DeliveryError, ConnectionError, TimeoutError)
"""What a faulty world explains; anything else that stops a pipeline is a finding."""


class MemoryStore:
    """The ledger of one simulated world."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Payload]] = {}

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Give the rows that exist among `keys`."""
        found: dict[Key, Payload] = {}
        for key in keys:
            payload = self._tables.get(key.table, {}).get(key.key)
            if payload is not None:
                found[key] = payload
        return found

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Give the rows under `prefix` above `after`, in key order."""
        rows = self._tables.get(table)
        if not rows:
            return iter(())
        chosen = sorted(key for key in rows if key > after and key.startswith(prefix))
        return iter([(Key(table, key), rows[key]) for key in chosen[:limit]])

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Do all updates if all requirements hold; else `Conflict`."""
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
        """Nothing is open."""

    def rows(self) -> dict[Key, Payload]:
        """Give everything, to be compared or shown."""
        return {
            Key(table, key): payload
            for table, rows in sorted(self._tables.items())
            for key, payload in sorted(rows.items())
        }


@dataclass(eq=False)
class Machine:
    """One process with its connections: a driver, a Python worker, or a person's terminal."""

    actor: Actor
    wire: Wire
    client: LedgerClient
    journal: Journal


@dataclass(eq=False)
class Lead:
    """A driver that runs a query, and the run it has."""

    machine: Machine
    driver: Driver
    cases: tuple[Case, ...]
    tasks: Any = field(default_factory=lambda: count(1))


class Stopped(Exception):
    """The query failed and is to be started again; `person` says whether somebody has to look
    first.
    """

    def __init__(self, why: BaseException | None, *, person: bool = False) -> None:
        super().__init__(why)
        self.person = person


class Broken(Exception):
    """The pipeline stopped for a reason that no fault of this world explains."""


@dataclass(eq=False)
class Cluster:
    """Everything a world is made of, and the calls that make it go.

    Attributes:
        cases: the sinks that the pipeline ever has; `active` names those of the next start.
        partitions: over how many partitions the next start spreads entities.
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
    def destination(self) -> Destination:
        """What the first sink delivers to."""
        return self.destinations[self.case.name]

    # -- processes

    def machine(self, name: str, plan: Plan | None = None) -> Machine:
        """Start a process with its connections."""
        actor = self.hub.actor(name)
        wire = Wire(self.hub, actor, plan or self.plan, self.story, name)
        client = LedgerClient(FaultyStore(self.store, wire), PIPELINE, self.clock)
        made = Machine(actor, wire, client, Journal(client))
        self.machines.append(made)
        return made

    def _gone(self, process: Process) -> bool:
        return self.knows_the_dead and any(
            each.actor.dead for each in self.machines if each.actor.process == process
        )

    def worker(self) -> Machine:
        """Give a Python worker that is free, or start one."""
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
        """Let the driver do something. Raises `Stopped` when the query has to be started again."""
        job = self.hub.start(lead.machine.actor, lead.machine.wire.title, call)
        self.hub.run_job(job)
        if job.done and job.error is None:
            return job.result
        self.lead = None
        if job.paused or job.crashed:
            raise Stopped(job.error)
        raise self.judged(job)

    def judged(self, job: Job) -> Exception:
        """Say what the error of a job means for the query."""
        self.story.note(
            self.hub.now, job.title, ("stopped:", type(job.error).__name__), str(job.error)
        )
        if isinstance(job.error, HeldInDoubt):
            return Stopped(job.error, person=True)
        if isinstance(job.error, RETRIED):
            return Stopped(job.error)
        if isinstance(job.error, SemelError):
            return Broken(f"{type(job.error).__name__}: {job.error}")
        return Broken(f"{job.title}: {job.error!r}")

    # -- tasks

    def task(
        self, lead: Lead, opening: OpenMinibatch, partition: str, rows: tuple[int, int]
    ) -> Job:
        """Begin an attempt at one partition, in a worker."""
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
        """Make what an attempt does, from its first row to its report."""
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
        """Give every parked row of a sink, straight from the store."""
        rows = self.store.scan(PARKED_TABLE, make_prefix(PIPELINE, sink or self.case.name))
        return [ParkedRow.load(text, at) for at, text in rows]

    def pending(self, sink: str) -> list[str]:
        """Name the partitions that the ledger has half delivered to a sink, as far as it knows."""
        rows = [
            PartitionRow.load(text)
            for _, text in self.store.scan(STREAMS_TABLE, make_prefix(PIPELINE, sink))
        ]
        return [row.partition for row in rows if row.state is PartitionState.PENDING]

    def opened(self) -> OpenRow | None:
        """Give the minibatch that the ledger has open."""
        return next((OpenRow.load(text) for _, text in self.store.scan(OPEN_TABLE, "")), None)

    def newest(self) -> Minibatch:
        """Give the newest minibatch that the ledger has, also where one before it is run again."""
        opened = self.opened()
        if opened is None:
            return Minibatch(1, -1)
        return Minibatch(opened.minibatch.generation, opened.reached()[0])

    def generation(self) -> int:
        """Give the generation that the ledger has come to."""
        opened = self.opened()
        return 1 if opened is None else opened.minibatch.generation

    def findings(self) -> list[str]:
        """Say what happened that never may: an error that no fault explains, a twin that passed."""
        wild = [
            f"{job.title}: {job.error!r}"
            for job in self.hub.failed
            if isinstance(job.error, Conflict | HeadMoved)
            or not isinstance(job.error, (SemelError, *RETRIED))
        ]
        twins = [f"{who}: {told}" for _, who, _, told in self.story.steps if told == TWIN_PASSED]
        return wild + twins

    def person(self) -> Machine:
        """Somebody sits down at a terminal; nothing goes wrong there."""
        return self.machine("a person", Peace())
