"""Reads the end of a partition of a Kafka topic, committed records only.

Always true: records from before a fence are seen by a reader after it. An open transaction of
another producer hides records that were committed after it, so the reader waits for it: at most
until it expires, and only while the brokers answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import NotDelivered
from semel.runtime import SystemClock
from semel.sinks.kafka.producer import ClientLog, ErrorText, client_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLOCK = SystemClock()

FIRST_STEP = 16
"""So many offsets from the end are read first; then sixteen times as many, and so on."""

OF_GROUPS = frozenset({"GROUP_AUTHORIZATION_FAILED", "COORDINATOR_NOT_AVAILABLE"})
"""Errors about the group that is never joined: no right to it is needed."""


class Ending:
    """The end of one partition at the time this was made."""

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        partition: int,
        *,
        patience_s: float,
        expires_s: float,
    ) -> None:
        self._kafka = client_library()
        self._place = (topic, partition)
        self._shown = ErrorText(config)
        self._patience_s, self._expires_s = patience_s, expires_s
        own = {
            **config,
            "group.id": "semel-reads",  # never joined, nothing is committed under it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "logger": ClientLog(),
        }
        # Asked as `read_uncommitted`: the end behind every open transaction.
        asker = self._kafka.Consumer({**own, "isolation.level": "read_uncommitted"})
        try:
            self.low, self.end = self._asked(asker, min(patience_s, 10.0))
        finally:
            asker.close()
        self._consumer = self._kafka.Consumer({**own, "isolation.level": "read_committed"})

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def back_until(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """Return the last records, as many as it takes until `enough` returns True, or all there
        are.
        """
        step = FIRST_STEP
        while True:
            start = max(self.low, self.end - step)
            found = self.read(start)
            if start <= self.low or enough(found):
                return found
            step *= 16

    def read(self, start: int | None = None) -> list[Any]:
        """Return the committed records from `start`, or all, up to the end."""
        topic, partition = self._place
        at = self.low if start is None else start
        found: list[Any] = []
        moved = heard = CLOCK.monotonic()
        if at < self.end:
            self._consumer.assign([self._kafka.TopicPartition(topic, partition, at)])
        while at < self.end:
            message = self._consumer.poll(0.1)
            refused = None if message is None else message.error()
            if message is not None and refused is None:
                found.append(message)
                at = message.offset() + 1
                moved = heard = CLOCK.monotonic()
            elif refused is not None and refused.name() == "_PARTITION_EOF":
                at = message.offset()
            elif refused is not None and not (refused.retriable() or refused.name() in OF_GROUPS):
                raise self._unread(self._shown(refused))
            elif CLOCK.monotonic() > moved + self._expires_s:
                raise self._unread(f"another transaction is open at offset {at} of {self.end}")
            elif CLOCK.monotonic() > heard + self._patience_s / 2:
                self._asked(self._consumer, self._patience_s / 2)  # whether a broker answers
                heard = CLOCK.monotonic()
        return [each for each in found if each.offset() < self.end]

    def _asked(self, asker: Any, patience_s: float) -> tuple[int, int]:
        topic, partition = self._place
        place = self._kafka.TopicPartition(topic, partition)
        try:
            low, end = asker.get_watermark_offsets(place, timeout=patience_s)
        except self._kafka.KafkaException as error:
            raise self._unread(self._shown(error.args[0])) from error
        return int(low), int(end)

    def _unread(self, why: str) -> NotDelivered:
        topic, partition = self._place
        return NotDelivered(
            f"the end of partition {partition} of topic {topic!r} cannot be read yet: {why}"
        )
