"""What the tests of Kafka share: targets, chunks, consumers, a pipeline without Spark, a proxy."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Chunk, EntityIds, Given, Identity, Minibatch, Rows
from semel.events.ids.id_columns import Labels
from semel.ledger.client import LedgerClient
from semel.ledger.journal import Journal
from semel.ledger.rows import ParkedRow
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.open import OpenMinibatch
from semel.ledger.verbs.parked import read_parked
from semel.runtime import Process
from semel.sinks import Progress, Retry, Sink, Target
from semel.sinks.kafka import Kafka
from semel.verify.servers.kafka import KafkaBroker

FAST = Retry(first_s=0.05, most_s=0.2, for_s=10.0)
GIVEN = Given(entity="c", event=("id",))
PROGRESS = "progress-of-tests"
FIRST = Minibatch(1, 0)
SECOND = Minibatch(1, 1)

Record = tuple[bytes | None, bytes | None, dict[str, bytes]]


def sink_to(kafka: KafkaBroker, topic: str | None, **settings: Any) -> Kafka:
    """A sink with little patience."""
    usual: dict[str, Any] = {
        "name": "out",
        "servers": kafka.servers,
        "topic": topic,
        "retry": FAST,
        "deadline_s": 10.0,
        "transaction_timeout_s": 10.0,
        "progress_topic": PROGRESS,
        "progress_partitions": 4,
    }
    return Kafka(**{**usual, **settings})


def target(
    task: int = 1,
    minibatch: Minibatch = FIRST,
    *,
    pipeline: str = "pay",
    partition: str = "0",
    run: int = 1,
) -> Target:
    return Target(pipeline, "out", minibatch, partition, Attempt(run, task))


def chunk(start: int, stop: int, **columns: Iterable[Any]) -> Chunk:
    """Events `c0`..`c2`, ids and positions from start on; other columns as given."""
    count = stop - start
    made = {
        "c": pa.array([f"c{n % 3}" for n in range(start, stop)]),
        "id": pa.array(range(start, stop), pa.int64()),
        **{
            name: each if isinstance(each, pa.Array) else pa.array(list(each))
            for name, each in columns.items()
        },
    }
    batch = pa.RecordBatch.from_pydict(made)
    labels = Labels.of(batch.column("c"), "c")
    rows = Rows(
        batch,
        np.arange(start, start + count, dtype=np.int64),
        labels,
        labels,
        (batch.column("id"),),
    )
    return Chunk(rows=rows, start=start, stop=stop, key=f"{start}", osn_base=1, prefix="pay/out/")


def progress(
    start: int,
    stop: int,
    task: int = 1,
    minibatch: Minibatch = FIRST,
    *,
    ids: EntityIds = EntityIds.EMPTY,
) -> Progress:
    return Progress(
        minibatch=minibatch,
        attempt=Attempt(1, task),
        done=stop,
        start=start,
        osn=stop,
        digest=f"d{stop}",
        sort_key=["c", stop - 1],
        ids=ids,
    )


def consumed(kafka: KafkaBroker, topic: str, *, isolation: str = "read_committed") -> list[Record]:
    """Everything that a consumer sees in a topic, partition by partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": "tests",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    found: list[Record] = []
    try:
        parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        for number in sorted(parts):
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
            ended = False
            while not ended:
                for message in consumer.consume(1, 0.5):
                    refused = message.error()
                    if refused is not None:
                        assert refused.name() == "_PARTITION_EOF", refused
                        ended = True
                    else:
                        headers: Any = dict(message.headers() or ())
                        found.append((message.key(), message.value(), headers))
    finally:
        consumer.close()
    return found


def alter(kafka: KafkaBroker, topic: str, setting: str, value: str) -> None:
    """Change a setting of a topic."""
    from confluent_kafka import admin

    api: object = admin
    kinds = vars(api)
    entry = kinds["ConfigEntry"](
        setting, value, incremental_operation=kinds["AlterConfigOpType"].SET
    )
    resource = kinds["ConfigResource"](
        kinds["ResourceType"].TOPIC, topic, incremental_configs=[entry]
    )
    client = kafka.admin()
    client.incremental_alter_configs([resource])[resource].result(20)


def ids_in(records: Iterable[Record]) -> list[int]:
    return [json.loads(value or b"null")["id"] for _, value, _ in records]


# -- a pipeline without Spark


