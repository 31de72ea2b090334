"""Kafka as a sink: each chunk is one Kafka transaction, with its progress in it (TRANSACTIONAL).

Each partition has a `transactional.id`: opening it fences the attempt before. Consumers that read
as `read_committed` see each event once, a chunk at a time and as soon as it is committed. With
`sequenced=True` there is no progress topic: semel reads the tail of each partition's log
(SEQUENCED).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.protocol import Capability
from semel.sinks.kafka.connection import place_of
from semel.sinks.kafka.records import BYTES_MAX, STAMPS, Shape, mapping_of, refuse_columns
from semel.sinks.sink import Sink, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from semel.sinks.kafka.sequenced_session import LogSession
    from semel.sinks.kafka.transactional_session import ProgressSession

OURS = {
    "bootstrap.servers": "pass it as servers=",
    "transactional.id": "it is made of the pipeline, sink and partition",
    "transaction.timeout.ms": "pass transaction_timeout_s=",
    "enable.idempotence": "a transaction needs it",
    "isolation.level": "progress is read as committed",
    "acks": "a transaction waits for all replicas in sync",
    "group.id": "the sink joins no group",
    "on_delivery": "errors are raised",
    "dr_cb": "errors are raised",
    "error_cb": "errors are raised",
    "logger": "errors are raised",
    "delivery.report.only.error": "errors are raised",
}
"""What `config` may not have, and why, or which setting has it."""


@dataclass(frozen=True, kw_only=True)
class Kafka(Sink):
    """Writes to Kafka topics, exactly once for consumers that read as `read_committed`.

    Attributes:
        servers: `host:port,host:port`.
        topic: the topic of all events.
        topic_column: the column with each event's topic, instead of `topic`.
        key: the column of the key; by default the entity, if there is one.
        value: the column of the value (text or binary); by default all columns as JSON.
        partition: the column with the number of the partition; by default the key decides, as in
            Java.
        headers: headers of your own, `{"trace": "trace_id"}`: a column for each.
        stamps: the headers that semel writes: `semel-osn`, `semel-entity`, `semel-event`,
            `semel-pipeline`. Without any header a record costs semel less than half as much.
        config: settings of librdkafka, for TLS, SASL, compression; never shown.
        progress_topic: a compacted topic with the progress of each partition; created if missing.
        progress_partitions: how many of its partitions are used.
        transaction_timeout_s: when the brokers abort a transaction that was not ended.
        sequenced: no progress topic; partition 3 is written to partition 3 of `topic`.
    """

    servers: str
    topic: str | None = None
    topic_column: str | None = None
    key: str | None = None
    value: str | None = None
    partition: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stamps: tuple[str, ...] = STAMPS
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    progress_topic: str = "semel-progress"
    progress_partitions: int = 32
    transaction_timeout_s: float = 60.0
    sequenced: bool = False
    chunk_rows: int = 20_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "stamps", tuple(self.stamps))
        object.__setattr__(self, "headers", dict(self.headers))
        object.__setattr__(self, "config", dict(self.config))
        for wrong in self._wrong():
            raise ConfigurationError(f"sink {self.name!r}: {wrong}")

    def _wrong(self) -> list[str]:
        """Return what is wrong with the settings, a sentence each."""
        found = []
        if not self.servers or not isinstance(self.servers, str):
            found.append("servers must be a string like 'host:9092,host:9092'")
        elif not all(_SERVER.fullmatch(each) for each in self.servers.split(",")):
            found.append(
                "servers must be a string like 'host:9092,host:9092' (its value is not shown); a "
                "user and a password belong in config (sasl.username, sasl.password)"
            )
        if (self.topic is None) == (self.topic_column is None):
            found.append("pass either topic or topic_column")
        if self.topic is not None and self.topic == self.progress_topic:
            found.append(f"topic {self.topic!r} is the progress topic; use another")
        ours = [name for name in self.config if name in OURS]
        found += [f"{name!r} cannot be in config: {OURS[name]}" for name in ours]
        strange = [stamp for stamp in self.stamps if stamp not in STAMPS]
        found += [f"unknown stamp {each!r}; use {', '.join(STAMPS)}" for each in strange]
        if type(self.progress_partitions) is not int or self.progress_partitions < 1:
            found.append("progress_partitions must be at least 1")
        if self.transaction_timeout_s < 1:
            found.append("transaction_timeout_s must be at least 1")
        if self.sequenced and (self.topic is None or self.partition is not None):
            found.append(
                "with sequenced=True each partition has one log: pass topic, not partition"
            )
        if self.sequenced and not set(STAMPS) <= set(self.stamps):
            found.append(
                "with sequenced=True semel reads its progress from the log, so all "
                "stamps are needed"
            )
        mapping_of(self.headers)
        return found

    @property
    def capability(self) -> Capability:
        """TRANSACTIONAL, or SEQUENCED where the log itself is asked."""
        return Capability.SEQUENCED if self.sequenced else Capability.TRANSACTIONAL

    @property
    def last_opener_wins(self) -> bool:
        """Yes: the brokers fence the producer that had the transactional id before."""
        return True

    def notes(self) -> tuple[str, ...]:
        """State who sees what, and what the promise requires of the brokers."""
        where = "in headers of the records" if self.sequenced else f"in {self.progress_topic!r}"
        return (
            (
                f"Visible at the commit of each chunk, {self.chunk_rows} events at most, to "
                f"consumers that read committed records only; progress is kept {where}."
            ),
            (
                "This requires that the brokers keep what they acknowledged (replication, "
                "min.insync.replicas), and that the topic is not deleted."
            ),
        )

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a column that is not there, or of a type that a record
        cannot take there.
        """
        try:
            refuse_columns(schema, self.shape)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink {self.name!r}: {error}") from None

    def describe(self) -> dict[str, object]:
        """What may not change under a pipeline; it has no setting of the client."""
        described: dict[str, object] = {"capability": self.capability.value}
        if self.sequenced:
            return {**described, "topic": self.topic}
        return {
            **described,
            "progress_topic": self.progress_topic,
            "progress_partitions": self.progress_partitions,
        }

    def open(self, target: Target) -> ProgressSession | LogSession:
        """Look at the topics; the fence is taken with `take_over`."""
        if self.sequenced:
            from semel.sinks.kafka.sequenced_session import LogSession

            return LogSession(self, target)
        from semel.sinks.kafka.transactional_session import ProgressSession

        return ProgressSession(self, target)

    # -- what sessions need

    @property
    def shape(self) -> Shape:
        """How rows become records."""
        return Shape(
            key=self.key,
            value=self.value,
            topic=self.topic_column,
            partition=self.partition,
            headers=mapping_of(self.headers),
            stamps=self.stamps,
        )

    @property
    def secret_key(self) -> str:
        """A key that distinguishes clients of different configs within a process; never shown."""
        return repr(sorted(self.config.items(), key=str))

    def client(self) -> dict[str, object]:
        """The settings of every client."""
        kept = {name: value for name, value in self.config.items() if name not in _PRODUCER}
        return {**kept, "bootstrap.servers": self.servers}

    def producer(self, target: Target, bytes_max: int) -> dict[str, object]:
        """The settings of the producer of a partition."""
        return {
            "linger.ms": 5,
            # Else half of all fences wait half a second for the client to try a connection again.
            "enable.sparse.connections": False,
            "batch.size": min(bytes_max, BYTES_MAX),
            "partitioner": "murmur2_random",  # the partition of a key is the one that Java chooses
            "message.max.bytes": max(bytes_max, BYTES_MAX),  # the progress topic has its own limit
            "queue.buffering.max.messages": max(100_000, 2 * self.chunk_rows),
            **self.config,
            "bootstrap.servers": self.servers,
            "transactional.id": f"semel/{place_of(target)}",
            "transaction.timeout.ms": int(self.transaction_timeout_s * 1000),
        }

    def where(self, target: Target) -> str:
        """Name the partition for messages."""
        return (
            f"pipeline {target.pipeline!r}, sink {target.sink!r}, partition {target.partition}, "
            f"Kafka at {self.servers}"
        )


_SERVER = re.compile(r" *(?:[A-Z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})? *")

_PRODUCER = frozenset(
    {
        "linger.ms",
        "enable.sparse.connections",
        "queue.buffering.max.ms",
        "batch.size",
        "batch.num.messages",
        "partitioner",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "compression.type",
        "compression.codec",
        "compression.level",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "message.send.max.retries",
        "retries",
        "sticky.partitioning.linger.ms",
    }
)
"""Settings that a client that only reads does not know."""
