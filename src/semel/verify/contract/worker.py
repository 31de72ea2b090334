"""One try at a minibatch, in a process of its own: what a driver and its tasks do, without Spark.

The real driver, the real delivery and a real ledger; the sink is the user's own, watched.
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
from semel.verify.contract.faults import Desk, Fault
from semel.verify.contract.instrumented import WatchedStore, watched_sink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from semel.events import Given, Position
    from semel.ledger import OpenMinibatch, Report
    from semel.sinks import Sink

_OFFSET = struct.Struct("d")


class SharedClock:
    """A clock that all processes of a play share: long waits pass quickly, for everybody.

    A wait for calls whose caller is gone takes `settles_s` of real time, which is what the
    destination gets to come to an end with them; a pause before the next try is shorter. The rest
    is skipped.
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
        """Seconds, with what was skipped."""
        return self._clock.monotonic() + self._offset()

    def wall(self) -> float:
        """Seconds since 1970, with what was skipped."""
        return self._clock.wall() + self._offset()

    def sleep(self, seconds: float) -> None:
        """Wait a little, and skip the rest."""
        longest = self._settles_s if seconds >= self._deadline_s else self.PAUSE_S
        really = min(seconds, longest)
        self._clock.sleep(really)
        self.skip(seconds - really)

    def skip(self, seconds: float) -> None:
        """Let time have passed."""
        _OFFSET.pack_into(self._skipped, 0, self._offset() + max(seconds, 0.0))

    def _offset(self) -> float:
        skipped: float = _OFFSET.unpack_from(self._skipped, 0)[0]
        return skipped


@dataclass(frozen=True)
class Order:
    """What a process is to do.

    Attributes:
        folder: of the play: ledger, clock, and what its processes leave for each other.
        number: of the process within the play.
        opens: whether it begins a run of its own; else it joins the last one that began.
        task: Spark's task attempt id.
        batches: the rows it delivers, by partition.
        completes: whether it completes the minibatch, also from the reports of others of the run.
        rejects: events that are refused, whatever the destination says.
        drains: whether what is parked and free to go is sent first, however long that takes.
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
    fault: Fault | None = None

    @property
    def log(self) -> Path:
        """Where it writes down what it does."""
        return self.folder / f"{self.number}.log"

    @property
    def ledger(self) -> Path:
        """The ledger of the play."""
        return self.folder / "ledger.db"

    @property
    def clock(self) -> Path:
        """The time of the play."""
        return self.folder / "clock"


def run(order: Order, sink: Sink) -> None:
    """Do what is ordered, and write down how it ended."""
    desk = Desk(order.fault, order.log)
    try:
        _deliver(order, sink, desk)
    except BaseException as error:  # noqa: BLE001 - the judge says what it means
        desk.say(error=type(error).__name__, why=str(error)[:2_000])
    else:
        desk.say(ended=True)


def _deliver(order: Order, sink: Sink, desk: Desk) -> None:
    clock = SharedClock(order.clock, order.settles_s, order.deadline_s)
    store = WatchedStore(SqliteStore(order.ledger), desk)
    # Its ledger is away for so many tries, however long they take: nothing is waited for.
    client = LedgerClient(store, order.pipeline, SharedClock(order.clock, 0.0, 0.0))
    runtime = Runtime(clock, Random(order.number))
    watched = watched_sink(sink, desk, order.rejects)
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
    """Leave the reports of a partition for whoever completes the minibatch."""
    run = opening.row.run
    _write(order.folder / f"report-{run}-{_number(partition)}", pickle.dumps(reports))


def _number(partition: str) -> int:
    """Give the number of a bucket (`0of2`) or of a source partition (`payments/0`)."""
    return int(partition.rpartition("/")[2].partition("of")[0])


def _reports(order: Order, opening: OpenMinibatch) -> list[Report]:
    found: list[Report] = []
    for path in sorted(order.folder.glob(f"report-{opening.row.run}-*")):
        found += pickle.loads(path.read_bytes())  # noqa: S301 - our own
    return found


def _write(place: Path, content: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    aside = place.with_name(f"{place.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(place)
