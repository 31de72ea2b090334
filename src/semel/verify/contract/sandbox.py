"""The stage of one play: its ledger, its clock, its rows and its processes.

Always true:
- a play has entities and a pipeline of its own, so that nothing of another can be taken for its;
- every process leaves a record of what it did, whatever became of it.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import SemelError
from semel.events import bucket
from semel.ledger import LedgerClient, read_parked, resolve_parked
from semel.ledger.store.sqlite import SqliteStore
from semel.protocol import Capability, ParkedState
from semel.verify.contract.faults import Where
from semel.verify.contract.rows import Maker, logged, payments
from semel.verify.contract.worker import Order, SharedClock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from semel.ledger import ParkedRow
    from semel.sinks import Sink
    from semel.verify.contract.faults import Fault
    from semel.verify.contract.forkserver import Nursery
    from semel.verify.contract.rows import Pair, Rows

CUSTOMERS = ("a", "b", "c")
IDS = range(1, 4)
NEXT = range(4, 6)
LAST = range(6, 8)
"""The event ids of each entity in the first minibatch of a play, the next and the one after."""

LARGEST = 100
"""Among so many names every partition has some."""

TRIES = 6
PATIENCE_S = 60.0
LOCKED_S = 2.0
"""How long a stopped process may be in the way of another before it is woken."""

BROKEN_BY = ("Fenced", "Diverged", "ConfigurationError", "HeldInDoubt", "AssertionError")
"""Errors that a replay only ends with when the sink does not keep its contract."""


class Stuck(SemelError):
    """A replay does not come to its end, so nothing can be judged; the sink is to blame or not."""

    def __init__(self, message: str, *, blames: bool) -> None:
        super().__init__(message)
        self.blames = blames


@dataclass
class Record:
    """What one process wrote down."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether it did all it was to do."""
        return any("ended" in line for line in self.lines)

    @property
    def error(self) -> tuple[str, str] | None:
        """What stopped it."""
        found = [(line["error"], line["why"]) for line in self.lines if "error" in line]
        return found[-1] if found else None

    @property
    def fault(self) -> str | None:
        """The fault that happened to it."""
        return next((line["fault"] for line in self.lines if "fault" in line), None)

    @property
    def shut(self) -> int | None:
        """How many connections were cut; None where none was to be."""
        found = [line["shut"] for line in self.lines if "shut" in line]
        return sum(found) if found else None

    def count(self, where: Where) -> int:
        """How many of a kind it came to."""
        return sum(where.value in line for line in self.lines)

    def kinds(self) -> list[str]:
        """What its commits were."""
        return [line["kind"] for line in self.lines if Where.COMMIT.value in line]

    def took(self) -> list[float]:
        """How long its calls took."""
        return [line["took"] for line in self.lines if "took" in line]

    def wrong(self) -> list[str]:
        """What its sessions answered that contradicts itself."""
        return [line["wrong"] for line in self.lines if "wrong" in line]


@dataclass
class Actor:
    """One process of a play."""

    stage: Stage
    order: Order
    pid: int

    def wait(self) -> Record:
        """Wait until it is stopped or has ended, and read what it wrote down."""
        state = self.stage.nursery.wait(self.pid, PATIENCE_S)
        if not state.stopped and not state.ended:
            self.stage.nursery.signal(self.pid, signal.SIGKILL)
            raise Stuck(f"a process did not end within {PATIENCE_S:g} s", blames=False)
        return self.record()

    def wake(self) -> Record:
        """Continue it after it was stopped, and wait for its end."""
        self.stage.nursery.signal(self.pid, signal.SIGCONT)
        return self.wait()

    def record(self) -> Record:
        """Read what it wrote down so far."""
        log = self.order.log
        text = log.read_text() if log.exists() else ""
        return Record([json.loads(line) for line in text.splitlines()])


