"""Events as producers give them: limits, the digest of their content, and assigned entities.

Always true:
- an event that passes `prepare` can be stored: its texts have no lone surrogate, and keys can hold
  them;
- the digest covers everything but source and id, so a retry with other content is noticed;
- an event with an id and without an entity gets the same entity each time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import uuid4
from zlib import crc32

from semel.errors import EventRefused, EventTooLarge, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVENT_BYTES_MAX = 1024 * 1024
"""The most bytes that the data of an event has."""
TEXT_CHARACTERS_MAX = 1024
"""The most characters of entity, source, id, type, subject, time and content type."""
ATTRIBUTES_MAX = 64
ATTRIBUTES_CHARACTERS_MAX = 16 * 1024
"""The most attributes of an event, and the most characters of their names and values."""

USUAL_MAX = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _US
_LAST_US = (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC) - _EPOCH) // _US
"""The times that Python can show; a reader would stop at another one."""
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_MIX = 0x9E3779B1


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that a producer gives to an inbox. Its texts mean what CloudEvents 1.0 says.

    Attributes:
        value: the data.
        entity: whom it is about; events of one entity are numbered and kept in order. None: one is
            assigned, and the event is alone in it.
        source: who produced it. With `id` it is what a retry of the producer repeats.
        id: None: nothing is remembered, and every append is a new event.
        time: when it happened, as RFC 3339; it is kept to the microsecond.
        attributes: CloudEvents extensions.
    """

    value: bytes
    entity: str | None = None
    source: str = ""
    id: str | None = None
    type: str = ""
    subject: str | None = None
    time: str | None = None
    content_type: str = "application/json"
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an event is kept, and the id that it got; `repeat` if it was stored before."""

    entity: str
    event: int
    partition: int
    offset: int
    repeat: bool


class Prepared:
    """An event that can be stored, with what does not depend on what is stored already."""

    __slots__ = ("digest", "entity", "hash", "new", "partition", "time_us")

    def __init__(self, new: NewEvent, entity: str, digest: str, time_us: int | None) -> None:
        self.new = new
        self.entity = entity
        self.hash = entity_hash(entity)
        self.digest = digest
        self.time_us = time_us
        self.partition = -1
        """The partition that it goes to, as of the last look at the partitions."""


def entity_hash(entity: str) -> int:
    """Return a hash below 2**32 that is the same everywhere and for good."""
    return crc32(entity.encode()) * _MIX & 0xFFFFFFFF


def prepare(events: Sequence[NewEvent]) -> list[Prepared]:
    """Check events of one request. Raises `EventRefused` for the first that cannot be stored."""
    usual: set[str | None] = set()
    """Sources, types and content types of this request that were checked: mostly a few."""
    return [_prepared(event, number, usual) for number, event in enumerate(events)]


def _prepared(new: NewEvent, number: int, usual: set[str | None]) -> Prepared:
    if type(new) is not NewEvent:
        raise EventRefused(f"event {number} must be a semel.NewEvent, got {type(new).__name__}")
    value, entity, id_, time = new.value, new.entity, new.id, new.time
    if type(value) is not bytes:
        raise EventRefused(f"event {number}: value must be bytes, got {type(value).__name__}")
    if len(value) > EVENT_BYTES_MAX:
        raise EventTooLarge(
            f"event {number} has {len(value)} bytes, an inbox takes at most {EVENT_BYTES_MAX}: "
            "store its content elsewhere and send a reference"
        )
    if entity is not None:
        _check_text(entity, "entity", number, least=1)
    if id_ is not None:
        _check_text(id_, "id", number, least=1)
    for name, text in (
        ("source", new.source),
        ("type", new.type),
        ("content_type", new.content_type),
        ("subject", new.subject or ""),
    ):
        if text not in usual:
            _check_text(text, name, number)
            if len(usual) < USUAL_MAX:
                usual.add(text)
    time_us = None if time is None else _time_us(time, number)
    attributes = _checked_attributes(new, number) if new.attributes else ""
    digest = blake2b(
        f"{entity!a},{new.type!a},{new.subject!a},{time!a},{new.content_type!a},{attributes}".encode(),
        digest_size=16,
    )
    digest.update(value)
    if entity is None:
        entity = uuid4().hex if id_ is None else _assigned(new.source, id_)
    return Prepared(new, entity, digest.hexdigest(), time_us)


def _check_text(text: object, name: str, number: int, least: int = 0) -> None:
    if type(text) is not str:
        raise EventRefused(f"event {number}: {name} must be a text, got {type(text).__name__}")
    if not least <= len(text) <= TEXT_CHARACTERS_MAX:
        if not text:
            raise EventRefused(f"event {number}: {name} must not be empty; leave it out instead")
        raise EventTooLarge(
            f"event {number}: {name} has {len(text)} characters, an inbox takes at most "
            f"{TEXT_CHARACTERS_MAX}: {plain_text(text, 60)!r}"
        )
    if not text.isascii():
        _check_unicode(text, name, number)


def _check_unicode(text: str, name: str, number: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EventRefused(
            f"event {number}: {name} is not valid Unicode: {plain_text(text, 60)!r}"
        ) from None


def _checked_attributes(new: NewEvent, number: int) -> str:
    """Check the attributes and return them as a text that is equal for equal ones."""
    attributes = new.attributes
    if len(attributes) > ATTRIBUTES_MAX:
        raise EventTooLarge(
            f"event {number} has {len(attributes)} attributes, an inbox takes at most "
            f"{ATTRIBUTES_MAX}"
        )
    size = 0
    for name, text in attributes.items():
        for each in (name, text):
            if type(each) is not str:
                raise EventRefused(
                    f"event {number}: attributes must be texts, got {type(each).__name__}"
                )
            size += len(each)
            if size > ATTRIBUTES_CHARACTERS_MAX:
                raise EventTooLarge(
                    f"event {number} has attributes of more than {ATTRIBUTES_CHARACTERS_MAX} "
                    "characters"
                )
            _check_unicode(each, "an attribute", number)
    return f"{sorted(attributes.items())!a}"


def _assigned(source: str, id_: str) -> str:
    """Return the entity of an event that was given an id and no entity."""
    content = f"{source!a},{id_!a}".encode()
    return blake2b(content, digest_size=16).hexdigest()


def _time_us(text: str, number: int) -> int:
    """Return microseconds since 1970. Raises `EventRefused` for a text that is not RFC 3339."""
    _check_text(text, "time", number, least=1)
    found = _RFC3339.fullmatch(text)
    if found is not None:
        day, time, fraction, zone = found.groups()
        fraction = (fraction or "0")[:6].ljust(6, "0")
        zone = "+00:00" if zone in "Zz" else zone
        with suppress(ValueError, OverflowError):
            time_us = (datetime.fromisoformat(f"{day}T{time}.{fraction}{zone}") - _EPOCH) // _US
            if _FIRST_US <= time_us <= _LAST_US:
                return time_us
            raise EventRefused(
                f"event {number}: time must be between the years 1 and 9999 of UTC, got "
                f"{plain_text(text, 60)!r}"
            )
    raise EventRefused(
        f"event {number}: time must be RFC 3339, as in 2026-11-18T09:30:00Z, got "
        f"{plain_text(text, 60)!r}"
    )
