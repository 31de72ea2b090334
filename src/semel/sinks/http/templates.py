"""Templates of requests: a URL, headers and a body, filled from the columns of an event.

Always true:
- a value stays in its place: it adds no path segment, no parameter, no host and no header line;
- a value that cannot be written where it belongs rejects its event, before anything is sent;
- messages about an event name the column, never a secret.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from semel.errors import ConfigurationError, NotDelivered, Rejected
from semel.events.encoding import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KEY = "semel.key"
"""The name of the event's key in a template (PROBING: of the chunk's key); no column has it."""

KEY_LENGTH_MAX = 255
"""Keys that are longer travel as their SHA-256: destinations refuse them, or cut them off."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]+")
_WORD = re.compile(r"[a-z]{1,16}(?:[-_.][a-z]{1,16})*|v\d{1,2}")
_SEPARATOR = re.compile(r"[/\\]")
_SPECIAL = re.compile(r'(["\\])')


@dataclass(frozen=True, slots=True)
class Template:
    """A text with `{column}` in it: `texts` around `names`, one more text than names."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str, what: str) -> Template:
        """Read a template; `{{` and `}}` are braces."""
        texts, names = [""], []
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(
                f"{what}: {error}; write {{column}} for a value and {{{{ for a brace"
            ) from None
        for literal, name, form, conversion in parts:
            texts[-1] += literal
            if name is None:
                continue
            if not name or form or conversion:
                raise ConfigurationError(
                    f"{what}: a template has column names in braces ({{column}}) and nothing else; "
                    "compute any other value as a column"
                )
            names.append(name)
            texts.append("")
        return cls(tuple(texts), tuple(names))

    @property
    def alone(self) -> bool:
        """Whether it is one column and nothing else, so that a body takes the value itself."""
        return self.texts == ("", "")

    def fill(self, value: Callable[[str], str]) -> str:
        """Put what `value` gives for each name between the texts."""
        if not self.names:
            return self.texts[0]
        made = [self.texts[0]]
        for name, text in zip(self.names, self.texts[1:], strict=True):
            made += [value(name), text]
        return "".join(made)


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """Write a value as text. Raises `Rejected` for one that has no text of its own."""
    value = column(row, name, where)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode()
    why = "is null" if value is None else f"is a {type(value).__name__}"
    raise Rejected(f"column {name!r} {why}, but {where} needs a string or a number")


def column(row: Mapping[str, Any], name: str, where: str) -> Any:
    """Return a column's value. Raises `NotDelivered` for a missing column: the template is wrong,
    not the event, and nothing was sent.
    """
    try:
        return row[name]
    except KeyError:
        raise NotDelivered(
            f"{where} names the column {name!r}, which does not exist; there are "
            f"{', '.join(map(repr, row))}. Correct the template or the query, then restart the "
            "query"
        ) from None


# -- URLs


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A URL whose path and query take values; its host takes none."""

    text: str = field(repr=False)
    origin: str
    segments: tuple[Template, ...] = field(repr=False)
    query: Template | None = field(repr=False)
    names: frozenset[str]
    """The columns that it takes values from."""

    @classmethod
    def of(cls, text: str, what: str) -> UrlTemplate:
        """Read a template. Raises `ConfigurationError` for a URL that values could lead astray."""
        if not isinstance(text, str) or not text.isascii() or re.search(r"[\x00-\x20\x7f]", text):
            raise ConfigurationError(
                f"{what} must be one line of ASCII without spaces; write other characters as %XX"
            )
        try:
            parts = urlsplit(text)
        except ValueError:  # its text has the part before the path, and so a password
            raise ConfigurationError(f"{what} has an invalid host") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{what} must begin with https:// (or http://) and a host")
        if "@" in parts.netloc:
            raise ConfigurationError(f"{what} has a user or password: use auth=Basic(...)")
        if "{" in parts.netloc:
            raise ConfigurationError(f"{what}: the host must be the same for every event")
        if parts.fragment or text.endswith("#"):
            raise ConfigurationError(f"{what} has a fragment (#), which is never sent")
        try:
            parts.port  # noqa: B018 - a port that is not a number is found here
        except ValueError:  # its text may have a part of a password
            raise ConfigurationError(f"{what}: the port is not a number, or is too large") from None
        path = parts.path or "/"
        segments = tuple(Template.of(each, what) for each in path.split("/")[1:])
        query = Template.of(parts.query, what) if parts.query else None
        names = frozenset(() if query is None else query.names)
        names = names.union(*(each.names for each in segments))
        return cls(text, f"{parts.scheme}://{parts.netloc}", segments, query, names)

    @property
    def shown(self) -> str:
        """The URL as people may read it: what is fixed in path and query may be a secret."""
        names = [f"{{{name}}}" for each in self.segments for name in each.names]
        fixed = any(text for each in self.segments for text in each.texts)
        return "/".join([self.origin, *(["..."] if fixed else []), *names])

    @property
    def literals(self) -> list[str]:
        """The constant parts of the path that may be secret: the path itself, and segments that are
        not plain words.
        """
        fixed = [text for each in self.segments for text in each.texts if text]
        found = [text for text in fixed if not _WORD.fullmatch(text)]
        if not self.names and len(fixed) > 1:
            found.append("/".join(fixed))
        return found

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return path and query for one event. Raises `Rejected` for a value that cannot be in a
        URL.
        """
        if not self.names:
            return self.constant

        def value(name: str) -> str:
            return quote(text_of(row, name, "the URL"), safe="")

        made = []
        for segment in self.segments:
            text = segment.fill(value)
            if segment.names:
                _require_segment(text, segment.names)
            made += ["/", text]
        if self.query is not None:
            made += ["?", self.query.fill(value)]
        return "".join(made)

    @property
    def constant(self) -> str:
        """Path and query of a URL without values, braces as they are written."""
        path = "".join(f"/{each.texts[0]}" for each in self.segments)
        return path if self.query is None else f"{path}?{self.query.texts[0]}"


def _require_segment(text: str, names: tuple[str, ...]) -> None:
    """A segment stays one segment, also where a server decodes it before it looks."""
    parts = _SEPARATOR.split(unquote(text)) if "." in text else ()
    if not text or "." in parts or ".." in parts:
        raise Rejected(
            f"column {names[0]!r} makes the path segment {text!r}, which would change the path of "
            "the URL"
        )


# -- headers


OWN_HEADERS = {
    "host": "it comes from url=",
    "content-length": "it comes from the body",
    "content-type": "give content_type=",
    "transfer-encoding": "bodies are not sent in parts",
    "connection": "connections are kept open",
    "expect": "bodies are sent at once",
    "idempotency-key": "give idempotency=True",
}
"""Headers that semel sets, or that would change how a request is read."""


def require_headers(names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for names that are not headers, are repeated, or are set
    by semel.
    """
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not the name of a header")
        known = name.lower()
        if known in OWN_HEADERS:
            raise ConfigurationError(f"the header {name} is set by semel: {OWN_HEADERS[known]}")
        if known in seen:
            raise ConfigurationError(f"the header {name} is named twice in headers=")
        seen.add(known)


