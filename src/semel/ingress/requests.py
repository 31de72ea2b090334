"""Turns the body and the headers of a POST into events: CloudEvents 1.0, plain JSON and NDJSON.

Always true:
- a request is read as a whole or refused as a whole;
- the data of an event is stored as the bytes that were sent, never written again by a JSON library;
- an entity comes from the one place that was configured, and where it is required there, an event
  without it is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from semel.errors import ConfigurationError
from semel.ingress.json_members import (
    Member,
    first_place,
    read_json,
    read_object,
    read_objects,
    read_text,
    require_end,
)
from semel.streams import NewEvent
from semel.web import HttpProblem, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
CLOUD_EVENT = "application/cloudevents+json"
CLOUD_EVENTS = "application/cloudevents-batch+json"
MEDIA_TYPES = (CLOUD_EVENT, CLOUD_EVENTS, JSON, *NDJSON)

ENTITY_HEADER = b"semel-entity"
KEY_HEADER = b"idempotency-key"
KEY_SOURCE = "idempotency-key"
"""The source of events that have no source of their own, but a key of their request."""
EVENTS_MAX = 10_000
"""The most events of one request."""

_ATTRIBUTE = re.compile(r"[a-z0-9]+")
_REQUIRED = ("specversion", "id", "source", "type")
_KNOWN = frozenset((*_REQUIRED, "subject", "time", "datacontenttype"))
_ONCE = (b"content-type", b"content-encoding", ENTITY_HEADER, KEY_HEADER, b"authorization")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
"""What the text of a CloudEvent must not have; destinations such as PostgreSQL cannot hold it."""
_JSON_TYPE = re.compile(r"[^;]*[/+]json\s*(;.*)?", re.IGNORECASE)
_NONE = object()


@dataclass(frozen=True, slots=True)
class EntityPlace:
    """Where the entity of an event is: `auto`, `header`, `subject`, or a JSON pointer.

    `auto` takes the header `Semel-Entity`, else the subject of a CloudEvent; without both the inbox
    assigns one. Each other place is required.
    """

    place: str = "auto"
    pointer: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.place in ("auto", "header", "subject"):
            return
        if not self.place.startswith("/") or re.search("~(?![01])", self.place):
            raise ConfigurationError(
                f"--entity must be auto, header, subject or a JSON pointer such as /customer/id, "
                f"got {self.place!r}"
            )
        parts = self.place[1:].split("/")
        pointer = tuple(each.replace("~1", "/").replace("~0", "~") for each in parts)
        object.__setattr__(self, "pointer", pointer)

    def of(self, header: str | None, subject: str | None, value: Any, base: str = "") -> str | None:
        """Return the entity of an event; None where the inbox assigns one. `base` is the pointer of
        its data in the request. Raises `HttpProblem` where it is required and missing.
        """
        if self.pointer:
            return self._in_value(value, base)
        if self.place == "subject":
            if subject is None:
                raise _unprocessable("the event has no `subject`, which is its entity here")
            return subject
        if header is not None:
            return header
        if self.place == "header":
            raise _unprocessable(
                "the request has no header `Semel-Entity`, which is the entity of its events here"
            )
        return subject

    def _in_value(self, value: Any, base: str) -> str:
        if value is _NONE:
            raise _unprocessable(f"the entity is read at {self.place}, but the data is not JSON")
        found = value
        for part in self.pointer:
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise _unprocessable(
                    f"there is no entity: the data has nothing at {self.place}",
                    pointer=base + self.place,
                )
        if isinstance(found, str) and not _CONTROL.search(found):
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        raise _unprocessable(
            f"the entity at {self.place} must be an integer, or a text without control characters",
            pointer=base + self.place,
            value=shown(found),
        )


Headers = dict[bytes, bytes]


def read_headers(pairs: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers by their lower-case names. Raises `HttpProblem` for one that must not be
    there twice.
    """
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in headers:
            if (name in _ONCE or name.startswith(b"ce-")) and names.count(name) > 1:
                raise HttpProblem(
                    HTTPStatus.BAD_REQUEST,
                    f"the header {name.decode()} is there twice; send it once",
                    field=name.decode(),
                )
    return headers


