"""Topics of Kafka as a stream with markers, in the process that Spark has for a reader.

Always true:
- only what a `read_committed` reader may see counts as arrived, unless an option says otherwise;
- partitions that are added first get a marker of their own, in which all others end. While a
  producer may not know them yet, their records follow one marker later than the records of the
  others that were written before.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, SemelError, plain_text
from semel.runtime import SystemClock
from semel.sinks import ClientLog, ErrorText, client_library, no_such_config
from semel.spark.sources.kafka_markers import MarkerLog
from semel.spark.sources.kafka_reader import data_loss, sample_bytes
from semel.spark.sources.marking import Cut, Handoff
from semel.spark.sources.options import LATEST
from semel.spark.sources.positions import Border, Offset, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.spark.sources.marking import Marker
    from semel.spark.sources.options import ReadingPlace as Start
    from semel.spark.sources.options import SourceOptions
    from semel.spark.sources.positions import Piece, Place, Positions
    from semel.streams import MarkerClock

CLOCK = SystemClock()
_LOG = logging.getLogger("semel")

REQUEST_S = 10.0
PATIENCE_S = 60.0
"""How long brokers that do not answer are asked again, before the query fails."""
HANDOFF_S = 330.0
"""How long a producer may not know a new partition: the client's default is 5 minutes."""
SAMPLE_EVERY_S = 10.0
UNCOMMITTED = "read_uncommitted"
WHERE = "semel.kafka"
EARLIEST_AT, LATEST_AT = -2, -1
"""What Spark's Kafka source writes for the earliest and the latest offset."""


