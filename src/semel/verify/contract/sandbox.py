"""The sandbox of one scenario: its ledger, its clock, its rows and its processes.

Always true:
- a scenario has its own entities and pipeline, so that scenarios cannot be confused;
- every process leaves a record of what it did, even if it is killed.
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
    from semel.verify.contract.faults import SinkFault
    from semel.verify.contract.forkserver import ForkServer
    from semel.verify.contract.rows import MinibatchRows, Pair

CUSTOMERS = ("a", "b", "c")
IDS = range(1, 4)
NEXT = range(4, 6)
LAST = range(6, 8)
"""The event ids of each entity in the first, second and third minibatch of a scenario."""

LARGEST = 100
"""The number of names that are tried, enough for every partition to get some."""

TRIES = 6
PATIENCE_S = 60.0
LOCKED_S = 2.0
"""How long a stopped process may block another before it is woken."""

BROKEN_BY = ("Fenced", "Diverged", "ConfigurationError", "HeldInDoubt", "AssertionError")
"""Errors that a replay ends with only if the sink breaks its contract."""


class Stuck(SemelError):
    """A replay never completes, so nothing can be judged; `blames`: the sink is at fault."""

    def __init__(self, message: str, *, blames: bool) -> None:
        super().__init__(message)
        self.blames = blames


@dataclass
class ProcessRecord:
    """The record that one process wrote."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether it finished its work."""
        return any("ended" in line for line in self.lines)

    @property
    def error(self) -> tuple[str, str] | None:
        """The error that stopped it."""
        found = [(line["error"], line["why"]) for line in self.lines if "error" in line]
        return found[-1] if found else None

    @property
    def fault(self) -> str | None:
        """The fault that was injected."""
        return next((line["fault"] for line in self.lines if "fault" in line), None)

    @property
    def shut(self) -> int | None:
        """How many connections were cut; None if none was to be cut."""
        found = [line["shut"] for line in self.lines if "shut" in line]
        return sum(found) if found else None

    def count(self, where: Where) -> int:
        """Return how many steps of a kind it reached."""
        return sum(where.value in line for line in self.lines)

    def kinds(self) -> list[str]:
        """Return the kinds of its commits."""
        return [line["kind"] for line in self.lines if Where.COMMIT.value in line]

    def took(self) -> list[float]:
        """Return how long its calls took."""
        return [line["took"] for line in self.lines if "took" in line]

    def wrong(self) -> list[str]:
        """Return the contradictions in the answers of its sessions."""
        return [line["wrong"] for line in self.lines if "wrong" in line]


@dataclass
class SandboxProcess:
    """One process of a scenario."""

    sandbox: Sandbox
    order: Order
    pid: int

    def wait(self) -> ProcessRecord:
        """Wait until it is stopped or has ended, and read its record."""
        state = self.sandbox.fork_server.wait(self.pid, PATIENCE_S)
        if not state.stopped and not state.ended:
            self.sandbox.fork_server.signal(self.pid, signal.SIGKILL)
            raise Stuck(f"a process did not end within {PATIENCE_S:g} s", blames=False)
        return self.record()

    def wake(self) -> ProcessRecord:
        """Continue it after a stop, and wait for its end."""
        self.sandbox.fork_server.signal(self.pid, signal.SIGCONT)
        return self.wait()

    def record(self) -> ProcessRecord:
        """Read the record that it has written so far."""
        log = self.order.log
        text = log.read_text() if log.exists() else ""
        return ProcessRecord([json.loads(line) for line in text.splitlines()])


