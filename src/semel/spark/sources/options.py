"""The options of the sources `semel.inbox` and `semel.kafka`, checked before anything is read.

Spark passes names without their case; messages show them as they are documented.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, plain_text
from semel.spark.sources.marking import TriggerLimits
from semel.spark.sources.positions import Positions, flat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INBOX, KAFKA = "semel.inbox", "semel.kafka"

COMMON = (
    "application",
    "latency",
    "maxOffsetsPerTrigger",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "startingOffsets",
    "endingOffsets",
    "startingMarker",
    "endingMarker",
    "failOnDataLoss",
)
OF_INBOX = ("ledger", "stream", "reader")
OF_KAFKA = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "markersTopic",
)
CHOOSING = ("subscribe", "subscribePattern", "assign")
ONLY_BATCH = ("endingOffsets", "endingMarker", "endingTimestamp")
PREFIX = "kafka."
SERVERS = "bootstrap.servers"

INSTEAD = {
    "minpartitions": "semel.kafka reads a partition of a topic in one task: remove it",
    "maxrecordsperpartition": "semel.kafka reads a partition of a topic in one task: remove it",
    "minoffsetspertrigger": "use latency and maxTriggerDelay: a marker ends a micro-batch in time",
}

OWN = frozenset({"enable.auto.commit", "auto.offset.reset", "enable.partition.eof"})
"""Settings of Kafka's client that the source needs for itself."""

EARLIEST, LATEST = "earliest", "latest"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_SIZE = re.compile(r"\s*([0-9]+)\s*([a-z]*)\s*")


@dataclass(frozen=True)
class ReadingPlace:
    """Where reading begins or ends: one of these is given, or none.

    Attributes:
        word: "earliest" or "latest".
        positions: of partitions; the others begin at the earliest.
        marker: behind the events of this marker.
        timestamp_ms: at the first record that is not older.
    """

    word: str | None = None
    positions: Positions | None = None
    marker: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What a user asked for; secrets are not shown."""

    source: str
    start: ReadingPlace
    stop: ReadingPlace
    limits: TriggerLimits = field(default_factory=TriggerLimits)
    application: str | None = None
    latency_s: float | None = None
    delay_s: float | None = None
    fail_on_data_loss: bool = True
    # semel.inbox
    ledger: str = field(default="", repr=False)
    stream: str = ""
    reader: str | None = None
    # semel.kafka
    kafka: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()
    headers: bool = False
    markers_topic: str = ""


def read_options(source: str, given: Mapping[str, str]) -> SourceOptions:
    """Check the options of a source. Raises `ConfigurationError`."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(source, options)
    values = _Values(source, options)
    common = {
        "start": values.place("starting"),
        "stop": values.place("ending"),
        "limits": TriggerLimits(values.events(), values.size("maxBytesPerTrigger")),
        "application": values.text("application"),
        "latency_s": values.seconds("latency"),
        "delay_s": values.seconds("maxTriggerDelay"),
        "fail_on_data_loss": values.flag("failOnDataLoss", default=True),
    }
    if source == INBOX:
        return SourceOptions(
            source,
            **common,  # type: ignore[arg-type]
            ledger=values.required("ledger", "the URL of the ledger that has the inbox"),
            stream=values.required("stream", "the name of the stream"),
            reader=values.text("reader"),
        )
    kafka = _client_options(options)
    topics, pattern, assigned = values.chosen()
    markers = values.text("markersTopic") or _markers_topic(topics, assigned)
    return SourceOptions(
        source,
        **common,  # type: ignore[arg-type]
        kafka=kafka,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        headers=values.flag("includeHeaders", default=False),
        markers_topic=markers,
    )


def require_streaming(options: SourceOptions) -> None:
    """Refuse options that only a batch has."""
    if options.stop != ReadingPlace():
        raise ConfigurationError(
            f"{options.source}: a stream has no end: remove {', '.join(ONLY_BATCH)}, or read "
            f'it with spark.read.format("{options.source}")'
        )


def _refuse_unknown(source: str, options: Mapping[str, str]) -> None:
    known = (*COMMON, *(OF_INBOX if source == INBOX else OF_KAFKA))
    names = {each.lower() for each in known}
    for name in options:
        if name in names or (source == KAFKA and name.startswith(PREFIX)):
            continue
        if name in INSTEAD:
            raise ConfigurationError(f"{source}: the option {name!r} is not known: {INSTEAD[name]}")
        also = ", kafka.*" if source == KAFKA else ""
        raise ConfigurationError(
            f"{source}: the option {name!r} is not known; it has {', '.join(known)}{also}"
        )


