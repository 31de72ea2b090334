"""The companion topic that has the markers of Kafka topics: one record for each marker.

Always true:
- the record with a number that is not greater than one before it does not count: of two readers
  that set the same marker, or of one that was paused, the first in the log is it;
- a marker has the end of every partition, so the records before it are known without the log.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.errors import ConfigurationError, SemelError, plain_text
from semel.events.encoding import canonical
from semel.runtime import SystemClock
from semel.sinks import ClientLog, ErrorText, client_library, no_such_config
from semel.spark.sources.kafka_reader import client_config
from semel.spark.sources.marking import Handoff, Marker
from semel.spark.sources.positions import flat, nested

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOCK = SystemClock()
_LOG = logging.getLogger("semel")

WHERE = "semel.kafka"
PATIENCE_S = 60.0
RETENTION_MS = 7 * 24 * 3600 * 1000
SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
PRODUCING = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
VERSION = 1


class MarkerLog:
    """The markers of a companion topic, as far as they were read. Used by one thread."""

    def __init__(self, config: Mapping[str, Any], topic: str, admin: Any) -> None:
        self.topic = topic
        self._library = client_library()
        self._config = dict(config)
        self._shown = ErrorText(config)
        self._admin = admin
        self._clock: dict[str, Any] = {}
        self._consumer: Any = None
        self._producer: Any = None
        self._markers: deque[Marker] = deque()
        self._tokens: dict[int, str] = {}
        self._floor = self._newest = 0
        self._at: int | None = None
        self._last: Marker | None = None
        self._create()

    @property
    def clock(self) -> dict[str, Any]:
        """What the marker clock had learned when the newest marker was set."""
        return self._clock

    @property
    def last(self) -> Marker | None:
        """The newest marker as far as the log was read."""
        return self._last

    def after(self, number: int, most: int) -> list[Marker]:
        """Return the first markers with greater numbers."""
        if number < self._floor:
            self._restart()
        self._floor = number
        self._forget()
        self._read(most)
        return list(islice(self._markers, most))

    def need(self, number: int) -> Marker:
        """Return one marker. Raises `ConfigurationError` if it is not there."""
        first = self.after(0, 1)
        found = self.after(number - 1, 1) if number else []
        if found and found[0].number == number:
            return found[0]
        least = first[0].number if first else 0
        has = f"it has {least} to {self._newest}" if first else "it has none"
        raise ConfigurationError(
            f"{WHERE}: the topic {self.topic!r} has no marker {number}: {has}. Use "
            "startingOffsets, or another marker"
        )

    def newest(self) -> Marker | None:
        """Return the newest marker; None if there is none."""
        self._read(None)
        return self._last

    def put(self, marker: Marker, clock: Mapping[str, Any]) -> bool:
        """Append a marker; return whether it is the one of its number."""
        token = uuid4().hex
        self._produce(_dumped(marker, clock, token))
        self._read(None)
        return self._tokens.get(marker.number) == token

    # -- the log

    def _restart(self) -> None:
        """Begin at the first record again."""
        self._markers.clear()
        self._tokens.clear()
        self._floor = self._newest = 0
        self._at = self._last = None

    def _forget(self) -> None:
        while self._markers and self._markers[0].number <= self._floor:
            self._tokens.pop(self._markers.popleft().number)

    def _read(self, most: int | None) -> None:
        """Read on to the end of the log, or until there are so many markers."""
        partition = self._library.TopicPartition(self.topic, 0)
        consumer = self._consuming()
        low, high = self._ask(lambda: consumer.get_watermark_offsets(partition, timeout=5.0))
        if self._at is None or self._at < low:
            self._at = low
            consumer.assign([self._library.TopicPartition(self.topic, 0, low)])
        elif self._at > high:  # the topic was recreated
            self._at = 0
            consumer.assign([self._library.TopicPartition(self.topic, 0, 0)])
        ends = CLOCK.monotonic() + PATIENCE_S
        while self._at < high and (most is None or len(self._markers) < most):
            for message in consumer.consume(1_000, 0.2):
                error = message.error()
                if error is None:
                    self._at = message.offset() + 1
                    self._take(message.value())
                elif error.name() == "_PARTITION_EOF":
                    self._at = max(self._at, message.offset())
                else:
                    raise self._failed(error)
            if CLOCK.monotonic() > ends:
                raise SemelError(
                    f"{WHERE}: the topic {self.topic!r} brought nothing for {PATIENCE_S:g} s "
                    f"from offset {self._at}. Check the brokers"
                )

    def _take(self, value: bytes | None) -> None:
        try:
            found = json.loads(value or b"")
            marker = _loaded(found)
            token, clock = str(found["token"]), dict(found["clock"])
        except (ValueError, KeyError, TypeError, AttributeError):
            text = plain_text((value or b"")[:100].decode(errors="replace"))
            raise ConfigurationError(
                f"{WHERE}: the topic {self.topic!r} has a record that is not a marker: {text!r}. "
                "Use a topic that only semel writes to (markersTopic)"
            ) from None
        if marker.number <= self._newest:
            return
        self._newest = marker.number
        self._clock, self._last = clock, marker
        if marker.number > self._floor:
            self._markers.append(marker)
            self._tokens[marker.number] = token

    def _consuming(self) -> Any:
        if self._consumer is None:
            own = {"isolation.level": "read_uncommitted", "logger": ClientLog()}
            try:
                self._consumer = self._library.Consumer({**client_config(self._config), **own})
            except (self._library.KafkaException, TypeError, ValueError) as error:
                raise no_such_config(WHERE, error) from None
        return self._consumer

    def _produce(self, value: str) -> None:
        if self._producer is None:
            own = {**PRODUCING, "message.timeout.ms": int(PATIENCE_S * 1000)}
            try:
                self._producer = self._library.Producer(
                    {**self._config, **own, "logger": ClientLog()}
                )
            except (self._library.KafkaException, TypeError, ValueError) as error:
                raise no_such_config(WHERE, error) from None
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        self._producer.produce(self.topic, value.encode(), partition=0, on_delivery=delivered)
        left = self._producer.flush(PATIENCE_S)
        if failed or left:
            why = self._failed(failed[0]) if failed else SemelError("no answer")
            raise SemelError(f"{why}: the marker may not have been set; the query starts again")

    def _create(self) -> None:
        """Create the topic if it does not exist; another reader may do so at the same time."""
        from confluent_kafka.cimpl import NewTopic

        asked = self._library.TopicCollection([self.topic])
        try:
            found = self._ask(
                lambda: _one(self._admin.describe_topics(asked, request_timeout=10.0))
            )
        except _Missing:
            topic = NewTopic(self.topic, 1, -1, config=SETTINGS)
            try:
                self._ask(lambda: _one(self._admin.create_topics([topic], request_timeout=10.0)))
            except SemelError as error:
                if "TOPIC_ALREADY_EXISTS" not in str(error):
                    raise ConfigurationError(
                        f"{WHERE}: the topic of the markers {self.topic!r} does not exist and "
                        f"could not be created ({error}). Create it with one partition, or name "
                        "another one with markersTopic"
                    ) from None
            self._wait()
            return
        if len(found.partitions) != 1:
            raise ConfigurationError(
                f"{WHERE}: the topic of the markers {self.topic!r} has {len(found.partitions)} "
                "partitions; it needs one, because markers are in order. Name another one with "
                "markersTopic"
            )

    def _wait(self) -> None:
        """Wait until the new topic has a leader."""
        ends = CLOCK.monotonic() + PATIENCE_S
        partition = self._library.TopicPartition(self.topic, 0)
        while True:
            try:
                self._consuming().get_watermark_offsets(partition, timeout=5.0)
            except self._library.KafkaException as error:
                if CLOCK.monotonic() > ends:
                    raise self._failed(error.args[0]) from None
                CLOCK.sleep(0.05)
            else:
                return

    def _ask(self, ask: Any) -> Any:
        ends = CLOCK.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except self._library.KafkaException as error:
                refused = error.args[0]
                if refused.name() == "UNKNOWN_TOPIC_OR_PART":
                    raise _Missing(self.topic) from None
                silent = refused.retriable() or refused.name() in ("_TIMED_OUT", "_TRANSPORT")
                if not silent or CLOCK.monotonic() > ends:
                    raise self._failed(refused) from None
                CLOCK.sleep(0.2)

    def _failed(self, refused: Any) -> SemelError:
        return SemelError(
            f"{WHERE}: topic {self.topic!r}: {plain_text(self._shown(refused))} ({refused.name()})"
        )


def _one(asked: Mapping[str, Any]) -> Any:
    """Return the answer about the only topic."""
    [answer] = asked.values()
    return answer.result()


class _Missing(SemelError):
    """The topic does not exist."""


def _dumped(marker: Marker, clock: Mapping[str, Any], token: str) -> str:
    found: dict[str, Any] = {
        "version": VERSION,
        "marker": marker.number,
        "positions": nested(marker.positions),
        "interval_s": marker.interval_s,
        "rate": marker.rate,
        "reason": marker.reason,
        "at": marker.at,
        "events": marker.events,
        "clock": dict(clock),
        "token": token,
    }
    if marker.handoff is not None:
        found["handoff"] = {
            "since": marker.handoff.since,
            "seen": nested(marker.handoff.seen),
            "after": nested(marker.handoff.after),
        }
    return canonical(found)


def _loaded(found: Mapping[str, Any]) -> Marker:
    handoff = found.get("handoff")
    if type(found["marker"]) is not int:
        raise ValueError("not a marker")
    return Marker(
        found["marker"],
        flat(found["positions"]),
        float(found["interval_s"]),
        float(found["rate"]),
        str(found["reason"]),
        float(found["at"]),
        int(found["events"]),
        None
        if handoff is None
        else Handoff(float(handoff["since"]), flat(handoff["seen"]), flat(handoff["after"])),
    )
