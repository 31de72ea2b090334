"""What a chaos run produces, and what the witnesses outside Spark remember of it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, LedgerError
from semel.events.encoding import ascii_json
from semel.ledger import Ledger, LedgerClient, resolve_parked
from semel.protocol import ParkedState
from semel.runtime import SystemClock
from semel.verify.chaos.checker import ParkedFact, ProducedEvent, WitnessedEffect
from semel.verify.chaos.job import CHARGES, COPIES
from semel.verify.chaos.stage import COPIED, TOPIC

if TYPE_CHECKING:
    from semel.verify.chaos.stage import ChaosStage

ENTITIES = 1_000
TICK_S = 0.2


class Generator:
    """Produces events in a thread, in order for each entity, until it is closed."""

    def __init__(self, servers: str, seed: int, rate: float, held: threading.Event) -> None:
        """While `held` is set nothing is produced."""
        self._servers, self.rate, self._held = servers, rate, held
        self._luck = Random(f"semel chaos input {seed}")
        self._ended = threading.Event()
        self._abandoned = False
        self._last: Counter[str] = Counter()
        self.produced: list[ProducedEvent] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait until what was begun is acknowledged."""
        self._ended.set()
        self._thread.join()

    def abandon(self) -> None:
        """Stop without waiting for what was begun."""
        self._abandoned = True
        self.close()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # never: an event that is not acknowledged is tried again
                "partitioner": "murmur2_random",
                "topic.metadata.refresh.interval.ms": 5_000,
                "log_level": 0,
            }
        )
        while not self._ended.is_set():
            if self._held.is_set():
                self._ended.wait(TICK_S)
                continue
            tick = self._tick()
            for each in tick:
                body = {
                    "customer": each.entity,
                    "payment_id": each.event,
                    "amount": each.event % 90,
                }
                value = ascii_json({**body, "at": each.at})
                producer.produce(TOPIC, value, key=each.entity)
            # An entity has one event in a tick, and each tick is acknowledged before the next.
            while producer.flush(1.0):
                if self._abandoned:
                    producer.purge()
                    return
            self.produced += tick
            self._ended.wait(TICK_S)

    def _tick(self) -> list[ProducedEvent]:
        count = max(1, round(self.rate * TICK_S))
        chosen = self._luck.sample(range(ENTITIES), count)
        entities = [f"c{number}" for number in chosen]
        self._last.update(entities)
        now = SystemClock.wall()
        return [ProducedEvent(entity, self._last[entity], now) for entity in entities]


class Witnesses:
    """Reads what the destinations remember, around the network of the run."""

    def __init__(self, stage: ChaosStage) -> None:
        self._stage = stage

    def effects(self) -> dict[str, list[WitnessedEffect]]:
        """Return the effects of every sink, in order."""
        found = {"http": self.http(), "postgres": self.postgres()}
        if not self._stage.liar:
            found |= {"redis": self.redis(), "kafka": self.kafka()}
        return found

    def http(self) -> list[WitnessedEffect]:
        """Return what the HTTP witness was asked for."""
        return [_effect(each.body, each.at) for each in self._stage.http.effects()]

    def postgres(self) -> list[WitnessedEffect]:
        """Return the rows of the table."""
        rows: list[Any] = self._stage.postgres.execute(
            "select customer, payment_id, at, extract(epoch from arrived)::float8"
            " from copies order by number"
        )
        return [WitnessedEffect(*row) for row in rows]

    def redis(self) -> list[WitnessedEffect]:
        """Return the entries of the stream."""
        found = []
        for entry, pairs in self._stage.redis.execute("XRANGE", "copies", "-", "+"):
            text = {bytes(key).decode(): bytes(value).decode() for key, value in _pairs(pairs)}
            at = int(bytes(entry).partition(b"-")[0]) / 1000
            found.append(_effect(text, at))
        return found

    def kafka(self) -> list[WitnessedEffect]:
        """Return the committed records of the topic, partition by partition."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._stage.kafka.servers,
                "group.id": "witness",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: dict[int, list[WitnessedEffect]] = {}
        try:
            partitions = consumer.list_topics(COPIED, timeout=30).topics[COPIED].partitions
            consumer.assign([TopicPartition(COPIED, each, 0) for each in partitions])
            left = set(partitions)
            while left:
                for record in consumer.consume(1_000, timeout=1.0):
                    error, partition = record.error(), record.partition()
                    if error is None:
                        body, at = record.value() or b"", record.timestamp()[1] / 1000
                        found.setdefault(partition or 0, []).append(_effect(json.loads(body), at))
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        left.discard(partition or 0)
        finally:
            consumer.close()
        return [effect for each in sorted(found) for effect in found[each]]

    def parked(self) -> dict[str, list[ParkedFact]]:
        """Return what the ledger keeps beside the stream, by sink."""
        found: dict[str, list[ParkedFact]] = {"http": [], "postgres": [], "redis": [], "kafka": []}
        if self._stage.liar:
            return found
        with Ledger(self._stage.ledger.url()) as ledger:
            for pipeline, names in ((CHARGES, ["http"]), (COPIES, ["postgres", "redis", "kafka"])):
                with suppress(ConfigurationError):  # it has not begun
                    for sink in names:
                        for _, row in ledger.parked(pipeline, sink):
                            assert isinstance(row.event, int)
                            fact = ParkedFact(row.entity, row.event, row.state, row.doubted)
                            found[sink].append(fact)
        return found

    def resolve_held(self, older_s: float = 0.0) -> int:
        """Decide about events in doubt as the HTTP witness knows them, as a person would; return
        how many. Only a doubt that is older than any stopped process is safe to decide.
        """
        now = SystemClock.wall()
        with suppress(ConfigurationError), Ledger(self._stage.ledger.url()) as ledger:
            held = [
                (at, row)
                for at, row in ledger.parked(CHARGES, "http")
                if row.state is ParkedState.HELD and row.at < now - older_s
            ]
            arrived = {(each.entity, each.event) for each in self.http()} if held else set()
            client = LedgerClient(ledger.store, CHARGES)
            for at, row in held:
                was = (row.entity, row.event) in arrived
                decision = ParkedState.DELIVERED if was else ParkedState.RESEND
                with suppress(ConfigurationError, LedgerError):  # the pipeline changed it meanwhile
                    resolve_parked(client, "http", at, decision, "chaos", "the witness was asked")
            return len(held)
        return 0


def _effect(body: Any, at: float) -> WitnessedEffect:
    return WitnessedEffect(body["customer"], int(body["payment_id"]), float(body["at"]), at)


def _pairs(flat: Any) -> list[tuple[Any, Any]]:
    """Return the fields of a stream's entry, which come as a mapping or as a flat list."""
    if isinstance(flat, dict):
        return list(flat.items())
    return list(zip(flat[::2], flat[1::2], strict=True))
