"""Measures Kafka to Kafka: Spark with semel against Flink's exactly-once, on the same topic.

Always true: both copy the same records between topics of the same broker, with two tasks, in turns;
what counts is what a consumer sees that reads as `read_committed`. A rate is all records over the
time from the first that was appended until the last is visible, so that neither's start counts.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.bench.kafka_broker import KafkaBroker, fetched
from semel.bench.rows import Row, compared
from semel.errors import ConfigurationError
from semel.ledger.clock import SystemClock
from semel.sinks.kafka import Kafka
from semel.sinks.kafka.records import STAMPS
from semel.spark.deliver import deliver
from semel.spark.session import make_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLOCK = SystemClock()

RECORDS = 1_000_000
REPETITIONS = 3
PARTITIONS = 2
VALUE_BYTES = 100
INTERVAL_MS = 1_000
"""How often Flink checkpoints, and so commits."""

RATE = 1_000
LATENCY_S = 20.0
FLINK = "2.3.0"
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Copy:
    """A copy from topic to topic that is under way: how to end it, and what is wrong with it."""

    end: Callable[[], object]
    trouble: Callable[[], object]

    def check(self) -> None:
        """Raise what is wrong, if anything is."""
        wrong = self.trouble()
        if wrong:
            raise RuntimeError(f"the copy ended: {wrong}")


@dataclass
class Bench:
    """One broker and one session in which both sides take turns."""

    broker: KafkaBroker
    spark: Any
    folder: Path
    say: Callable[[str], None]
    repetitions: int = REPETITIONS
    records: int = RECORDS
    latency_s: float = LATENCY_S
    _number: int = field(default=0, init=False)

    def topic(self) -> str:
        """A topic whose records carry the time of the broker."""
        return self.broker.create_topic(
            partitions=PARTITIONS, message_timestamp_type="LogAppendTime"
        )

    def fill(self) -> str:
        """A topic full of records."""
        from confluent_kafka import Producer

        topic = self.topic()
        producer = Producer(
            {"bootstrap.servers": self.broker.servers, "queue.buffering.max.messages": 1_000_000}
        )
        value = b"x" * VALUE_BYTES
        for start in range(0, self.records, 50_000):
            several = range(start, min(start + 50_000, self.records))
            producer.produce_batch(
                topic, [{"key": b"%d" % (n % 10_000), "value": value} for n in several]
            )
            producer.flush()
        return topic

    # -- the two sides

    def semel(self, given: str, taken: str, *, stamps: tuple[str, ...], bounded: bool) -> Copy:
        """Start a copy by Spark and semel."""
        self._number += 1
        frame = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.broker.servers)
            .option("subscribe", given)
            .option("startingOffsets", "earliest")
            .load()
            .select("topic", "partition", "offset", "key", "value")
        )
        sink = Kafka(
            name="taken",
            servers=self.broker.servers,
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
        ).option("checkpointLocation", str(self.folder / f"checkpoint-{self._number}"))
        if bounded:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        return Copy(query.stop, query.exception)

    def flink(self, given: str, taken: str, *, bounded: bool) -> Copy:
        """Start a copy by Flink; it ends with us, because it listens on a pipe."""
        self._number += 1
        told = {
            "servers": self.broker.servers,
            "given": given,
            "taken": taken,
            "jar": str(next(fetched("flink").glob("*.jar"))),
            "folder": str(self.folder / f"flink-{self._number}"),
            "interval_ms": INTERVAL_MS,
            "bounded": bounded,
        }
        said = self.folder / f"flink-{self._number}.log"
        script = str(Path(__file__).with_name("flink_job.py"))
        with said.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own words
                [str(flink_python()), "-P", script, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_without_spark(),
            )

        def end() -> None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()

        def trouble() -> str | None:
            return said.read_text(errors="replace")[-2000:] if process.poll() else None

        return Copy(end, trouble)

    # -- what a consumer sees

    def rate(self, start: Callable[[str, str], Copy]) -> float:
        """Records per second of one copy."""
        given, taken = self.fill(), self.topic()
        copy = start(given, taken)
        try:
            first, seen = None, 0
            ends = CLOCK.monotonic() + PATIENCE_S
            for at, messages in self._seen(taken, copy):
                stamps = [message.timestamp()[1] / 1000 for message in messages]
                first = min([*stamps, *([] if first is None else [first])], default=None)
                seen += len(messages)
                if seen >= self.records:
                    return seen / (at - (first or at))
                if CLOCK.monotonic() > ends:
                    break
        finally:
            copy.end()
            for topic in (given, taken):
                self.broker.delete_topic(topic)
        raise TimeoutError(f"{seen:,} of {self.records:,} records in {PATIENCE_S:g} s")

    def latency(self, start: Callable[[str, str], Copy]) -> float:
        """Median milliseconds from the producer's clock until a record is visible."""
        given, taken = self.topic(), self.topic()
        copy = start(given, taken)
        stop = threading.Event()
        thread = threading.Thread(target=self._produce, args=(given, stop), daemon=True)
        thread.start()
        found: list[float] = []
        try:
            warm, ends = None, CLOCK.monotonic() + PATIENCE_S
            for at, messages in self._seen(taken, copy):
                if messages and warm is None:
                    warm = at + self.latency_s / 2  # the first half warms up
                if warm is not None and at > warm:
                    found += [(at - float(message.value())) * 1000 for message in messages]
                if (
                    warm is not None and at > warm + self.latency_s / 2
                ) or CLOCK.monotonic() > ends:
                    break
        finally:
            stop.set()
            thread.join()
            copy.end()
        return statistics.median(found)

    def _produce(self, topic: str, stop: threading.Event) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.broker.servers, "linger.ms": 0})
        while not stop.wait(0.01):
            for number in range(RATE // 100):
                producer.produce(topic, repr(CLOCK.wall()).encode(), b"%d" % number)
            producer.poll(0)
        producer.flush()

    def _seen(self, topic: str, copy: Copy) -> Iterator[tuple[float, list[Any]]]:
        """What becomes visible, with the time when it was seen."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.servers,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 5,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            while True:
                first = consumer.poll(0.2)
                more = consumer.consume(50_000, 0.0) if first is not None else []
                messages = [*([first] if first is not None else []), *more]
                if not messages:
                    copy.check()
                yield CLOCK.wall(), [each for each in messages if each.error() is None]
        finally:
            consumer.close()

    def pairs(
        self, what: str, ours: Callable[[], float], theirs: Callable[[], float]
    ) -> list[tuple[float, float]]:
        """Let both sides take turns; the first pair warms up and does not count."""
        pairs = []
        for turn in range(self.repetitions + 1):
            self.say(f"{what}: {turn} of {self.repetitions}")
            pairs.append((ours(), theirs()))
        return pairs[1:]


def flink_python() -> Path:
    """The Python of a venv with Flink in it, made once in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel"
    folder = cache / f"flink-{FLINK}"
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        environment = {name: each for name, each in os.environ.items() if "CONSTRAINT" not in name}
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", f"apache-flink=={FLINK}"],
        ):
            done = subprocess.run(  # noqa: S603 - our own words
                command, capture_output=True, text=True, check=False, env=environment
            )
            if done.returncode:
                raise ConfigurationError(f"Flink could not be installed: {done.stderr[-2000:]}")
        (folder / "whole").touch()
    return python