def fill_header(template: Template, row: Mapping[str, Any], name: str) -> str:
    """Return a header's value. Raises `Rejected` for one that would break its line."""
    where = f"the header {name}"
    text = template.fill(lambda each: text_of(row, each, where))
    if _CONTROL.search(text):
        raise Rejected(f"{where} would contain a control character (from {_named(template)})")
    if not text.isascii():
        raise Rejected(f"{where} would contain a non-ASCII character (from {_named(template)})")
    return text


def _named(template: Template) -> str:
    return ", ".join(f"column {name!r}" for name in template.names)


def key_text(key: str) -> str:
    """Return a key in printable ASCII: other characters are written as the %XX of their UTF-8.

    Two keys never become one: a `%` in a key of semel's is always written as %25.
    """
    made = key
    if not (key.isascii() and key.isprintable()):
        made = _NOT_PLAIN.sub(lambda found: quote(found[0], safe=""), key)
    if len(made) <= KEY_LENGTH_MAX:
        return made
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def key_header(key: str) -> str:
    """Return a key as the Idempotency-Key draft defines it: a structured-field string, in
    quotes.
    """
    text = key_text(key)
    if '"' in text or "\\" in text:
        text = _SPECIAL.sub(r"\\\1", text)
    return f'"{text}"'


# -- bodies


def to_json(value: Any) -> bytes:
    """Write JSON. Raises `Rejected` for a value that JSON cannot represent."""
    try:
        return json_value(value).encode()
    except (TypeError, ValueError) as error:
        raise Rejected(f"the body cannot be written as JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A JSON body whose texts are templates: `"{amount}"` alone is the value itself."""

    shape: Any
    names: frozenset[str]
    texts: frozenset[str]
    """The columns that are next to other text, and so are written as text."""

    @classmethod
    def of(cls, shape: Any, what: str) -> JsonBody:
        """Read a shape made of mappings, lists, texts, numbers, booleans and None."""
        found: list[Template] = []
        made = _shape(shape, what, found)
        names = frozenset(name for each in found for name in each.names)
        texts = frozenset(name for each in found if not each.alone for name in each.names)
        return cls(made, names, texts)

    def fill(self, row: Mapping[str, Any]) -> bytes:
        """Return the body for one event."""
        return to_json(_filled(self.shape, row))


def _shape(shape: Any, what: str, found: list[Template]) -> Any:
    if isinstance(shape, dict):
        return {str(name): _shape(value, what, found) for name, value in shape.items()}
    if isinstance(shape, list | tuple):
        return [_shape(value, what, found) for value in shape]
    if isinstance(shape, str):
        template = Template.of(shape, what)
        found.append(template)
        return template
    if shape is None or isinstance(shape, bool | int | float):
        return shape
    raise ConfigurationError(f"{what} contains a {type(shape).__name__}, but it is a JSON template")


def _filled(shape: Any, row: Mapping[str, Any]) -> Any:
    if isinstance(shape, Template):
        if shape.alone:
            return column(row, shape.names[0], "the body")
        return shape.fill(lambda name: text_of(row, name, "the body"))
    if isinstance(shape, dict):
        return {name: _filled(value, row) for name, value in shape.items()}
    if isinstance(shape, list):
        return [_filled(value, row) for value in shape]
    return shape