def read_events(headers: Headers, body: bytes, entity: EntityPlace) -> list[NewEvent]:
    """Return the events of a request. Raises `HttpProblem`."""
    kind = _media_type(headers)
    given = _header_text(headers, ENTITY_HEADER)
    if kind == CLOUD_EVENT:
        text = read_text(body)
        members, end = read_object(text, first_place(text))
        require_end(text, end)
        return [_cloud_event(text, members, given, entity)]
    if kind == CLOUD_EVENTS:
        return _cloud_events(read_text(body), given, entity)
    if b"ce-specversion" in headers or b"ce-id" in headers:
        return [_binary(headers, body, given, entity)]
    key = _header_text(headers, KEY_HEADER)
    if kind in NDJSON:
        return _lines(body, given, key, entity)
    if _JSON_TYPE.fullmatch(kind):
        value = read_json(read_text(body))
        return [_plain(body, entity.of(given, None, value), key)]
    raise HttpProblem(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"the Content-Type must be one of {', '.join(MEDIA_TYPES)}, or the request must have the "
        "`ce-` headers of a CloudEvent",
        field="content-type",
        value=shown(kind) if kind else None,
        headers=((b"accept", ", ".join(MEDIA_TYPES).encode()),),
    )


def _media_type(headers: Headers) -> str:
    """Return the media type; refuse an encoding or a character set that is not read."""
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.strip().lower() != "identity":
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "a compressed body is not read: send it without Content-Encoding",
            field="content-encoding",
            value=shown(encoding),
            headers=((b"accept-encoding", b"identity"),),
        )
    written = headers.get(b"content-type", b"").decode("latin-1")
    kind, _, parameters = written.partition(";")
    kind = kind.strip().lower()
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]*)", parameters, re.IGNORECASE)
    reads_text = kind in MEDIA_TYPES or _JSON_TYPE.fullmatch(kind)
    if charset and reads_text and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise HttpProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "JSON must be sent in UTF-8",
            field="content-type",
            value=shown(written),
        )
    return kind


def _cloud_events(text: str, given: str | None, entity: EntityPlace) -> list[NewEvent]:
    events: list[NewEvent] = []
    for members in read_objects(text):
        _refuse_many(len(events))
        try:
            events.append(_cloud_event(text, members, given, entity))
        except HttpProblem as problem:
            raise problem.at(event=len(events)) from None
    return _some(events)


def _lines(body: bytes, given: str | None, key: str | None, entity: EntityPlace) -> list[NewEvent]:
    """Return the events of NDJSON, one value on each line; empty lines are skipped."""
    events: list[NewEvent] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        value = line.strip(b" \t\r")
        if not value:
            continue
        _refuse_many(len(events))
        try:
            parsed = read_json(read_text(value))
            who = entity.of(given, None, parsed)
        except HttpProblem as problem:
            raise problem.on_line(number) from None
        events.append(_plain(value, who, None if key is None else f"{key}/{len(events)}"))
    return _some(events)


def _refuse_many(count: int) -> None:
    if count >= EVENTS_MAX:
        raise HttpProblem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a request may have at most {EVENTS_MAX} events; send several requests",
        )


def _some(events: list[NewEvent]) -> list[NewEvent]:
    if not events:
        raise _unprocessable("the request has no event; send at least one")
    return events


def _plain(value: bytes, entity: str | None, key: str | None) -> NewEvent:
    return NewEvent(value, entity, "" if key is None else KEY_SOURCE, key)


def _cloud_event(
    text: str, members: Mapping[str, Member], given: str | None, entity: EntityPlace
) -> NewEvent:
    """Return a CloudEvent in structured mode."""
    attributes = {name: member[0] for name, member in members.items() if member[0] is not None}
    attributes.pop("data", None)
    encoded = attributes.pop("data_base64", None)
    further = _checked(attributes, "/")
    data = members.get("data")
    if data is not None and encoded is not None:
        raise _unprocessable("an event has `data` or `data_base64`, not both", pointer="/data")
    value: Any = _NONE
    content = b""
    kind = attributes.get("datacontenttype", "")
    if data is not None and (not kind or kind == JSON or _JSON_TYPE.fullmatch(kind)):
        value, content, kind = data[0], text[data[1] : data[2]].encode(), kind or JSON
    elif data is not None:
        if not isinstance(data[0], str):
            raise _unprocessable(
                f"`data` must be a text, because `datacontenttype` is {shown(kind)!r}",
                pointer="/data",
                value=shown(data[0]),
            )
        content = _utf8(data[0], "/data")
    elif encoded is not None:
        content = _base64(encoded)
        value = read_json(read_text(content)) if _JSON_TYPE.fullmatch(kind) else _NONE
    who = entity.of(given, attributes.get("subject"), value, "/data")
    return _new_event(content, who, attributes, kind, further)


