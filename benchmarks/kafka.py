"""Measures Kafka to Kafka: Spark with semel against Flink's exactly-once, on the same topic.

Always true: both copy the same records between topics of the same broker, with two tasks,
interleaved; what counts is what `read_committed` shows. A rate is all records over the
time from the first that was appended until the last is visible, so that neither's start counts; who
looks asks for offsets only, and reads and counts the records once they are there.
"""

from __future__ import annotations

import statistics
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.kafka_copies import INTERVAL_MS, WithFlink, WithSemel
from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds, session
from benchmarks.rows import Comparison, compared
from semel.runtime import SystemClock
from semel.sinks.kafka.records import STAMPS
from semel.verify.servers.kafka import KafkaBroker, fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.kafka_copies import RunningCopy
    from benchmarks.progress import BenchmarkProgress

CLOCK = SystemClock()

RECORDS = 500_000
REPETITIONS = 3
LENGTH = Length(sides=6, run_s=15.0)
PARTITIONS = 2
VALUE_BYTES = 100
RATE = 1_000
LATENCY_S = 12.0
PATIENCE_S = 600.0
LOOK_S = 0.02
STILL_S = 3.0
"""So long nothing has to come before all is there: longer than any side waits between commits."""


@dataclass
class KafkaBenchmark:
    """One broker at which both sides alternate."""

    broker: KafkaBroker
    semel: WithSemel
    flink: WithFlink
    say: BenchmarkProgress
    repetitions: int = REPETITIONS
    records: int = RECORDS
    latency_s: float = LATENCY_S

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

    def rate(self, start: Callable[[str], RunningCopy]) -> float:
        """Records per second of one copy."""
        taken = self.topic()
        copy = start(taken)
        try:
            seen, ends = 0, CLOCK.monotonic() + PATIENCE_S
            while CLOCK.monotonic() < ends:
                at = self._still_since(taken, copy)
                first, seen = self._read(taken, copy)
                if seen == self.records:
                    return seen / (at - first)
                if seen > self.records:
                    raise AssertionError(f"{seen:,} of {self.records:,} records are there")
        finally:
            copy.end()
            self.broker.delete_topic(taken)
        raise TimeoutError(f"{seen:,} of {self.records:,} records in {PATIENCE_S:g} s")

    def _still_since(self, topic: str, copy: RunningCopy) -> float:
        """Wait until nothing more becomes visible, and say since when. Only offsets are asked for:
        a consumer that reads along takes from both sides' two cores.
        """
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]
        asked = admin.AdminClient({"bootstrap.servers": self.broker.servers})
        wanted = {TopicPartition(topic, number): spec.latest() for number in range(PARTITIONS)}
        visible, since = 0, CLOCK.wall()
        while visible < self.records or CLOCK.wall() - since < STILL_S:
            told = asked.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
            now = sum(each.result().offset for each in told.values())
            if now != visible:
                visible, since = now, CLOCK.wall()
            if CLOCK.wall() - since > PATIENCE_S:
                break
            copy.check()
            CLOCK.sleep(LOOK_S)
        return since

    def _read(self, topic: str, copy: RunningCopy) -> tuple[float, int]:
        """When the first record was appended, and how many are visible."""
        first, seen, at_last = float("inf"), 0, CLOCK.wall()
        for at, messages in self._seen(topic, copy):
            if messages:
                at_last, seen = at, seen + len(messages)
                first = min(first, *(message.timestamp()[1] / 1000 for message in messages))
            elif at - at_last > STILL_S:
                break
        return first, seen

    def latency(self, start: Callable[[str, str], RunningCopy]) -> tuple[float, float]:
        """Milliseconds from the producer's clock until a record is visible: median and p99."""
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
                over = warm is not None and at > warm + self.latency_s / 2
                if over or CLOCK.monotonic() > ends:
                    break
        finally:
            stop.set()
            thread.join()
            copy.end()
        return statistics.median(found), statistics.quantiles(found, n=100)[98]

    def _produce(self, topic: str, stop: threading.Event) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.broker.servers, "linger.ms": 0})
        while not stop.wait(0.01):
            for number in range(RATE // 100):
                producer.produce(topic, repr(CLOCK.wall()).encode(), b"%d" % number)
            producer.poll(0)
        producer.flush()

    def _seen(self, topic: str, copy: RunningCopy) -> Iterator[tuple[float, list[Any]]]:
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


def measure(
    say: BenchmarkProgress,
    repetitions: int = REPETITIONS,
    records: int = RECORDS,
    latency_s: float = LATENCY_S,
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    say("fetching Kafka's and Flink's jars, and starting")
    jars = ",".join(map(str, sorted(fetched("spark").glob("*.jar"))))
    settings = {"spark.jars": jars, "spark.driver.memory": "2g"}
    with (
        folder() as place,
        closing(KafkaBroker(heap="1g")) as broker,
        closing(WithFlink(broker.servers, place)) as flink,
        say.leaves({"broker.log": broker.log, "flink.log": flink.log}),
        session("kafka", settings) as spark,
    ):
        semel = WithSemel(spark, broker.servers, place)
        bench = KafkaBenchmark(broker, semel, flink, say, repetitions, records, latency_s)
        return [*throughput(bench), *visibility(bench)]


def throughput(bench: KafkaBenchmark) -> list[Comparison]:
    """Records per second, with semel's headers and without any, as Flink has none."""
    given = bench.fill()

    def semel(stamps: Sequence[str]) -> float:
        return bench.rate(
            lambda taken: bench.semel.start(given, taken, stamps=tuple(stamps), bounded=True)
        )

    bare, stamped, peer, plain = "semel", "semel with headers", "Flink", "Spark's own sink"
    found = rounds(
        bench.say,
        "copy",
        bench.repetitions,
        {
            bare: lambda: semel(()),
            stamped: lambda: semel(STAMPS),
            peer: lambda: bench.rate(lambda taken: bench.flink.start(given, taken, bounded=True)),
            plain: lambda: bench.rate(lambda taken: bench.semel.start_plain(given, taken)),
        },
        "rec/s",
    )
    bench.broker.delete_topic(given)
    pairs = {name: list(zip(found[name], found[peer], strict=True)) for name in (bare, stamped)}
    by_spark = list(zip(found[bare], found[plain], strict=True))[1:]
    return [
        compared("copy, no headers; peer: Flink exactly-once", pairs[bare][1:], "rec/s"),
        compared(
            "copy, semel's four headers; peer: Flink exactly-once, none",
            pairs[stamped][1:],
            "rec/s",
        ),
        compared(
            "copy, no headers; peer: Spark's own Kafka sink, at-least-once", by_spark, "rec/s"
        ),
        compared("copy, no headers, the first of both JVMs (one pair)", pairs[bare][:1], "rec/s"),
    ]


def visibility(bench: KafkaBenchmark) -> list[Comparison]:
    """How long it takes until a record is visible, at a steady rate."""
    found = rounds(
        bench.say,
        "time until visible",
        bench.repetitions,
        {
            "semel": lambda: bench.latency(
                lambda given, taken: bench.semel.start(given, taken, stamps=STAMPS, bounded=False)
            ),
            "Flink": lambda: bench.latency(
                lambda given, taken: bench.flink.start(given, taken, bounded=False)
            ),
        },
        "ms",
    )
    peer = f"at {RATE:,} rec/s; peer: Flink, checkpoints every {INTERVAL_MS:,} ms"
    pairs = list(zip(found["semel"], found["Flink"], strict=True))[1:]
    return [
        compared(f"until visible, {name}, {peer}", [(a[at], b[at]) for a, b in pairs], "ms")
        for at, name in enumerate(("median", "p99"))
    ]
