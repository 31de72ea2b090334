"""Inboxes as an operator sees them: streams, partitions and readers, and their newest events."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, plain_text
from semel.operate.times import utc_text
from semel.runtime import SystemClock
from semel.streams import Inbox, InboxPartition, InboxReader, NewEvent, list_streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from semel.ledger import Ledger
    from semel.runtime import Clock

PUT_EVENTS = 1_000
"""How many events are put by one commit."""
POLL_S = 0.5
READ_EVENTS = 1_000

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class InboxStatus:
    """The partitions and readers of one stream."""

    stream: str
    partitions: list[InboxPartition]
    readers: list[InboxReader]

    def behind(self, reader: InboxReader) -> int:
        """Return how many kept events a reader has not completed."""
        return sum(
            max(0, each.end - max(each.begin, reader.completed.get(each.partition, 0)))
            for each in self.partitions
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        partitions = [
            {
                **asdict(each),
                "parents": list(each.parents),
                "newest": utc_text(each.time_us / 1e6) if each.time_us else None,
            }
            for each in self.partitions
        ]
        for each in partitions:
            del each["time_us"]
        return {
            "stream": self.stream,
            "kept": sum(each.end - each.begin for each in self.partitions),
            "partitions": partitions,
            "readers": [
                {
                    "reader": each.reader,
                    "behind": self.behind(each),
                    "completed": {str(at): offset for at, offset in each.completed.items()},
                    "at": utc_text(each.time_us / 1e6),
                }
                for each in self.readers
            ],
        }


@dataclass(frozen=True, slots=True)
class PutEvents:
    """How many events were put, and how many of them were there before."""

    stream: str
    events: int
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EventFields:
    """How a text becomes an event: what is the same for all, and which fields of a JSON object
    have entity and id.
    """

    entity: str | None = None
    entity_field: str | None = None
    id: str | None = None
    id_field: str | None = None
    source: str = ""
    type: str = ""
    content_type: str = JSON_TYPE

    def event(self, text: str, where: str) -> NewEvent:
        """Return the event of a text. Raises `ConfigurationError` that says `where` it is wrong."""
        value: Any = None
        if self.content_type == JSON_TYPE or self.entity_field or self.id_field:
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ConfigurationError(
                    f"{where} is not JSON ({error}): {plain_text(text, 60)!r}; pass --content-type "
                    "for another kind of data"
                ) from None
        return NewEvent(
            text.encode("utf-8", "surrogateescape"),
            entity=_field(value, self.entity_field, where) or self.entity,
            source=self.source,
            id=_field(value, self.id_field, where) or self.id,
            type=self.type,
            content_type=self.content_type,
        )


def _field(value: Any, name: str | None, where: str) -> str | None:
    """Return a field of a JSON object as a text."""
    if name is None:
        return None
    found = value.get(name) if isinstance(value, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"{where} has no field {name!r} with a text or an integer")
    return found


def list_inboxes(ledger: Ledger, stream: str | None = None) -> list[InboxStatus]:
    """Return all streams of a ledger, or the named one. Raises `ConfigurationError` for a stream
    that does not exist.
    """
    names = list_streams(ledger.store) if stream is None else [stream]
    inboxes = [Inbox(ledger.store, name) for name in names]
    return [InboxStatus(each.stream, each.layout(), each.readers()) for each in inboxes]


def put_events(inbox: Inbox, events: Iterable[NewEvent]) -> PutEvents:
    """Append events in their order, `PUT_EVENTS` at a time."""
    rest = iter(events)
    count = repeats = 0
    while chunk := list(islice(rest, PUT_EVENTS)):
        stored = inbox.append(chunk)
        count += len(stored)
        repeats += sum(each.repeat for each in stored)
    return PutEvents(inbox.stream, count, repeats)


def newest_events(inbox: Inbox, limit: int) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return the newest events of a stream in the order in which they were stored, and the end of
    each partition then.
    """
    found: list[dict[str, Any]] = []
    ends: dict[int, int] = {}
    for each in inbox.layout():
        start = max(each.begin, each.end - limit)
        found += inbox.read(each.partition, start, each.end).to_pylist()
        ends[each.partition] = each.end
    return _in_order(found)[-limit:], ends


def follow_events(
    inbox: Inbox, ends: dict[int, int], clock: Clock | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events behind `ends` as they are stored, for as long as the caller asks."""
    clock = clock or SystemClock()
    reached = dict(ends)
    while True:
        found: list[dict[str, Any]] = []
        for each in inbox.layout():
            start = max(each.begin, reached.get(each.partition, 0))
            stop = min(each.end, start + READ_EVENTS)
            found += inbox.read(each.partition, start, stop).to_pylist()
            reached[each.partition] = stop
        yield from _in_order(found)
        if not found:
            clock.sleep(POLL_S)


def _in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(events, key=lambda each: (each["timestamp"], each["partition"], each["offset"]))


def event_to_json(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of `Inbox.read` as a JSON object; a value that is not text as base64."""
    shown = {name: value for name, value in event.items() if value is not None}
    shown["attributes"] = dict(event["attributes"])
    for name in ("time", "timestamp"):
        if name in shown:
            shown[name] = shown[name].isoformat()
    value = shown.pop("value")
    try:
        shown["value"] = value.decode()
    except UnicodeDecodeError:
        shown["value_base64"] = base64.b64encode(value).decode("ascii")
    return shown