@dataclass
class Sandbox:
    """The methods that a scenario is written with."""

    fork_server: ForkServer
    sink: Sink
    maker: Maker
    folder: Path
    name: str
    settles_s: float
    partitions: int = 1
    processes: list[SandboxProcess] = field(default_factory=list)
    delivered: dict[tuple[str, int], MinibatchRows] = field(default_factory=dict)
    zombies: list[SandboxProcess] = field(default_factory=list)
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
        """Return entities that no other scenario has."""
        return [f"{self.name}{name}" for name in names]

    def make(self, table: pa.Table) -> MinibatchRows:
        """Return the rows of a minibatch."""
        return self.maker.rows(table, self.partitions)

    def ordinary(self, ids: Iterable[int] = IDS, names: Iterable[str] = CUSTOMERS) -> MinibatchRows:
        """Return ordinary rows."""
        make = logged if self.maker.by_position else payments
        return self.make(make(self.customers(names), ids))

    def wide(self, calls: int) -> MinibatchRows:
        """Return rows of enough entities that some can continue when every event of one call, after
        `calls - 1` others, is held in doubt.
        """
        if self.sink.capability is not Capability.OPAQUE:
            return self.ordinary()
        window = self.sink.chunk_rows * self.sink.span_chunks
        count = max(len(CUSTOMERS), calls * window + 1)
        return self.ordinary(range(1, 3), [f"n{at:05}" for at in range(count)])

    def spread(self) -> MinibatchRows:
        """Return rows with several calls in every partition."""
        names: dict[int, list[str]] = {number: [] for number in range(self.partitions)}
        for at in range(LARGEST):
            name = f"n{at}"
            [number] = bucket(pa.array(self.customers([name])), self.partitions)
            if len(names[int(number)]) < len(CUSTOMERS):
                names[int(number)].append(name)
        return self.ordinary(names=[name for each in names.values() for name in each])

    def next_minibatch(self, rows: MinibatchRows) -> None:
        """Continue with the next minibatch."""
        self.batch += 1
        self.rows = rows

    def lose_checkpoint(self, rows: MinibatchRows) -> None:
        """Continue as Spark does without its checkpoint: a new query, from its first minibatch."""
        self.query, self.batch, self.rows = "second", 0, rows

    # -- processes

    def start(self, fault: SinkFault | None = None, **others: Any) -> SandboxProcess:
        """Start a process at the current minibatch; by default it opens, delivers and completes."""
        self.delivered[self.query, self.batch] = self.rows
        order = Order(
            folder=self.folder,
            number=len(self.processes) + 1,
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
        process = SandboxProcess(self, order, self.fork_server.fork(order))
        self.processes.append(process)
        return process

    def run(self, fault: SinkFault | None = None, **others: Any) -> ProcessRecord:
        """Start a process and wait for its end."""
        return self.start(fault, **others).wait()

    def stop(self, fault: SinkFault, **others: Any) -> SandboxProcess:
        """Start a process that its fault stops, and wait until it is stopped."""
        process = self.start(fault, **others)
        process.wait()
        self.zombies.append(process)
        return process

    def replace(self, zombie: SandboxProcess, **others: Any) -> None:
        """Let another process do the work of a stopped one, which may hold a lock."""
        process = self.start(**others)
        if not self.fork_server.wait(process.pid, LOCKED_S).ended:
            self.fork_server.signal(zombie.pid, signal.SIGCONT)
        process.wait()

    def finish(self, **others: Any) -> None:
        """Replay the minibatch until it is complete, as Spark and a restarted query would."""
        record = ProcessRecord()
        for _ in range(TRIES):
            record = self.run(**others)
            if record.ended:
                return
        kind, why = record.error or ("", "it ended without an error message")
        blames = kind in BROKEN_BY
        raise Stuck(f"the replay never completes: {kind}: {why}", blames=blames)

    # -- the ledger

    def _client(self) -> LedgerClient:
        store = SqliteStore(self.folder / "ledger.db")
        return LedgerClient(store, f"contract-{self.name}", self.clock)

    def parked(self) -> list[ParkedRow]:
        """Read the parked rows."""
        client = self._client()
        try:
            return [row for _, row, _ in read_parked(client, self.sink.name)]
        finally:
            client.store.close()

    def resend(self) -> list[Pair]:
        """Decide, as a person would, that rejected events are sent again."""
        client = self._client()
        sent: list[Pair] = []
        try:
            for at, row, _ in read_parked(client, self.sink.name):
                if row.state is ParkedState.REJECTED:
                    resolve_parked(client, self.sink.name, at, ParkedState.RESEND, "suite", "fixed")
                    sent.append((row.entity, str(row.event)))
        finally:
            client.store.close()
        self.rejects -= set(sent)
        self.resent |= set(sent)
        self.clock.skip(self.sink.lease_s + self.sink.deadline_s)
        return sent

    # -- records

    def records(self) -> list[ProcessRecord]:
        """Read the records of all processes."""
        return [process.record() for process in self.processes]

    def story(self) -> list[str]:
        """Return what happened, one line for each process."""
        lines = []
        for number, process in enumerate(self.processes, 1):
            record = process.record()
            how = "it finished" if record.ended else "it ended there"
            if record.error is not None:
                how = f"{record.error[0]}: {record.error[1]}"
            lines.append(f"process {number}: {record.fault or 'no fault'}; {how}")
        return lines

    @property
    def disturbances(self) -> int:
        """How often a fault may have come between an effect and its record."""
        return sum(record.fault is not None or not record.ended for record in self.records())
