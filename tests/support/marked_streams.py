"""A stream with markers as one query reads it, without Spark: its inbox or topic, and a clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semel.spark.sources.inbox_stream import InboxStream
from semel.spark.sources.marking import Marking, TriggerLimits
from semel.spark.sources.options import INBOX, KAFKA, SourceOptions, read_options
from semel.spark.sources.options import ReadingPlace as Start
from semel.spark.sources.positions import Offset
from semel.streams import Inbox, MarkerClock, NewEvent
from semel.verify.servers.kafka import KafkaBroker

EARLIEST = Start(word="earliest")


class Ticking:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def opened(tmp_path: Path, partitions: int = 2) -> Inbox:
    inbox = Inbox(f"sqlite:///{tmp_path / 'inbox.db'}", "orders", partitions=partitions)
    inbox.create()
    return inbox


def stream(tmp_path: Path, **options: str) -> InboxStream:
    given = {"ledger": f"sqlite:///{tmp_path / 'inbox.db'}", "stream": "orders", **options}
    return InboxStream(read_options(INBOX, given))


def put(inbox: Inbox, begin: int, end: int, entities: int = 8) -> None:
    inbox.append([NewEvent(entity=f"c{n % entities}", value=b"%d" % n) for n in range(begin, end)])


def marking(source: Any, time: Any = None, **words: Any) -> Marking:
    limits = words.pop("limits", TriggerLimits())
    return Marking(source, MarkerClock("payments"), limits, time or Ticking(), **words)


def through_json(offset: Offset) -> Offset:
    return Offset.from_json(json.loads(json.dumps(offset.to_json())))


def kafka_options(kafka: KafkaBroker, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, **more}
    return read_options(KAFKA, {"startingOffsets": "earliest", **given})