def _binary(headers: Headers, body: bytes, given: str | None, entity: EntityPlace) -> NewEvent:
    """Return a CloudEvent in binary mode: attributes in headers, the body is the data."""
    attributes: dict[str, Any] = {
        name[3:].decode("latin-1"): _attribute_text(name, written)
        for name, written in headers.items()
        if name.startswith(b"ce-")
    }
    kind = headers.get(b"content-type", b"").decode("latin-1").strip()
    if "datacontenttype" in attributes:
        raise _unprocessable(
            "send the content type as Content-Type, not as `ce-datacontenttype`",
            field="ce-datacontenttype",
        )
    further = _checked(attributes, "ce-")
    value = read_json(read_text(body)) if _JSON_TYPE.fullmatch(kind) else _NONE
    who = entity.of(given, attributes.get("subject"), value)
    return _new_event(body, who, attributes, kind, further)


def _new_event(
    content: bytes,
    entity: str | None,
    attributes: Mapping[str, str],
    kind: str,
    further: dict[str, str],
) -> NewEvent:
    return NewEvent(
        content,
        entity,
        attributes["source"],
        attributes["id"],
        attributes["type"],
        attributes.get("subject"),
        attributes.get("time"),
        kind,
        further,
    )


def _checked(attributes: Mapping[str, Any], place: str) -> dict[str, str]:
    """Check the attributes of a CloudEvent, and return its extensions as texts. `place` is what
    stands before a name in the request: a slash for a JSON pointer, `ce-` for a header.
    """
    for name in _REQUIRED:
        if name not in attributes:
            raise _unprocessable(
                f"the attribute `{name}` of CloudEvents 1.0 is missing", **_place(place, name)
            )
    if attributes["specversion"] != "1.0":
        raise _unprocessable(
            "specversion must be 1.0",
            **_place(place, "specversion"),
            value=shown(attributes["specversion"]),
        )
    further: dict[str, str] = {}
    for name, value in attributes.items():
        if name in _KNOWN:
            if not value or not isinstance(value, str):
                raise _unprocessable(
                    f"the attribute `{name}` must be a text that is not empty",
                    **_place(place, name),
                    value=shown(value),
                )
        elif not _ATTRIBUTE.fullmatch(name):
            raise _unprocessable(
                "the name of an attribute has only the characters a-z and 0-9",
                **_place(place, shown(name)),
            )
        else:
            further[name] = _extension(value, place, name)
        _refuse_controls(further.get(name, value), place, name)
    return further


def _refuse_controls(value: str, place: str, name: str) -> None:
    if not value.isprintable() and _CONTROL.search(value):
        raise _unprocessable(
            f"the attribute `{name}` must have no control characters",
            **_place(place, name),
            value=shown(value),
        )


def _extension(value: Any, place: str, name: str) -> str:
    """Return an extension in its canonical text form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return str(value)
    raise _unprocessable(
        f"the attribute `{name}` must be a text, a boolean or an integer of 32 bits",
        **_place(place, name),
        value=shown(value),
    )


def _place(place: str, name: str) -> dict[str, str]:
    return {"pointer": f"/{name}"} if place == "/" else {"field": f"{place}{name}"}


def _base64(written: Any) -> bytes:
    try:
        if isinstance(written, str):
            return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _unprocessable(
        "`data_base64` must be a text in Base64", pointer="/data_base64", value=shown(written)
    )


def _utf8(text: str, pointer: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _unprocessable(
            "the text is not valid Unicode: it has half of a surrogate pair",
            pointer=pointer,
            value=shown(text),
        ) from None


def _attribute_text(name: bytes, written: bytes) -> str:
    """Return an attribute of a CloudEvent in a header: a text, quoted or not, whose characters may
    be percent-encoded UTF-8. Two ids that are not UTF-8 would become the same text, so they are
    refused.
    """
    inside = _QUOTED.fullmatch(written)
    text = None
    if inside is not None or not written.startswith(b'"'):
        text = _percent_decoded(written if inside is None else _ESCAPED.sub(rb"\1", inside[1]))
    if text is None:
        raise _unprocessable(
            f"the header {name.decode('latin-1')} must be percent-encoded UTF-8, or a text in "
            "double quotes",
            field=name.decode("latin-1"),
            value=shown(written),
        )
    return text


def _percent_decoded(written: bytes) -> str | None:
    """Return a text in percent-encoded UTF-8; None if it is not UTF-8."""
    try:
        return unquote(written.decode(), errors="strict")
    except UnicodeDecodeError:
        return None


def _header_text(headers: Headers, name: bytes) -> str | None:
    """Return a header of ours as text; it may be percent-encoded UTF-8, as CloudEvents have it."""
    written = headers.get(name)
    if written is None:
        return None
    text = _percent_decoded(written)
    if not text or not text.isprintable():
        raise _unprocessable(
            f"the header {name.decode()} must be a text that is not empty, in UTF-8",
            field=name.decode(),
            value=shown(written),
        )
    return text


def _unprocessable(detail: str, **where: Any) -> HttpProblem:
    return HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, **where)
