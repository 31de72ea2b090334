"""The driver of a chaos run: two pipelines of one topic, each started again whenever it fails.

`python -m semel.verify.chaos.job FILE` reads `JobSettings` from a file and runs until SIGTERM. With
`standby=True` a pipeline that another driver has is waited for. It prints a line for whatever it
does, which the run reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from semel import stop
from semel.events.encoding import ascii_json
from semel.runtime import SystemClock
from semel.sinks import Http, Kafka, Postgres, Redis, Retry
from semel.spark import deliver, make_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.sinks import Sink

CHARGES, COPIES = "charges", "copies"
PIPELINES = (CHARGES, COPIES)
EVENT = "customer string, payment_id bigint, amount bigint, at double"
WINDOW = 4
"""How many calls of the OPAQUE sink are in flight in a partition."""
PARTITIONS, PARTITIONS_MAX = 2, 3
"""The number of partitions of a pipeline at its start, and after `rescale`."""
RETRY = Retry(first_s=0.1, most_s=1.0, for_s=20.0)
APPEND = (
    "redis.call('XADD', KEYS[1], '*', 'customer', ARGV[1], 'payment_id', ARGV[2], 'at', ARGV[3])"
)
AGAIN_S = 1.0


@dataclass(frozen=True)
class JobSettings:
    """What a driver needs to know.

    Attributes:
        liar: deliver with plain foreachBatch instead.
    """

    master: str
    brokers: str
    topic: str
    http: str
    postgres: str
    redis: str
    ledger: str
    folder: str
    pipelines: tuple[str, ...] = PIPELINES
    conf: dict[str, str] = field(default_factory=dict)
    at_once: int = 200
    liar: bool = False

    def write(self, file: Path) -> None:
        """Write it for a driver."""
        file.touch(mode=0o600)
        file.write_text(ascii_json(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> JobSettings:
        """Read what was written."""
        found = json.loads(file.read_text())
        return cls(**{**found, "pipelines": tuple(found["pipelines"])})


def sinks(settings: JobSettings) -> dict[str, list[Sink]]:
    """Return the sinks of each pipeline. Nothing in the destinations forbids a repeat."""
    charge = Http(
        name="http",
        url=f"{settings.http}/charges",
        window=WINDOW,
        timeout_s=4,
        deadline_s=8,
        lease_s=4,
        retry=RETRY,
    )
    copy = Postgres(
        name="postgres",
        url=settings.postgres,
        table="copies",
        chunk_rows=50,
        deadline_s=10,
        retry=RETRY,
    )
    count = Redis(
        name="redis",
        url=settings.redis,
        script=APPEND,
        key="copies",
        arguments=("{customer}", "{payment_id}", "{at}"),
        chunk_rows=50,
        deadline_s=10,
        retry=RETRY,
    )
    forward = Kafka(
        name="kafka",
        servers=settings.brokers,
        topic="copies",
        progress_partitions=2,
        transaction_timeout_s=10,
        deadline_s=10,
        chunk_rows=50,
        retry=RETRY,
    )
    return {CHARGES: [charge], COPIES: [copy, count, forward]}


def say(line: str) -> None:
    """Print a line that the run reads."""
    sys.stdout.write(f"chaos: {line}\n")
    sys.stdout.flush()


def source(spark: Any, settings: JobSettings) -> Any:
    """Return the events of the input topic."""
    options = {
        "subscribe": settings.topic,
        "kafka.bootstrap.servers": settings.brokers,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(settings.at_once),
    }
    raw = spark.readStream.format("semel.kafka").options(**options).load()
    parsed = raw.selectExpr(f"from_json(cast(value as string), '{EVENT}') as event")
    return parsed.select("event.*")


def run(settings: JobSettings) -> int:
    """Keep every pipeline running until SIGTERM; return the exit status."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    spark = make_session("semel chaos", master=settings.master, settings=settings.conf)
    _log_speculation(spark)
    writers = _plain(spark, settings) if settings.liar else _writers(spark, settings)
    queries: dict[str, Any] = {}

    def keep(name: str, writer: Any) -> None:
        while not ended.is_set():
            try:
                queries[name] = query = writer.start()
                say(f"running {name}")
                query.awaitTermination()
                say(f"ended {name}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is started again
                say(f"failed {name}: {' '.join(str(error).split())[:300]}")
            ended.wait(AGAIN_S)

    for name, writer in writers.items():
        threading.Thread(target=keep, args=(name, writer), daemon=True).start()
    while not ended.wait(0.5):
        if spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - it has no other name
            say("the Spark context has ended")
            return 3
    for name, query in queries.items():
        if query.isActive:
            query.stop() if settings.liar else stop(query)
            say(f"ended {name}")
    os._exit(0)  # a pipeline that waits as a standby has a thread in the JVM


def _writers(spark: Any, settings: JobSettings) -> dict[str, Any]:
    made = sinks(settings)
    return {
        name: deliver(
            source(spark, settings),
            to=made[name],
            name=name,
            entity="customer",
            event="payment_id",
            increasing=True,
            ledger=settings.ledger,
            standby=True,
        )
        .option("checkpointLocation", f"{settings.folder}/checkpoints/{name}")
        .trigger(processingTime="500 milliseconds")
        for name in settings.pipelines
    }


def _log_speculation(spark: Any) -> None:
    """Let Spark log when it starts a second copy of a task."""
    jvm: Any = spark._jvm  # noqa: SLF001 - log4j has no other way in
    log4j = jvm.org.apache.logging.log4j
    name = "org.apache.spark.scheduler.TaskSetManager"
    log4j.core.config.Configurator.setLevel(name, log4j.Level.INFO)


# -- the liar: the same destinations, with plain foreachBatch


def _plain(spark: Any, settings: JobSettings) -> dict[str, Any]:
    effects = {CHARGES: _charger(settings.http), COPIES: _copier(settings.postgres)}
    return {
        name: source(spark, settings)
        .writeStream.foreachBatch(_each(effects[name]))
        .option("checkpointLocation", f"{settings.folder}/checkpoints/{name}")
        .trigger(processingTime="500 milliseconds")
        for name in settings.pipelines
    }


def _each(effect: Callable[[Any], None]) -> Callable[[Any, int], None]:
    def batch(frame: Any, _number: int) -> None:
        spread = frame.repartition(PARTITIONS, "customer")
        spread.sortWithinPartitions("payment_id").foreachPartition(effect)

    return batch


def _charger(url: str) -> Callable[[Any], None]:
    def charge(rows: Any) -> None:
        place = urlsplit(url)
        connection = HTTPConnection(str(place.hostname), place.port, timeout=4)
        for row in rows:
            SystemClock.sleep(0.005)
            connection.request("POST", "/charges", ascii_json(row.asDict()))
            connection.getresponse().read()

    return charge


def _copier(url: str) -> Callable[[Any], None]:
    def copy(rows: Any) -> None:
        import psycopg

        statement = b"insert into copies (customer, payment_id, amount, at) values (%s, %s, %s, %s)"
        with psycopg.connect(url, autocommit=True, connect_timeout=4) as connection:
            for row in rows:
                SystemClock.sleep(0.005)
                connection.execute(statement, tuple(row))

    return copy


if __name__ == "__main__":
    sys.exit(run(JobSettings.read(Path(sys.argv[1]))))