@dataclass
class Stage:
    """What a play is made with."""

    nursery: Nursery
    sink: Sink
    maker: Maker
    folder: Path
    name: str
    settles_s: float
    partitions: int = 1
    actors: list[Actor] = field(default_factory=list)
    delivered: dict[tuple[str, int], Rows] = field(default_factory=dict)
    zombies: list[Actor] = field(default_factory=list)
    rejects: set[Pair] = field(default_factory=set)
    refusable: set[Pair] = field(default_factory=set)
    resent: set[Pair] = field(default_factory=set)
    query: str = "first"
    batch: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.clock = SharedClock(self.folder / "clock", self.settles_s, self.sink.deadline_s)
        self.rows = self.ordinary()

    # -- rows

    def customers(self, names: Iterable[str] = CUSTOMERS) -> list[str]:
        """Give entities that no other play has."""
        return [f"{self.name}{name}" for name in names]

    def make(self, table: pa.Table) -> Rows:
        """Make the rows of a minibatch."""
        return self.maker.rows(table, self.partitions)

    def ordinary(self, ids: Iterable[int] = IDS, names: Iterable[str] = CUSTOMERS) -> Rows:
        """Make ordinary rows."""
        make = logged if self.maker.by_position else payments
        return self.make(make(self.customers(names), ids))

    def wide(self, calls: int) -> Rows:
        """Make rows of so many entities that some are left to go on with when every event of one
        call, after `calls - 1` others, is held in doubt.
        """
        if self.sink.capability is not Capability.OPAQUE:
            return self.ordinary()
        window = self.sink.chunk_rows * self.sink.span_chunks
        count = max(len(CUSTOMERS), calls * window + 1)
        return self.ordinary(range(1, 3), [f"n{at:05}" for at in range(count)])

    def spread(self) -> Rows:
        """Make rows of which every partition has several calls."""
        names: dict[int, list[str]] = {number: [] for number in range(self.partitions)}
        for at in range(LARGEST):
            name = f"n{at}"
            [number] = bucket(pa.array(self.customers([name])), self.partitions)
            if len(names[int(number)]) < len(CUSTOMERS):
                names[int(number)].append(name)
        return self.ordinary(names=[name for each in names.values() for name in each])

    def next_minibatch(self, rows: Rows) -> None:
        """Go on to the next minibatch."""
        self.batch += 1
        self.rows = rows

    def lose_checkpoint(self, rows: Rows) -> None:
        """Go on as Spark does without its checkpoint: another query, from its first minibatch."""
        self.query, self.batch, self.rows = "second", 0, rows

    # -- processes

    def start(self, fault: Fault | None = None, **others: Any) -> Actor:
        """Start a process at the current minibatch; by itself it opens, delivers and completes."""
        self.delivered[self.query, self.batch] = self.rows
        order = Order(
            folder=self.folder,
            number=len(self.actors) + 1,
            pipeline=f"contract-{self.name}",
            identity=self.maker.identity,
            settles_s=self.settles_s,
            deadline_s=self.sink.deadline_s,
            query=self.query,
            batch=self.batch,
            partitions=self.partitions,
            batches=self.rows.batches,
            rejects=frozenset(self.rejects),
            fault=fault,
        )
        order = replace(order, **others)
        actor = Actor(self, order, self.nursery.fork(order))
        self.actors.append(actor)
        return actor

    def run(self, fault: Fault | None = None, **others: Any) -> Record:
        """Start a process and wait for its end."""
        return self.start(fault, **others).wait()

    def stop(self, fault: Fault, **others: Any) -> Actor:
        """Start a process that is stopped by its fault, and wait until it is."""
        actor = self.start(fault, **others)
        actor.wait()
        self.zombies.append(actor)
        return actor

    def replace(self, zombie: Actor, **others: Any) -> None:
        """Let another process do the work of a stopped one, which may hold a lock in its way."""
        actor = self.start(**others)
        if not self.nursery.wait(actor.pid, LOCKED_S).ended:
            self.nursery.signal(zombie.pid, signal.SIGCONT)
        actor.wait()

    def finish(self, **others: Any) -> None:
        """Replay the minibatch until it is complete, as Spark and whoever restarts it would."""
        record = Record()
        for _ in range(TRIES):
            record = self.run(**others)
            if record.ended:
                return
        kind, why = record.error or ("", "it ended without a word")
        blames = kind in BROKEN_BY
        raise Stuck(f"the replay does not come to its end: {kind}: {why}", blames=blames)

    # -- the ledger

    def _client(self) -> LedgerClient:
        store = SqliteStore(self.folder / "ledger.db")
        return LedgerClient(store, f"contract-{self.name}", self.clock)

    def parked(self) -> list[ParkedRow]:
        """Read what is parked."""
        client = self._client()
        try:
            return [row for _, row, _ in read_parked(client, self.sink.name)]
        finally:
            client.store.close()

    def resend(self) -> list[Pair]:
        """Say, as a person would, that what was rejected is to be sent again."""
        client = self._client()
        sent: list[Pair] = []
        try:
            for at, row, _ in read_parked(client, self.sink.name):
                if row.state is ParkedState.REJECTED:
                    resolve_parked(
                        client, self.sink.name, at, ParkedState.RESEND, "suite", "mended"
                    )
                    sent.append((row.entity, str(row.event)))
        finally:
            client.store.close()
        self.rejects -= set(sent)
        self.resent |= set(sent)
        self.clock.skip(self.sink.lease_s + self.sink.deadline_s)
        return sent

    # -- what is known of it

    def records(self) -> list[Record]:
        """Read what every process wrote down."""
        return [actor.record() for actor in self.actors]

    def story(self) -> list[str]:
        """Tell what happened, a line for each process."""
        told = []
        for number, actor in enumerate(self.actors, 1):
            record = actor.record()
            how = "it came to its end" if record.ended else "it ended there"
            if record.error is not None:
                how = f"{record.error[0]}: {record.error[1]}"
            told.append(f"process {number}: {record.fault or 'no fault'}; {how}")
        return told

    @property
    def disturbances(self) -> int:
        """How often something may have come between an effect and its record."""
        return sum(record.fault is not None or not record.ended for record in self.records())
