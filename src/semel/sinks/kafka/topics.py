"""The topics of a Kafka cluster: what is known of them, and how the progress topic is created.

Kafka is asked once per process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, NotDelivered
from semel.runtime import SystemClock
from semel.sinks.kafka.producer import WRONG, ClientLog, ErrorText, client_library, no_such_config

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOCK = SystemClock()

PATIENCE_S = 10.0
"""How long one request waits for its answer, if its call may take that long."""

MOMENT_S = 3.0

SILENT = frozenset({"_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN"})
"""Errors that mean that no broker answered, but that the client does not mark as `retriable`."""

PROGRESS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "producer",
}
"""A progress topic keeps the last record of each partition forever, and little else."""


NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that brokers without topic ids report."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its brokers describe it."""

    name: str
    partitions: int
    id: str
    bytes_max: int | None = None
    policy: str | None = None
    cluster: str | None = None

    @property
    def identity(self) -> list[str] | None:
        """Identifies the topic, also against a later one of the same name: cluster, name and id.
        None if the brokers do not report it.
        """
        if self.cluster is None or self.id == NO_ID:
            return None
        return [self.cluster, self.name, self.id]

    def is_another(self, recorded: list[str] | None) -> bool:
        """Return whether it is not the topic that was recorded, although it has its name. Ids of
        another cluster are not compared: there it is a copy.
        """
        here = self.identity
        if here is None or recorded is None or here[:2] != recorded[:2]:
            return False
        return here != recorded


class Topics:
    """Asks a Kafka about its topics: all questions together take `patience_s` at most. Used by one
    thread.
    """

    def __init__(
        self, config: Mapping[str, object], where: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._kafka = client_library()
        self._ends = CLOCK.monotonic() + patience_s
        from confluent_kafka.admin import AdminClient

        self._where = where
        self._shown = ErrorText(config)
        self._reason: Any = None
        self._cluster: tuple[str | None] | None = None
        own: dict[str, Any] = {**config, "logger": ClientLog(), "error_cb": self._on_error}
        try:
            self._admin = AdminClient(own)
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise no_such_config(where, error) from None

    def find(self, name: str, *, patience_s: float = 0.0) -> Topic | None:
        """Describe a topic; None if there is none of that name, or it may not be seen. A broker
        that has just started, or a topic that was just created, may need some time.
        """
        ends = CLOCK.monotonic() + patience_s
        while True:
            found = self._describe(name)
            if found is not None or CLOCK.monotonic() >= ends:
                return found
            CLOCK.sleep(0.05)

    def _describe(self, name: str) -> Topic | None:
        asked = self._admin.describe_topics(
            self._kafka.TopicCollection([name]), request_timeout=self._left()
        )
        try:
            answer = self._answer(asked[name])
        except self._kafka.KafkaException as error:
            refused = error.args[0]
            gone = ("UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION")
            if refused.name() in gone:
                return None
            raise self._failed(refused) from error
        settings = self._settings(name)
        limit = settings.get("max.message.bytes")
        return Topic(
            name,
            len(answer.partitions),
            str(answer.topic_id),
            None if limit is None else int(limit),
            settings.get("cleanup.policy"),
            self._cluster_id(),
        )

    def _cluster_id(self) -> str | None:
        """The id of the cluster, asked for once; None if it does not report one."""
        if self._cluster is None:
            asked = self._admin.describe_cluster(request_timeout=self._left())
            try:
                self._cluster = (self._answer(asked).cluster_id,)
            except self._kafka.KafkaException as error:
                if _no_answer(error.args[0]):
                    raise self._failed(error.args[0]) from error
                self._cluster = (None,)
        return self._cluster[0]

    def need(self, name: str) -> Topic:
        """Describe a topic that must exist. Raises `ConfigurationError` if it does not."""
        found = self.find(name, patience_s=MOMENT_S)
        if found is None:
            raise ConfigurationError(
                f"{self._where}: topic {name!r} does not exist, or this user may not see it. "
                "Create it, or allow the user to write to it; nothing was sent"
            )
        return found

    def need_progress(self, name: str, partitions: int) -> None:
        """Make sure that the progress topic exists and forgets nothing; create it if it is
        missing.
        """
        found = self.find(name)
        if found is None:
            self._make(name, partitions)
            found = self.need(name)
        if found.policy not in (None, "compact"):
            raise ConfigurationError(
                f"{self._where}: the progress topic {name!r} has cleanup.policy={found.policy}, so "
                "it would forget what was delivered. Set cleanup.policy=compact on it, or use "
                "another topic with progress_topic"
            )
        if found.partitions < partitions:
            raise ConfigurationError(
                f"{self._where}: the progress topic {name!r} has {found.partitions} partitions, "
                f"but the sink has progress_partitions={partitions}. Set it to {found.partitions}, "
                "or use another topic with progress_topic"
            )

    def _make(self, name: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(name, partitions, -1, config=PROGRESS)
        made = self._admin.create_topics([topic], request_timeout=self._left())
        try:
            self._answer(made[name])
        except self._kafka.KafkaException as error:
            refused = error.args[0]
            if refused.name() == "TOPIC_ALREADY_EXISTS":
                return
            if _no_answer(refused):
                raise self._failed(refused) from error
            raise ConfigurationError(
                f"{self._where}: the progress topic {name!r} does not exist and could not be "
                f"created ({self._shown(refused)}). Create it with {partitions} partitions and "
                "cleanup.policy=compact"
            ) from error

    def _settings(self, name: str) -> dict[str, str]:
        """The settings of a topic; empty if this user may not see them."""
        from confluent_kafka.admin._config import ConfigResource
        from confluent_kafka.cimpl import RESOURCE_TOPIC

        resource = ConfigResource(RESOURCE_TOPIC, name)
        asked = self._admin.describe_configs([resource], request_timeout=self._left())
        try:
            answer = self._answer(asked[resource])
        except self._kafka.KafkaException as error:
            if _no_answer(error.args[0]):
                raise self._failed(error.args[0]) from error
            return {}
        return {entry.name: entry.value for entry in answer.values() if entry.value is not None}

    def _answer(self, future: Any) -> Any:
        """Wait for an answer, and not longer than it makes sense."""
        ends = CLOCK.monotonic() + self._left() + 1.0
        while not future.done() and CLOCK.monotonic() < ends:
            self._admin.poll(0)
            if self._reason is not None and self._reason.name() in WRONG:
                raise self._failed(self._reason)
            CLOCK.sleep(0.001)
        try:
            return future.result(0)
        except TimeoutError as error:
            raise NotDelivered(f"{self._where}: no broker answered") from error

    def _left(self) -> float:
        """How many seconds the next question may take."""
        return min(max(self._ends - CLOCK.monotonic(), 0.1), PATIENCE_S)

    def _failed(self, refused: Any) -> Exception:
        if refused.name() in WRONG or (self._reason is not None and self._reason.name() in WRONG):
            error = self._reason or refused
            return ConfigurationError(
                f"{self._where}: {self._shown(error)} ({error.name()}). Check the sink's config; "
                "nothing was sent"
            )
        return NotDelivered(f"{self._where}: {self._shown(refused)} ({refused.name()})")

    def _on_error(self, error: Any) -> None:
        if self._reason is None or self._reason.name() not in WRONG:
            self._reason = error


def _no_answer(refused: Any) -> bool:
    return bool(refused.retriable()) or refused.name() in SILENT