def _client_options(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {
        name.removeprefix(PREFIX): value
        for name, value in options.items()
        if name.startswith(PREFIX)
    }
    if not found.get(SERVERS):
        raise ConfigurationError(
            f'{KAFKA}: the option "{PREFIX}{SERVERS}" is missing: the brokers, as "host:9092"'
        )
    for name in sorted(OWN & found.keys()):
        raise ConfigurationError(
            f"{KAFKA}: the option {PREFIX + name!r} belongs to the source, which keeps positions "
            "in Spark's checkpoint: remove it (startingOffsets and failOnDataLoss are its options)"
        )
    return tuple(sorted(found.items()))


def _markers_topic(topics: tuple[str, ...], assigned: Iterable[tuple[str, int]]) -> str:
    names = sorted({*topics, *(topic for topic, _ in assigned)})
    if names:
        return f"{names[0]}.markers"
    raise ConfigurationError(
        f"{KAFKA}: with subscribePattern the option markersTopic is needed: the topic that keeps "
        "the markers"
    )


class _Values:
    """The values of options, each checked when it is asked for."""

    def __init__(self, source: str, options: Mapping[str, str]) -> None:
        self._source = source
        self._options = options

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        return value if value is None else value.strip()

    def required(self, name: str, what: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigurationError(f"{self._source}: the option {name!r} is missing: {what}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self._wrong(name, "true or false", value)
        return value.lower() == "true"

    def seconds(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        found = _TIME.fullmatch(value.lower())
        unit = None if found is None else _UNITS.get(found[2])
        if found is None or unit is None or float(found[1]) <= 0:
            raise self._wrong(name, 'a time above 0 with its unit, such as "500ms" or "5s"', value)
        return float(found[1]) * unit

    def events(self) -> int | None:
        names = [each for each in COMMON[2:4] if self.text(each) is not None]
        if len(names) > 1:
            raise ConfigurationError(
                f"{self._source}: {' and '.join(names)} are the same limit: pass one of them"
            )
        return self._number(names[0], 1) if names else None

    def size(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        found = _SIZE.fullmatch(value.lower())
        unit = None if found is None else _SIZES.get(found[2])
        if found is None or unit is None or int(found[1]) < 1:
            raise self._wrong(name, 'a number of bytes, such as "67108864" or "64m"', value)
        return int(found[1]) * unit

    def place(self, which: str) -> ReadingPlace:
        """Return where reading starts (`starting`) or ends (`ending`)."""
        names = [f"{which}Offsets", f"{which}Marker", f"{which}Timestamp"]
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{self._source}: pass {given[0]} or {given[1]}, not both")
        if not given:
            return ReadingPlace()
        if given[0] == names[1]:
            return ReadingPlace(marker=self._number(names[1], 0))
        if given[0] == names[2]:
            return ReadingPlace(timestamp_ms=self._number(names[2], 0))
        return self._offsets(names[0])

    def _offsets(self, name: str) -> ReadingPlace:
        value = self.text(name) or ""
        if value.lower() in (EARLIEST, LATEST):
            return ReadingPlace(word=value.lower())
        try:
            return ReadingPlace(positions=flat(json.loads(value)))
        except (ValueError, AttributeError, TypeError):
            form = '"earliest", "latest" or JSON such as {"topic": {"0": 17}}'
            raise self._wrong(name, form, value) from None

    def chosen(self) -> tuple[tuple[str, ...], str | None, tuple[tuple[str, int], ...]]:
        """Return the topics, the pattern or the partitions that are read."""
        given = [name for name in CHOOSING if self.text(name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                f"{self._source}: pass one of {', '.join(CHOOSING)}, got "
                f"{' and '.join(given) or 'none of them'}"
            )
        value = self.required(given[0], "the topics to read")
        if given[0] == "subscribe":
            topics = sorted({each.strip() for each in value.split(",")} - {""})
            if not topics:
                raise self._wrong(given[0], 'names of topics, such as "a,b"', value)
            return tuple(topics), None, ()
        if given[0] == "assign":
            return (), None, self._assigned(given[0], value)
        try:
            re.compile(value)
        except re.error:
            raise self._wrong(given[0], "a regular expression", value) from None
        return (), value, ()

    def _assigned(self, name: str, value: str) -> tuple[tuple[str, int], ...]:
        try:
            found = {
                (topic, int(number))
                for topic, several in json.loads(value).items()
                for number in several
            }
        except (ValueError, AttributeError, TypeError):
            raise self._wrong(name, 'JSON such as {"topic": [0, 1]}', value) from None
        return tuple(sorted(found))

    def _number(self, name: str, least: int) -> int:
        value = self.text(name) or ""
        if not value.isdecimal() or not value.isascii() or int(value) < least:
            raise self._wrong(name, f"a whole number of at least {least}", value)
        return int(value)

    def _wrong(self, name: str, form: str, value: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._source}: the option {name!r} must be {form}, got {plain_text(value, 100)!r}"
        )
