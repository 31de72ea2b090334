"""The two sides of the Kafka benchmark: copies from topic to topic, by Spark with semel, by Flink.

Always true: both keep one JVM for all their copies, both have two tasks, and producers with the
same `linger.ms` and `batch.size`. Flink ends with us, because it listens on a pipe.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environments import python_with
from semel.runtime import SystemClock
from semel.sinks import Kafka
from semel.spark.deliver import deliver
from semel.verify.servers.kafka import fetched

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = SystemClock()
FLINK = "2.3.0"
INTERVAL_MS = 1_000
"""How often Flink checkpoints, and so commits."""

ENDS_WITHIN_S = 60.0


@dataclass(frozen=True)
class RunningCopy:
    """A copy that is under way: how to end it, and what is wrong with it."""

    end: Callable[[], object]
    trouble: Callable[[], object]

    def check(self) -> None:
        """Raise what is wrong, if anything is."""
        wrong = self.trouble()
        if wrong:
            raise RuntimeError(f"the copy ended: {wrong}")


@dataclass
class WithSemel:
    """Copies by a Spark session and semel."""

    spark: Any
    servers: str
    folder: Path
    _number: int = field(default=0, init=False)

    def start(
        self, given: str, taken: str, *, stamps: tuple[str, ...], bounded: bool
    ) -> RunningCopy:
        """Start a copy; with semel's headers, or fewer."""
        frame = self._given(given).select("topic", "partition", "offset", "key", "value")
        sink = Kafka(
            name="taken",
            servers=self.servers,
            topic=taken,
            key="key",
            value="value",
            stamps=stamps,
        )
        writer = deliver(
            frame,
            to=sink,
            name=f"bench-{self._number}",
            identity="position",
            ledger=f"sqlite:///{self.folder}/ledger-{self._number}.db",
        )
        return self._started(writer, bounded=bounded)

    def start_plain(self, given: str, taken: str) -> RunningCopy:
        """Start a bounded copy by Spark's own sink, which promises at-least-once."""
        frame = self._given(given).select("key", "value")
        writer = (
            frame.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("kafka.linger.ms", 5)
            .option("kafka.batch.size", 1_000_000)
            .option("topic", taken)
        )
        return self._started(writer, bounded=True)

    def _given(self, topic: str) -> Any:
        self._number += 1
        return (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )

    def _started(self, writer: Any, *, bounded: bool) -> RunningCopy:
        writer = writer.option(
            "checkpointLocation", str(self.folder / f"checkpoint-{self._number}")
        )
        if bounded:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        return RunningCopy(query.stop, query.exception)


class WithFlink:
    """Copies by Flink, in one process of its own."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers, self._folder = servers, folder
        self._number = 0
        self._said = folder / "flink.log"
        jar = next(fetched("flink").glob("*.jar"))
        python = python_with(f"flink-{FLINK}", f"apache-flink=={FLINK}")
        with self._said.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                [str(python), "-P", str(Path(__file__).with_name("flink_job.py"))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us
                env={**_without_spark(), "HADOOP_CLASSPATH": str(jar)},
            )

    def start(self, given: str, taken: str, *, bounded: bool) -> RunningCopy:
        """Start a copy."""
        self._number += 1
        told = {
            "servers": self._servers,
            "given": given,
            "taken": taken,
            "folder": str(self._folder / f"flink-{self._number}"),
            "interval_ms": INTERVAL_MS,
            "bounded": bounded,
        }
        self._tell(json.dumps(told))
        return RunningCopy(self._end, self._trouble)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is None:
            raise AssertionError("it has a pipe")
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _end(self) -> None:
        if self._process.poll() is not None:
            return
        self._tell("end")
        ends = CLOCK.monotonic() + ENDS_WITHIN_S
        while self.log().count("\nended\n") < self._number and CLOCK.monotonic() < ends:
            if self._process.poll() is not None:
                return
            CLOCK.sleep(0.05)

    def log(self) -> str:
        """Give what it has written."""
        return "\n" + self._said.read_text(errors="replace")

    def _trouble(self) -> str | None:
        return self.log()[-2000:] if self._process.poll() is not None else None


def _without_spark() -> dict[str, str]:
    hidden = ("PYSPARK", "SPARK_", "PYTHONPATH", "FLINK_")
    return {name: each for name, each in os.environ.items() if not name.startswith(hidden)}
