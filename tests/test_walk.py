"""How far a reader has to walk: the files that one micro-batch crosses below Spark.

Counted with `sys.setprofile` for `Driver` and `PartitionDelivery`: four events, OPAQUE, a window of
two, SQLite. A *move* is a call or a return from one file of semel to another; threads that begin on
the way are counted too. The limits are the design's: a change that walks farther finds another way,
or shortens the walk elsewhere.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pyarrow as pa
import pytest

import semel
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Event, Given
from semel.ledger import Journal, LedgerClient, Report, open_store
from semel.runtime import Process, Runtime, SystemClock

SRC = str(Path(semel.__file__).parent)

CLEAN_FILES_MAX = 36
CLEAN_MOVES_MAX = 500
RECOVERY_FILES_MAX = 38

CROSSED_ALWAYS = {
    "delivery/partition.py",
    "delivery/strategies/intent.py",
    "events/rows.py",
    "ledger/client.py",
    "ledger/store/sqlite.py",
    "ledger/verbs/partitions.py",
    "sinks/function.py",
}
"""A walk without one of these was not counted."""

MOST = int(os.environ.get("SEMEL_WALK_PAIRS", "5"))
"""How many of the pairs of files with the most moves are printed."""


class Walk:
    """The files that were crossed, and how often the walk went from one to another."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.pairs: Counter[tuple[str, ...]] = Counter()
        self._last = ""

    @property
    def moves(self) -> int:
        return self.pairs.total()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        at = frame if event == "call" else frame.f_back
        while at is not None and not at.f_code.co_filename.startswith(SRC):
            at = at.f_back
        if at is None:
            return
        name = at.f_code.co_filename[len(SRC) + 1 :]
        self.files.add(name)
        if name != self._last:
            self.pairs[tuple(sorted((name, self._last)))] += 1
        self._last = name

    def show(self, capsys: pytest.CaptureFixture[str], what: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{what} crosses {len(self.files)} files in {self.moves} moves\n")
            for pair, count in self.pairs.most_common(MOST):
                sys.stdout.write(f"{count:6} {' - '.join(pair)}\n")


@contextmanager
def on(walk: Walk | None) -> Iterator[None]:
    before = sys.getprofile()
    threads_before = threading.getprofile()
    threading.setprofile(walk or threads_before)
    sys.setprofile(walk or before)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(threads_before)


class Pipeline:
    """A driver and tasks of one partition, on a SQLite ledger."""

    def __init__(self, folder: Path, send: Callable[[Event], None]) -> None:
        self.sink = semel.sink(window=2, name="out", lease_s=1, deadline_s=1)(send)
        self.client = LedgerClient(open_store(f"sqlite:///{folder}/ledger.db"), "walk")
        self.identity = Given(entity="c", event=("id",))
        self.process = Process.here()
        self.runtime = Runtime(SystemClock(), Random(1), lambda _: True)
        self.starts = 0

    def deliver(self, whole: Walk | None = None, task: Walk | None = None) -> None:
        """Deliver four events as one minibatch, as Spark's driver and one task would."""
        self.starts += 1
        driver = Driver(
            self.client,
            [self.sink],
            self.identity,
            self.process,
            f"start {self.starts}",
            self.runtime,
            partitions=1,
        )
        driver.start()
        with on(whole):
            opening = driver.begin("query", 0)
            attempt = Attempt(driver.run, self.starts)
            assignment = Assignment(
                "walk", opening, self.identity, "0of1", attempt, self.process, 0
            )
            with on(task):
                reports = self._run(assignment)
            driver.end(opening, reports)

    def _run(self, assignment: Assignment) -> list[Report]:
        journal = Journal(self.client)
        delivery = PartitionDelivery(assignment, [self.sink], self.client, journal, self.runtime)
        rows = {"c": ["a", "a", "b", "b"], "id": [1, 2, 3, 4]}
        return delivery.run([pa.RecordBatch.from_pydict(rows)])


def test_a_clean_micro_batch_crosses_few_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Event] = []
    walk = Walk()
    Pipeline(tmp_path, sent.append).deliver(whole=walk)
    assert len(sent) == 4
    walk.show(capsys, "a clean micro-batch")
    assert CROSSED_ALWAYS | {"delivery/driver.py", "ledger/verbs/complete.py"} <= walk.files
    assert len(walk.files) <= CLEAN_FILES_MAX, sorted(walk.files)
    assert walk.moves <= CLEAN_MOVES_MAX


def test_the_task_of_a_recovery_crosses_few_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    sent: list[Event] = []

    def send(event: Event) -> None:
        sent.append(event)
        if len(sent) == 3:
            raise Killed

    pipeline = Pipeline(tmp_path, send)
    with pytest.raises(Killed):
        pipeline.deliver()
    walk = Walk()
    pipeline.deliver(task=walk)
    assert len(sent) == 3  # the third and the fourth are in doubt, and held
    walk.show(capsys, "the task of a recovery")
    assert CROSSED_ALWAYS | {"ledger/verbs/parked.py"} <= walk.files
    assert len(walk.files) <= RECOVERY_FILES_MAX, sorted(walk.files)


def test_a_walk_counts_files_and_moves() -> None:
    def go() -> None:
        for _ in range(3):
            SystemClock().wall()
            Process.here()
            semel.errors.plain_text("x")

    walk = Walk()
    with on(walk):
        go()
    assert walk.files == {"runtime.py", "errors.py"}
    assert walk.moves == 6  # into the first file, and five times to the other
    go()
    assert walk.moves == 6

    threaded = Walk()
    with on(threaded):
        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
    assert threaded.files == walk.files