@dataclass
class KafkaPipeline:
    """Minibatches through the real engine, with a ledger on disk."""

    folder: Path
    sink: Sink
    identity: Identity = GIVEN
    name: str = field(default_factory=lambda: f"p-{uuid4().hex}")
    _tasks: int = 0

    def __post_init__(self) -> None:
        self.store = open_store(f"sqlite:///{self.folder}/{self.name}.db")
        self.client = LedgerClient(self.store, self.name)
        self.start()

    def start(self) -> None:
        """A run of its own."""
        me = Process.here()
        self.driver = Driver(self.client, [self.sink], self.identity, me, uuid4().hex, partitions=1)
        self.driver.start()

    def open(self, batch: int, query: str = "q") -> OpenMinibatch:
        return self.driver.begin(query, batch)

    def task(
        self,
        opening: OpenMinibatch,
        rows: pa.RecordBatch | Iterable[pa.RecordBatch],
        sink: Sink | None = None,
        partition: str = "0",
    ) -> list[Report]:
        self._tasks += 1
        attempt = Attempt(opening.row.run, self._tasks)
        assignment = Assignment(
            self.name, opening, self.identity, partition, attempt, Process.here(), 0
        )
        delivery = PartitionDelivery(
            assignment, [sink or self.sink], self.client, Journal(self.client)
        )
        return delivery.run([rows] if isinstance(rows, pa.RecordBatch) else rows)

    def minibatch(self, batch: int, rows: pa.RecordBatch, query: str = "q") -> list[Report]:
        opening = self.open(batch, query)
        reports = self.task(opening, rows)
        self.driver.end(opening, reports)
        return reports

    def parked(self) -> list[ParkedRow]:
        return [row for _, row, _ in read_parked(self.client, self.sink.name)]

    def close(self) -> None:
        self.store.close()


# -- a proxy that cuts, or falls silent

APIS = {"produce": 0, "fetch": 1, "offsets": 2, "init": 22, "add": 24, "end": 26}


class KafkaProxy:
    """Passes Kafka's requests on, and cuts connections at a chosen one, before or after it; or
    answers nothing from then on, with every connection open. `delays_s` keeps requests of a kind.
    """

    def __init__(self, kafka: KafkaBroker) -> None:
        self._behind = kafka.behind
        self._server = socket.create_server(("127.0.0.1", kafka.proxy))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.cut: Callable[[int], str | None] = lambda _: None
        self.down = False
        self.silent = False
        self.delays_s: dict[int, float] = {}
        self.seen: list[int] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_once(self, api: str, when: str, *, stay_down: bool = False) -> None:
        """Cut at the next request of this kind: `before` it is passed on, or `after` it, in place
        of its answer. With `stay_down` no request gets through afterwards.
        """

        def cut(seen: int) -> str | None:
            if seen != APIS[api]:
                return None
            self.cut = lambda _: None
            self.down = stay_down
            return when

        self.cut = cut

    def silence(self, api: str, when: str) -> None:
        """Answer nothing from the next request of this kind on, which is passed on (`after`) or not
        (`before`).
        """

        def cut(seen: int) -> str | None:
            if seen != APIS[api]:
                return None
            self.cut = lambda _: None
            self.silent = True
            return f"silent {when}"

        self.cut = cut

    def speak(self) -> None:
        """Answer again, on new connections."""
        self.silent = False
        self.hang_up()

    def close(self) -> None:
        self.down = True
        self._server.shutdown(socket.SHUT_RDWR)  # else `accept` goes on
        self._server.close()
        self._thread.join()
        self.hang_up()

    def hang_up(self) -> None:
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self.down:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._behind))
            with self._lock:
                self._open += [near, far]
            swallow = threading.Event()
            for run in (self._requests, self._answers):
                threading.Thread(target=run, args=(near, far, swallow), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError, ConnectionError):
            while True:
                head = _exactly(near, 4)
                body = _exactly(near, struct.unpack(">i", head)[0])
                api = struct.unpack(">h", body[:2])[0]
                self.seen.append(api)
                was_silent = self.silent
                cut = self.cut(api)
                if cut == "before":
                    break
                if was_silent or cut == "silent before":
                    continue
                if cut == "after":
                    swallow.set()
                time.sleep(self.delays_s.get(api, 0.0))
                far.sendall(head + body)
        if not swallow.is_set():
            _end(near, far)

    def _answers(self, near: socket.socket, far: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError, ConnectionError):
            while True:
                head = _exactly(far, 4)
                body = _exactly(far, struct.unpack(">i", head)[0])
                if swallow.is_set():
                    break
                if self.silent:
                    continue
                near.sendall(head + body)
        _end(near, far)


def _exactly(source: socket.socket, count: int) -> bytes:
    made = b""
    while len(made) < count:
        part = source.recv(count - len(made))
        if not part:
            raise ConnectionError
        made += part
    return made


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def proxied(kafka: KafkaBroker) -> Iterator[KafkaProxy]:
    """A proxy in front of the broker; `kafka.far` leads through it."""
    proxy = KafkaProxy(kafka)
    try:
        yield proxy
    finally:
        proxy.close()
