"""The way of one partition into Kafka's topics: its writer, and records that Kafka will take."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, Diverged, Rejected
from semel.events import key_part
from semel.runtime import SystemClock
from semel.sinks.kafka.log_reader import Ending
from semel.sinks.kafka.producer import Writer
from semel.sinks.kafka.records import BYTES_MAX, OVERHEAD_MAX, records_of
from semel.sinks.kafka.topics import Topic, Topics

if TYPE_CHECKING:
    from semel.events import Chunk
    from semel.sinks.kafka.records import Records
    from semel.sinks.kafka.sink import Kafka
    from semel.sinks.sink import Target

CLOCK = SystemClock()

_known: dict[tuple[object, ...], dict[str, tuple[float, Topic]]] = {}
"""What this process knows of topics, and since when, by sink."""

KNOWN_S = 60.0
"""How long this is trusted, also that a topic does not exist."""

DOUBTED_S = 1.0
"""How long it is trusted if an event would be rejected because of it."""

REACHED_S = 3.0
"""How long a broker is looked for at least, however short the retry: it may be busy."""


class KafkaConnection:
    """Opens writers and readers for one partition, and makes its records."""

    def __init__(self, sink: Kafka, target: Target) -> None:
        self.sink, self.target = sink, target
        self.where = sink.where(target)
        asked = (sink.servers, sink.secret_key, sink.progress_topic, sink.progress_partitions)
        self._topics = _known.setdefault(asked, {})
        self._missing: dict[str, float] = {}

    def look(self) -> None:
        """See that the topics are there that the sink names, unless that was seen lately."""
        sink = self.sink
        progress = None if sink.sequenced else sink.progress_topic
        named = [name for name in (sink.topic, progress) if name is not None]
        since = CLOCK.monotonic() - KNOWN_S
        if all(name in self._topics and self._topics[name][0] > since for name in named):
            return
        asking = self._asking()
        for name in named:
            if name == progress:
                asking.need_progress(progress, sink.progress_partitions)
            self._topics[name] = (CLOCK.monotonic(), asking.need(name))

    def _asking(self) -> Topics:
        return Topics(self.sink.client(), self.where, patience_s=self._reach_s)

    @property
    def _reach_s(self) -> float:
        """How long a broker is looked for: nothing is sent by it, so not longer than all tries
        together may take.
        """
        return min(self.sink.deadline_s, max(self.sink.retry.for_s, REACHED_S))

    def topic(self, name: str, *, within_s: float | None = None) -> Topic:
        """What is known of a topic, asked again if that is older than `within_s`."""
        at, known = self._topics[name]
        if within_s is not None and CLOCK.monotonic() - at > within_s:
            known = self._asking().find(name) or known
            self._topics[name] = (CLOCK.monotonic(), known)
        return known

    def forget(self) -> None:
        """Ask for the topics again with the next session: one of them was refused."""
        for name, (_, known) in self._topics.items():
            self._topics[name] = (-inf, known)

    def require_same(self, name: str, recorded: list[str] | None) -> None:
        """Raise `Diverged` where a topic is not the one that was written to before."""
        if self.topic(name).is_another(recorded):
            raise Diverged(
                f"{self.where}: topic {name!r} was deleted and recreated, so it has lost what it "
                "had acknowledged. Restore it, or start under a new name"
            )

    def writer(self) -> Writer:
        """Make a writer, and fence the one before it."""
        sink = self.sink
        made = Writer(
            sink.producer(self.target, self.bytes_max()),
            self.where,
            patience_s=sink.deadline_s,
        )
        try:
            made.fence(self._reach_s)
        except BaseException:
            made.close()
            raise
        return made

    def ending(self, topic: str, partition: int) -> Ending:
        """Look at the end of a partition, behind the fence."""
        return Ending(
            self.sink.client(),
            topic,
            partition,
            patience_s=self.sink.deadline_s,
            expires_s=self.sink.transaction_timeout_s + 15.0,
        )

    def records(self, chunk: Chunk) -> Records:
        """Make the records of a chunk. Raises `Rejected` where Kafka would refuse one of them."""
        made = records_of(chunk, self.sink.shape, self.target.pipeline)
        limit = self.bytes_max()
        if made.heaviest() > limit:
            heaviest = made.heaviest() - OVERHEAD_MAX
            raise Rejected(f"a record of {heaviest:,} bytes is too large: the limit is {limit:,}")
        if made.topics is not None:
            for name in set(made.topics):
                self._chosen(name)
        if made.partitions is not None:
            topics = made.topics or [str(self.sink.topic)] * len(made)
            for name, partition in set(zip(topics, made.partitions, strict=True)):
                count = self.topic(name).partitions
                if partition >= count:
                    count = self.topic(name, within_s=DOUBTED_S).partitions
                if partition >= count:
                    raise Rejected(
                        f"topic {name!r} has no partition {partition}; it has {count} partitions"
                    )
        return made

    def _chosen(self, name: str) -> None:
        """See that a topic that a row names is one it may name."""
        if name == self.sink.progress_topic:
            raise Rejected(f"{name!r} is the progress topic; events cannot be sent to it")
        if name in self._topics:
            return
        found = None
        if self._missing.get(name, 0.0) < CLOCK.monotonic():
            found = self._asking().find(name, patience_s=1.0)
        if found is None:
            self._missing[name] = CLOCK.monotonic() + KNOWN_S
            raise Rejected(f"topic {name!r} does not exist, or this user may not see it")
        self._topics[name] = (CLOCK.monotonic(), found)

    def bytes_max(self) -> int:
        """How large a record may be: by the config, otherwise by the topic and the client."""
        configured = self.sink.config.get("message.max.bytes")
        if configured is not None:
            return int(configured)
        of_topic = None if self.sink.topic is None else self.topic(self.sink.topic).bytes_max
        return BYTES_MAX if of_topic is None else of_topic


def place_of(target: Target) -> str:
    """The text of (pipeline, sink, partition), and of no other three."""
    return "/".join(map(key_part, (target.pipeline, target.sink, target.partition)))


def number_of(partition: str) -> tuple[str, int | None]:
    """Return what neighbours of a partition share in their names, and its number: 3 of `3of8`."""
    found = re.fullmatch(r"([0-9]+)(of[0-9]+)", partition)
    if found is not None:
        return found[2], int(found[1])
    stem = partition.rstrip("0123456789")
    digits = partition[len(stem) :]
    return stem, int(digits) if digits else None


def need_number(partition: str, where: str) -> int:
    """The number in a partition's name. Raises `ConfigurationError` if there is none."""
    number = number_of(partition)[1]
    if number is None:
        raise ConfigurationError(f"{where}: the partition has no number, so it has no log")
    return number
