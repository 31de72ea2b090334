"""Measures semel's sources: `semel.kafka` against Spark's own Kafka source, and `semel.inbox`.

Always true: both read the same topic, in one session, interleaved, into a sink that drops every
row; micro-batches have the same limit. A rate is all rows after the first micro-batch over the time
from its end to the end of the last one, so that no side's start counts.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from benchmarks.progress import Length
from benchmarks.rounds import folder, rounds, session
from benchmarks.rows import Comparison, compared
from semel.streams import Inbox, NewEvent
from semel.verify.servers.kafka import KafkaBroker, fetched

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.progress import BenchmarkProgress

RECORDS = 2_000_000
EVENTS = 2_000_000
BATCHES = 5
PARTITIONS = 2
VALUE_BYTES = 100
REPETITIONS = 5
LENGTH = Length(sides=3, run_s=15.0, start_s=180.0)
APPENDED = 10_000


@dataclass
class SourcesBenchmark:
    """One topic and one inbox that all sides read."""

    spark: Any
    servers: str
    place: Path
    _runs: int = field(default=0, init=False)

    def rate(self, reader: Any, rows: int) -> float:
        """Rows per second of one query that reads all there is."""
        self._runs += 1
        writer = reader.option("maxOffsetsPerTrigger", rows // BATCHES).load().writeStream
        writer = writer.format("noop").option(
            "checkpointLocation", str(self.place / str(self._runs))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        found = [each for each in query.recentProgress if each["numInputRows"]]
        read: int = sum(each["numInputRows"] for each in found)
        if read != rows:
            raise AssertionError(f"{read:,} of {rows:,} rows were read")
        return (rows - int(found[0]["numInputRows"])) / (_end(found[-1]) - _end(found[0]))

    def kafka(self, source: str, topic: str) -> Any:
        """The reader of a topic."""
        reader = self.spark.readStream.format(source).option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.servers)
        return reader.option("startingOffsets", "earliest")

    def inbox(self, ledger: str) -> Any:
        """The reader of the inbox."""
        reader = self.spark.readStream.format("semel.inbox").option("ledger", ledger)
        return reader.option("stream", "orders")


def _end(progress: dict[str, Any]) -> float:
    begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
    took: int = progress["durationMs"]["triggerExecution"]
    return begun + took / 1000


def fill_topic(broker: KafkaBroker, records: int) -> str:
    """A topic full of records."""
    from confluent_kafka import Producer

    topic = broker.create_topic(partitions=PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.servers, "queue.buffering.max.messages": 1_000_000}
    )
    value = b"x" * VALUE_BYTES
    for start in range(0, records, 50_000):
        several = range(start, min(start + 50_000, records))
        producer.produce_batch(
            topic, [{"key": b"%d" % (n % 10_000), "value": value} for n in several]
        )
        producer.flush()
    return topic


def fill_inbox(place: Path, events: int) -> str:
    """The URL of a ledger with an inbox full of events."""
    ledger = f"sqlite:///{place / 'inbox.db'}"
    value = b"x" * VALUE_BYTES
    with Inbox(ledger, "orders", partitions=PARTITIONS) as inbox:
        for start in range(0, events, APPENDED):
            several = range(start, min(start + APPENDED, events))
            inbox.append([NewEvent(entity=f"c{n % 10_000}", value=value) for n in several])
    return ledger


def measure(
    say: BenchmarkProgress,
    repetitions: int = REPETITIONS,
    records: int = RECORDS,
    events: int = EVENTS,
) -> list[Comparison]:
    """Run everything; give the rows of the table."""
    say("fetching Kafka's jars, and filling a topic and an inbox")
    jars = ",".join(map(str, sorted(fetched("spark").glob("*.jar"))))
    settings = {"spark.jars": jars, "spark.driver.memory": "2g"}
    with (
        folder() as place,
        closing(KafkaBroker(heap="1g")) as broker,
        say.leaves({"broker.log": broker.log}),
        session("sources", settings) as spark,
    ):
        topic, ledger = fill_topic(broker, records), fill_inbox(place, events)
        bench = SourcesBenchmark(spark, broker.servers, place)
        own, inbox, peer = "semel.kafka", "semel.inbox", "Spark's own source"
        found = rounds(
            say,
            "read",
            repetitions,
            {
                peer: lambda: bench.rate(bench.kafka("kafka", topic), records),
                own: lambda: bench.rate(bench.kafka("semel.kafka", topic), records),
                inbox: lambda: bench.rate(bench.inbox(ledger), events),
            },
            "rows/s",
        )
    pairs = {name: list(zip(found[name], found[peer], strict=True))[1:] for name in (own, inbox)}
    return [
        compared("semel.kafka; peer: Spark's own Kafka source", pairs[own], "rows/s"),
        compared("semel.inbox on SQLite; peer: Spark's own Kafka source", pairs[inbox], "rows/s"),
    ]