def _without_spark() -> dict[str, str]:
    hidden = ("PYSPARK", "SPARK_", "PYTHONPATH", "FLINK_")
    return {name: each for name, each in os.environ.items() if not name.startswith(hidden)}


def measure(
    say: Callable[[str], None] = lambda _: None,
    repetitions: int = REPETITIONS,
    records: int = RECORDS,
    latency_s: float = LATENCY_S,
) -> list[Row]:
    """Run everything; give the rows of the table."""
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    flink_python()
    broker = KafkaBroker(heap="1g")
    jars = ",".join(map(str, sorted(fetched("spark").glob("*.jar"))))
    spark = make_session(
        "semel bench kafka", settings={"spark.jars": jars, "spark.driver.memory": "2g"}
    )
    try:
        bench = Bench(broker, spark, folder, say, repetitions, records, latency_s)
        return [*throughput(bench), *visibility(bench)]
    finally:
        spark.stop()
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)


def throughput(bench: Bench) -> list[Row]:
    """Records per second, with semel's headers and without any, as Flink has none."""
    made = []
    for what, stamps in (("no headers", ()), ("with semel's four headers; peer without", STAMPS)):
        pairs = bench.pairs(
            f"Kafka to Kafka, {what}",
            lambda stamps=stamps: bench.rate(  # type: ignore[misc]
                lambda given, taken: bench.semel(given, taken, stamps=stamps, bounded=True)
            ),
            lambda: bench.rate(lambda given, taken: bench.flink(given, taken, bounded=True)),
        )
        made.append(compared(f"Kafka to Kafka, {what}; peer: Flink exactly-once", pairs, "rec/s"))
    return made


def visibility(bench: Bench) -> list[Row]:
    """How long it takes until a record is visible, at a steady rate."""
    pairs = bench.pairs(
        "time until visible",
        lambda: bench.latency(
            lambda given, taken: bench.semel(given, taken, stamps=STAMPS, bounded=False)
        ),
        lambda: bench.latency(lambda given, taken: bench.flink(given, taken, bounded=False)),
    )
    what = f"until a record is visible, {RATE:,}/s; peer: Flink, checkpoint every {INTERVAL_MS} ms"
    return [compared(what, pairs, "ms")]


if __name__ == "__main__":
    for row in measure(print, *map(int, sys.argv[1:])):
        print(row)
