"""One attempt at a minibatch in a separate process: the work of a driver and its tasks, no Spark.

Driver, delivery and ledger are the real ones; the sink is the user's own, instrumented.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from semel.delivery import Assignment, Driver, PartitionDelivery, Runtime
from semel.events import Attempt
from semel.ledger import Journal, LedgerClient, Minibatches
from semel.ledger.store.sqlite import SqliteStore
from semel.runtime import Process, SystemClock
from semel.verify.contract.faults import FaultRecorder, SinkFault
from semel.verify.contract.instrumented import WatchedStore, watched_sink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from semel.events import Given, Position
    from semel.ledger import OpenMinibatch, Report
    from semel.sinks import Sink

_OFFSET = struct.Struct("d")


class SharedClock:
    """A clock that all processes of a scenario share: long waits pass quickly for all of them.

    A wait for calls whose caller is gone takes `settles_s` of real time, in which the destination
    can finish them; a pause before the next try is shorter. The rest is skipped.
    """

    PAUSE_S = 0.02

    def __init__(self, path: Path, settles_s: float, deadline_s: float) -> None:
        self._clock = SystemClock()
        self._settles_s = settles_s
        self._deadline_s = deadline_s
        if not path.exists():
            path.write_bytes(_OFFSET.pack(0.0))
        with path.open("r+b") as file:
            self._skipped = mmap.mmap(file.fileno(), _OFFSET.size)

    def monotonic(self) -> float:
        """Return seconds, including skipped time."""
        return self._clock.monotonic() + self._offset()

    def wall(self) -> float:
        """Return seconds since 1970, including skipped time."""
        return self._clock.wall() + self._offset()

    def sleep(self, seconds: float) -> None:
        """Wait briefly and skip the rest."""
        longest = self._settles_s if seconds >= self._deadline_s else self.PAUSE_S
        really = min(seconds, longest)
        self._clock.sleep(really)
        self.skip(seconds - really)

    def skip(self, seconds: float) -> None:
        """Skip time, for all processes."""
        _OFFSET.pack_into(self._skipped, 0, self._offset() + max(seconds, 0.0))

    def _offset(self) -> float:
        skipped: float = _OFFSET.unpack_from(self._skipped, 0)[0]
        return skipped


@dataclass(frozen=True)
class Order:
    """The work of one process.

    Attributes:
        folder: the folder of the scenario: ledger, clock, and files for other processes.
        number: the number of the process within the scenario.
        opens: whether it begins a new run; otherwise it joins the last one.
        task: Spark's task attempt id.
        batches: the rows to deliver, by partition.
        completes: whether it completes the minibatch, with the reports of all tasks of the run.
        rejects: events that the suite refuses without asking the destination.
        drains: whether it first sends resolved parked events, however long that takes.
    """

    folder: Path
    number: int
    pipeline: str
    identity: Given | Position
    settles_s: float
    deadline_s: float
    query: str = "first"
    batch: int = 0
    partitions: int = 1
    opens: bool = True
    task: int = 1
    batches: dict[str, pa.RecordBatch] = field(default_factory=dict)
    completes: bool = True
    rejects: frozenset[tuple[str, str]] = frozenset()
    drains: bool = False
    fault: SinkFault | None = None

    @property
    def log(self) -> Path:
        """The file of its record."""
        return self.folder / f"{self.number}.log"

    @property
    def ledger(self) -> Path:
        """The ledger of the scenario."""
        return self.folder / "ledger.db"

    @property
    def clock(self) -> Path:
        """The clock of the scenario."""
        return self.folder / "clock"


def run(order: Order, sink: Sink) -> None:
    """Carry out an order, and record how it ended."""
    recorder = FaultRecorder(order.fault, order.log)
    try:
        _deliver(order, sink, recorder)
    except BaseException as error:  # noqa: BLE001 - the judge decides what it means
        recorder.record(error=type(error).__name__, why=str(error)[:2_000])
    else:
        recorder.record(ended=True)


def _deliver(order: Order, sink: Sink, recorder: FaultRecorder) -> None:
    clock = SharedClock(order.clock, order.settles_s, order.deadline_s)
    store = WatchedStore(SqliteStore(order.ledger), recorder)
    # The ledger is down for a number of tries, however long they take: no time is waited.
    client = LedgerClient(store, order.pipeline, SharedClock(order.clock, 0.0, 0.0))
    runtime = Runtime(clock, Random(order.number))
    watched = watched_sink(sink, recorder, order.rejects)
    with ExitStack() as stack:
        stack.callback(store.close)
        nonce = f"{order.pipeline}-{order.number}"
        driver = Driver(
            client, [watched], order.identity, Process.here(), nonce, runtime, order.partitions
        )
        opening = _opened(order, driver)
        for partition, batch in order.batches.items():
            assignment = Assignment(
                pipeline=order.pipeline,
                opening=opening,
                identity=order.identity,
                partition=partition,
                attempt=Attempt(opening.row.run, order.task),
                process=Process.here(),
                task=_number(partition),
            )
            delivery = PartitionDelivery(assignment, [watched], client, Journal(client), runtime)
            _leave(order, partition, opening, delivery.run([batch]))
        if order.completes:
            driver.end(opening, _reports(order, opening))


def _opened(order: Order, driver: Driver) -> OpenMinibatch:
    """Begin a run and open the minibatch, or join the run that did."""
    place = order.folder / "opening"
    if not order.opens:
        joined: OpenMinibatch = pickle.loads(place.read_bytes())  # noqa: S301 - our own
        driver.run = joined.row.run
        driver._minibatches = Minibatches(driver.client, driver.run)  # noqa: SLF001 - the same run
        return joined
    driver.start()
    if order.drains:
        driver.drain(waits=True)
    opening = driver.begin(order.query, order.batch)
    _write(place, pickle.dumps(opening))
    return opening


def _leave(order: Order, partition: str, opening: OpenMinibatch, reports: list[Report]) -> None:
    """Write the reports of a partition for the process that completes the minibatch."""
    run = opening.row.run
    _write(order.folder / f"report-{run}-{_number(partition)}", pickle.dumps(reports))


def _number(partition: str) -> int:
    """Return the number of a bucket (`0of2`) or of a source partition (`payments/0`)."""
    return int(partition.rpartition("/")[2].partition("of")[0])


def _reports(order: Order, opening: OpenMinibatch) -> list[Report]:
    found: list[Report] = []
    for path in sorted(order.folder.glob(f"report-{opening.row.run}-*")):
        found += pickle.loads(path.read_bytes())  # noqa: S301 - our own
    return found


def _write(place: Path, content: bytes) -> None:
    """Write a file atomically."""
    aside = place.with_name(f"{place.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(place)