class KafkaStream:
    """The topics that one query reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._config: dict[str, Any] = dict(options.kafka)
        self._library = client_library()
        self._shown = ErrorText(self._config)
        self._admin_client: Any = None
        self._log: MarkerLog | None = None
        self._size = (-SAMPLE_EVERY_S, 0.0)

    # -- what a reader of markers asks for

    def ends(self) -> Positions:
        """Return the end of each partition, as a reader may see it."""
        return self._offsets(self.places(), self._spec().latest())

    def begins(self, places: Sequence[Place]) -> Positions:
        """Return the first offset that is kept of each of these partitions. A topic of a pattern
        that was deleted is left out.
        """
        if self._options.pattern is not None:
            there = set(self.places())
            places = [place for place in places if place in there]
        return self._offsets(places, self._spec().earliest())

    def cut(self, last: Marker, base: Positions, now: float) -> Cut:
        """Return the ends, with partitions that were added as far as their parents were read. What
        was added follows from the marker before: other queries take this one too, and may not know
        what this query began with.
        """
        handoff, places = last.handoff, self.places()
        marked = {topic for topic, _ in last.positions}
        known = last.positions.keys() | {place for place in base if place[0] not in marked}
        added = [place for place in places if place not in known]
        topics = {topic for topic, _ in known}
        young = {place for place in added if place[0] in topics}
        read = handoff is not None and all(
            base.get(place, at) >= at for place, at in handoff.after.items()
        )
        # It ends after a marker that was set, and read, when every producer knew them: the last
        # record that went to another partition is before that one.
        if handoff is not None and (last.at - handoff.since < HANDOFF_S or not read):
            young |= handoff.seen.keys() & set(places)
        seen = self._offsets(sorted(young), self._spec().latest())  # before the others
        old = self._offsets([p for p in places if p not in young], self._spec().latest())
        ends = {**old, **self.begins(added)}
        if not young:
            return Cut(ends, held=bool(added))
        if count(base, old) == 0:  # all before `seen` was read
            follow = seen
        else:
            follow = handoff.seen if handoff is not None and read else {}
        for place in young - set(added):
            ends[place] = max(base[place], follow.get(place, 0))
        since = now if handoff is None or added else handoff.since
        if handoff is not None and not read:  # what was seen then still waits
            waiting = Handoff(since, {**seen, **handoff.seen}, {**old, **handoff.after})
        else:
            waiting = Handoff(since, seen, old)
        return Cut(ends, waiting, held=bool(added))

    def follows(self, last: Marker, marker: Marker) -> bool:
        """While partitions are handed over, each marker has a micro-batch of its own."""
        return marker.handoff is None and last.handoff is None

    def together(self, start: Positions, end: Positions) -> Positions:
        """A micro-batch may have any range: markers are set where what was added may follow."""
        del start
        return end

    def after(self, number: int, most: int) -> list[Marker]:
        """Return the first markers with greater numbers, as far as they are about this query."""
        return [self._own(each) for each in self.markers().after(number, most)]

    def put(self, marker: Marker, clock: MarkerClock) -> bool:
        """Append a marker to the companion topic; False if another reader was first. What this
        query does not read stays as the marker before has it.
        """
        log = self.markers()
        others = {} if log.last is None else log.last.positions
        others = {place: at for place, at in others.items() if not self._reads(place)}
        marker = replace(marker, positions={**others, **marker.positions})
        return log.put(marker, clock.dump())

    def _own(self, marker: Marker) -> Marker:
        """Return a marker without the partitions that this query does not read."""
        if all(map(self._reads, marker.positions)):
            return marker
        own = {place: at for place, at in marker.positions.items() if self._reads(place)}
        return replace(marker, positions=own)

    def _reads(self, place: Place) -> bool:
        options, topic = self._options, place[0]
        if options.assigned:
            return place in options.assigned
        return self._matches(topic) if options.pattern is not None else topic in options.topics

    def _matches(self, topic: str) -> bool:
        """Whether a topic is one of `subscribePattern`."""
        options = self._options
        return (
            re.fullmatch(options.pattern or "", topic) is not None
            and topic != options.markers_topic
            and topic[:2] != "__"
        )

    def bytes_per_event(self, start: Positions, end: Positions) -> float:
        """Return the mean size of records, from the first ones of a few partitions."""
        now = CLOCK.monotonic()
        if now - self._size[0] >= SAMPLE_EVERY_S:
            size = sample_bytes(self._options.kafka, start, end)
            self._size = (now, size or self._size[1])
        return self._size[1]

    # -- where a query begins, and what a micro-batch reads

    def start(self, start: Start, *, default: str) -> Offset:
        """Return where a query or a batch begins. Raises `ConfigurationError` if it is gone."""
        places = self.places()
        if start.marker is not None:
            marker = self._own(self.markers().need(start.marker))
            begins = self.begins([each for each in places if each not in marker.positions])
            return Offset(marker.number, {**begins, **marker.positions}, initial=True)
        return Offset(0, self._start(start, places, default), initial=True)

    def _start(self, start: Start, places: list[Place], default: str) -> Positions:
        if start.timestamp_ms is not None:
            ends = self._offsets(places, self._spec().latest())
            found = self._offsets(places, self._spec().for_timestamp(start.timestamp_ms))
            return {place: found[place] if found[place] >= 0 else ends[place] for place in places}
        if start.positions is None:
            word = start.word or default
            latest = word == LATEST
            return self.ends() if latest else self.begins(places)
        unknown = sorted(start.positions.keys() - set(places))
        if unknown:
            topic, partition = unknown[0]
            raise ConfigurationError(
                f"{WHERE}: startingOffsets names {topic}/{partition}, which is not read: it does "
                "not exist, or is not subscribed to"
            )
        begins, ends = self.begins(places), self._offsets(places, self._spec().latest())
        wanted = {place: start.positions.get(place, EARLIEST_AT) for place in places}
        named = {EARLIEST_AT: begins, LATEST_AT: ends}
        return {place: named[at][place] if at in named else at for place, at in wanted.items()}

    def borders(self, start: Offset, stop: Positions) -> Offset:
        """Return the end of a batch, with the markers inside it."""
        found = []
        number = start.marker
        while several := self.after(number, 1_000):
            number = several[-1].number
            found += [Border(each.number, each.positions) for each in several]
        inside = [
            each
            for each in found
            if all(at <= stop.get(place, at) for place, at in each.positions.items())
        ]
        return Offset(0, stop, tuple(inside))

    def kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return what is read. Raises `SemelError` if Kafka has lost some of it, unless that is
        allowed; then the reader goes on behind the loss.
        """
        found = list(pieces)
        if not self._options.fail_on_data_loss or not found:
            return found
        places = [(each.topic, each.partition) for each in found]
        begins = self._offsets(places, self._spec().earliest())
        ends = self._offsets(places, self._spec().latest())
        for place, piece in zip(places, found, strict=True):
            if not begins[place] <= piece.start <= piece.stop <= ends[place]:
                at = piece.start if piece.start < begins[place] else piece.stop
                raise SemelError(data_loss(*place, at, begins[place], ends[place]))
        return found

    def lost(self, text: str) -> None:
        """Refuse to go on without events, or warn where that is allowed."""
        if self._options.fail_on_data_loss:
            raise SemelError(f"{WHERE}: {text}")
        _LOG.warning("%s: %s", WHERE, text)

    def learned(self) -> Mapping[str, Any]:
        """Return what the marker clock had learned when the newest known marker was set."""
        return self.markers().clock

    def newest(self) -> Marker | None:
        """Return the newest marker; None if there is none."""
        found = self.markers().newest()
        return None if found is None else self._own(found)

    def register(self) -> None:
        """Kafka keeps records by its own rules."""

    def completed(self, positions: Positions) -> None:
        """Kafka keeps records by its own rules."""

    def places(self) -> list[Place]:
        """Return the partitions to read that exist. Raises `ConfigurationError` without any."""
        options = self._options
        if options.pattern is not None:
            found = self._ask(lambda: self._admin().list_topics(timeout=REQUEST_S)).topics
            named = [name for name in found if self._matches(name)]
            places = [(name, number) for name in named for number in found[name].partitions]
            if not places:
                raise ConfigurationError(
                    f"{WHERE}: no topic matches subscribePattern={options.pattern!r}"
                )
            return sorted(places)
        topics = sorted({*options.topics, *(topic for topic, _ in options.assigned)})
        there = [place for topic in topics for place in self._partitions(topic)]
        if not options.assigned:
            return sorted(there)
        for topic, partition in options.assigned:
            if (topic, partition) not in there:
                raise ConfigurationError(f"{WHERE}: topic {topic!r} has no partition {partition}")
        return list(options.assigned)

    def markers(self) -> MarkerLog:
        """Return the companion topic; it is created if it does not exist."""
        if self._log is None:
            self._log = MarkerLog(self._config, self._options.markers_topic, self._admin())
        return self._log

    # -- Kafka

    def _partitions(self, topic: str) -> list[Place]:
        asked = self._library.TopicCollection([topic])

        def ask() -> Any:
            answers = self._admin().describe_topics(asked, request_timeout=REQUEST_S)
            return answers[topic].result()

        found = self._ask(ask, topic)
        return [(topic, each.id) for each in found.partitions]

    def _offsets(self, places: Iterable[Place], spec: Any) -> Positions:
        from confluent_kafka import IsolationLevel

        committed = self._config.get("isolation.level") != UNCOMMITTED
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {self._library.TopicPartition(*place): spec for place in places}
        if not asked:
            return {}

        def ask() -> Positions:
            answers = self._admin().list_offsets(
                asked, isolation_level=level, request_timeout=REQUEST_S
            )
            return {(at.topic, at.partition): each.result().offset for at, each in answers.items()}

        found: Positions = self._ask(ask)
        return found

    def _ask(self, ask: Any, topic: str = "") -> Any:
        """Ask the brokers, again for a while if they do not answer."""
        ends = CLOCK.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except self._library.KafkaException as error:
                refused = error.args[0]
                if refused.name() == "UNKNOWN_TOPIC_OR_PART" and topic:
                    raise ConfigurationError(
                        f"{WHERE}: topic {topic!r} does not exist, or this user may not see it"
                    ) from None
                silent = refused.retriable() or refused.name() in _SILENT
                if not silent or CLOCK.monotonic() > ends:
                    raise SemelError(
                        f"{WHERE}: {plain_text(self._shown(refused))} ({refused.name()}) from "
                        f"{self._config.get('bootstrap.servers')}. Check the brokers and the "
                        "options kafka.*"
                    ) from None
                CLOCK.sleep(0.2)

    def _admin(self) -> Any:
        if self._admin_client is None:
            from confluent_kafka.admin import AdminClient

            own: dict[str, Any] = {**self._config, "logger": ClientLog()}
            try:
                self._admin_client = AdminClient(own)
            except (self._library.KafkaException, TypeError, ValueError) as error:
                raise no_such_config(WHERE, error) from None
        return self._admin_client

    @staticmethod
    def _spec() -> Any:
        from confluent_kafka import admin

        return admin.OffsetSpec  # type: ignore[attr-defined]


_SILENT = frozenset({"_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN"})
