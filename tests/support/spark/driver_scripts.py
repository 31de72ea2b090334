"""Runs driver scripts in processes of their own, so that they can be killed and started again.

Everything a driver starts ends with the test: see `semel.verify.process_group`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.events.event import EventID
from semel.verify.demo.charge_server import Charge, ChargeServer
from semel.verify.demo.standalone import python_workers, spark_environment
from semel.verify.process_group import ProcessGroup, command_of, descendants
from support.spark.positions_table import write_table
from support.spark.settings import Settings
from support.spark.version_needs import require

TESTS = Path(__file__).parents[2]
PATIENCE_S = 300.0

Name = tuple[str, EventID]


@dataclass(eq=False)
class Run:
    """One driver: its Python process, and below it the JVM and the workers."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def jvm(self) -> int | None:
        """The JVM of a classic session."""
        found = [pid for pid in descendants(self.pid) if "SparkSubmit" in command_of(pid)]
        return found[0] if found else None

    def workers(self) -> list[int]:
        """The Python workers of a local session."""
        return python_workers(self.pid)

    def below(self) -> list[int]:
        """The processes below the driver: the JVM and the Python workers."""
        return descendants(self.pid)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the driver's Python; its JVM notices when the pipe closes."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the driver's end: 0 when it finished, below 0 when a signal ended it."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not at its end after {timeout_s} s\n{self.said()}") from None

    def finished(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for a good end."""
        code = self.wait(timeout_s)
        assert code == 0, f"the driver ended with {code}\n{self.said()}"


@dataclass(eq=False)
class Bed:
    """A test bed: a witness, a folder, an input, and drivers that deliver from one to the other."""

    house: ChargeServer
    folder: Path
    group: ProcessGroup
    expected: list[Name] = field(default_factory=list)
    starts: int = 0

    # -- input

    @property
    def input(self) -> Path:
        return self.folder / "input"

    def payments(self, files: int = 3, rows: int = 10, customers: int = 4) -> None:
        """Add files of payments: a micro-batch each, in the order they were written."""
        self.input.mkdir(exist_ok=True)
        for _ in range(files):
            number = len(list(self.input.iterdir()))
            lines = []
            for payment in range(number * rows, (number + 1) * rows):
                customer = f"c{payment % customers}"
                self.expected.append((customer, payment))
                row = {"customer": customer, "payment_id": payment, "amount": payment % 100}
                lines.append(json.dumps(row))
            aside = self.folder / "aside.json"
            aside.write_text("\n".join(lines) + "\n")
            os.utime(aside, (number, 1_700_000_000 + number))
            aside.rename(self.input / f"payments-{number:04}.json")

    @property
    def table(self) -> Path:
        return self.folder / "positions.json"

    def positions(self, partitions: Mapping[int, Sequence[int]], topic: str = "t") -> None:
        """Write the table of positions: the offsets of each partition, as it is from now on."""
        rows = {
            number: [(offset, f"k{offset % 3}", offset * 10) for offset in offsets]
            for number, offsets in partitions.items()
        }
        write_table(self.table, rows, topic)
        self.expected = [
            (f"{topic}/{number}", offset)
            for number, offsets in partitions.items()
            for offset in offsets
        ]

    # -- drivers

    def settings(self, **changes: Any) -> Settings:
        """Return the settings of a driver; what is not named is as in most tests."""
        if changes.get("source") == "positions":
            require("positions")
        usual: dict[str, Any] = {
            "house": self.house.url,
            "input": str(self.table if changes.get("source") == "positions" else self.input),
            "checkpoint": str(self.folder / "checkpoint"),
            "ledger": f"sqlite:///{self.folder / 'ledger.db'}",
        }
        return Settings(**{**usual, **changes})

    def start(self, *settings: Settings | str, script: str = "support.spark.query_job") -> Run:
        """Start a driver and go on; some scripts run several queries, or take other words too."""
        self.starts += 1
        told = []
        for number, each in enumerate(settings):
            if isinstance(each, str):
                told.append(each)
                continue
            told.append(str(self.folder / f"settings-{self.starts}-{number}.json"))
            each.save(Path(told[-1]))
        log = self.folder / f"driver-{self.starts}.log"
        environment = spark_environment(self.group.folder, [TESTS])
        command = [sys.executable, "-m", script, *told]
        return Run(self.group.start(command, environment, log), log)

    def run(self, settings: Settings, timeout_s: float = PATIENCE_S) -> Run:
        """Start a driver and wait until everything is delivered."""
        run = self.start(settings)
        run.finished(timeout_s)
        return run

    def run_until_finished(
        self, settings: Settings, *, starts: int = 4, between: Callable[[], object] | None = None
    ) -> int:
        """Start a driver again each time a signal ended it; say how many starts it took."""
        for start in range(1, starts + 1):
            run = self.start(settings)
            code = run.wait()
            if code == 0:
                return start
            assert code < 0, f"the driver ended with {code}\n{run.said()}"
            if between is not None:
                between()
        raise AssertionError(f"not at its end after {starts} starts")

    def end_leftovers(self) -> None:
        """End what a killed driver left: its JVM and workers go on for a moment."""
        self.group.end()


def wait_for(what: Callable[[], Any], run: Run | None = None, timeout_s: float = 60.0) -> Any:
    """Wait until `what` gives something that is true, while the driver `run` lives; give it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended = run is not None and run.process.poll() is not None
        if found := what():
            return found
        assert not ended, f"the driver ended before it happened\n{run and run.said()}"
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {timeout_s} s\n{run and run.said()}")


def names(charges: Iterable[Charge]) -> list[Name]:
    """Give the events that were charged, in their order."""
    return [(charge.entity, charge.event) for charge in charges]


def repeated(charges: Iterable[Charge]) -> dict[Name, int]:
    """Give the events that were charged more than once, and how often."""
    return {name: count for name, count in Counter(names(charges)).items() if count > 1}


def missing(charges: Iterable[Charge], expected: Iterable[Name]) -> set[Name]:
    """Give the events that were not charged."""
    return set(expected) - set(names(charges))


def assert_once(charges: list[Charge], expected: Iterable[Name]) -> None:
    """Every expected event was charged once, and nothing else was."""
    assert repeated(charges) == {}
    assert missing(charges, expected) == set()
    assert set(names(charges)) == set(expected)


def assert_ordered(charges: Iterable[Charge]) -> None:
    """The events of an entity arrived in the order of their ids."""
    last: dict[str, Any] = {}
    for charge in charges:
        if charge.entity in last:
            assert last[charge.entity] < charge.event, f"{charge} came too late"
        last[charge.entity] = charge.event
