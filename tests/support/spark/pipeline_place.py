"""A folder with a pipeline file, and the processes that run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.sinks.files import read
from semel.verify.demo.standalone import spark_environment
from semel.verify.process_group import ProcessGroup
from support.spark.driver_scripts import Run

COMMAND = (sys.executable, "-c", "from semel.cli.main import main; main()")
TIMEOUT_S = 120.0


CHARGE = """
import os
import time

import semel


@semel.sink(window=1)
def charge(event):
    folder = os.environ["SEMEL_TEST_FOLDER"]
    if os.environ.get("REFUSES"):
        raise semel.Rejected("the bank is closed")
    open(f"{folder}/called-by-{os.environ['SEMEL_TEST_RUN']}", "a").close()
    time.sleep(float(os.environ.get("SLOW_S", "0")))
    with open(f"{folder}/charged.txt", "a") as book:
        book.write(f"{event.id}\\n")
    open(f"{folder}/charged-by-{os.environ['SEMEL_TEST_RUN']}", "a").close()
"""

SLOW_CHARGES = """
[pipeline]
name = "charges"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/charges"
partitions = 2

[source]
format = "json"
schema = "customer string, payment_id bigint, amount bigint"
options = { path = "payments", maxFilesPerTrigger = 1 }

[identity]
entity = "customer"
event = "payment_id"

[[sinks]]
type = "own_sinks:charge"
"""


@dataclass
class PipelinePlace:
    """A folder with a pipeline file, and the processes that run it."""

    folder: Path
    group: ProcessGroup
    variables: Mapping[str, str] = field(default_factory=dict)
    customers: int = 5
    command: tuple[str, ...] = COMMAND
    runs: list[Run] = field(default_factory=list)
    fed: int = 0
    ledger: str = ""

    def __post_init__(self) -> None:
        self.ledger = self.ledger or f"sqlite:///{self.folder}/charges.db"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the processes; sinks write into the folder that one of them names."""
        own = {"SEMEL_TEST_FOLDER": str(self.folder)}
        return {**spark_environment(self.group.folder), **own, **self.variables}

    def start(self, *arguments: str, command: tuple[str, ...] = ()) -> Run:
        """Start the command `semel`, or another one."""
        log = self.folder / f"run-{len(self.runs)}.log"
        line = [*(command or self.command), *arguments]
        environment = {**self.environment, "SEMEL_TEST_RUN": log.stem}
        run = Run(self.group.start(line, environment, log), log)
        self.runs.append(run)
        return run

    def write(self, name: str, text: str) -> Path:
        """Write a pipeline file, and the module of its sink beside it."""
        (self.folder / "own_sinks.py").write_text(CHARGE)
        (self.folder / name).write_text(text)
        return self.folder / name

    def semel(self, *arguments: str) -> str:
        """Run a command to its end; return what it prints."""
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def semel_fails(self, *arguments: str) -> str:
        """Run a command that has to fail; return its errors."""
        done = self._run(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def payments(self, files: int, rows: int, within: str = "payments") -> list[int]:
        """Write files of payments; return their ids."""
        (self.folder / within).mkdir()
        for number in range(files):
            ids = range(number * rows, (number + 1) * rows)
            (self.folder / within / f"{number:04}.json").write_text(self._lines(ids))
        return list(range(files * rows))

    def more_payments(self, rows: int, within: str = "payments") -> list[int]:
        """Write one more file of payments, whole at once; return their ids."""
        first, self.fed = self.fed, self.fed + rows
        ids = range(first, self.fed)
        written = self.folder / f"{first:08}.writing"
        written.write_text(self._lines(ids))
        (self.folder / within).mkdir(exist_ok=True)
        written.rename(self.folder / within / f"more-{first:08}.json")
        return list(ids)

    def _lines(self, ids: range) -> str:
        rows = [
            {"customer": self.customer(each), "payment_id": each, "amount": each % 9 + 1}
            for each in ids
        ]
        return "".join(f"{json.dumps(row)}\n" for row in rows)

    def customer(self, payment: int) -> str:
        """The customer of a payment."""
        return f"c{payment % self.customers}"

    def delivered(self, url: str, pipeline: str = "charges", sink: str = "files") -> list[int]:
        """The ids that a sink of files holds, each as often as it is there."""
        place = self.folder / url / pipeline / sink
        if not (place / "_manifests").is_dir():
            return []
        return [each for table in read(str(place)) for each in table["payment_id"].to_pylist()]

    def charged(self) -> list[int]:
        """The ids that the function wrote down."""
        book = self.folder / "charged.txt"
        return [int(each) for each in book.read_text().split()] if book.exists() else []

    def has_called(self, run: Run) -> bool:
        """Whether the function was called by a run, which was started here."""
        return (self.folder / f"called-by-{run.log.stem}").exists()

    def has_charged(self, run: Run) -> bool:
        """Whether a call of the function by a run has ended."""
        return (self.folder / f"charged-by-{run.log.stem}").exists()

    def status(self, pipeline: str) -> dict[str, Any]:
        """What `semel status` says of the sinks, by name."""
        found = json.loads(self.semel("status", pipeline, "--ledger", self.ledger, "--json"))
        return {each["sink"]: each for each in found["sinks"]}
