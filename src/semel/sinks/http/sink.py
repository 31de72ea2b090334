"""An HTTP service as a sink: a call per event, in order per entity, many entities at once.

The promise depends on what the service can do, which the settings state:
- REPEATABLE, if it absorbs a repeat by its `Idempotency-Key` (`idempotency=True`);
- PROBING, if it can be asked for the key of a call (`probe="https://.../{semel.key}"`);
- OPAQUE otherwise: at most `window` calls per partition and crash are in doubt. A `probe` that
  names columns, or a function, is asked about each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel.errors import ConfigurationError, OutcomeUnknown, Rejected
from semel.events import is_bytes, is_text
from semel.protocol import Capability, OnDoubt
from semel.sinks.http.auth import Auth, Basic, Bearer, Certificate
from semel.sinks.http.calls import Calls, Limits, Request
from semel.sinks.http.http1 import ConnectionBroken, NeverSent
from semel.sinks.http.service import Service, header
from semel.sinks.http.templates import (
    KEY,
    JsonBody,
    Template,
    UrlTemplate,
    column,
    fill_header,
    key_header,
    key_text,
    require_headers,
    to_json,
)
from semel.sinks.http.tunnels import require_proxy
from semel.sinks.sink import DELIVERED, ProbingSession, Receipt, Session, Sink, Target
from semel.sinks.validation import no_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from semel.events import Chunk, Event, Rows

__all__ = ["Basic", "Bearer", "Certificate", "Http"]

DAY_S = 86_400.0
PROBING_CHUNKS = 64
MEANING = "200 means arrived, 404 means not arrived, any other status means unknown"
ONE_BY_ONE = "A partition sends one call after the other."
METHODS = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, kw_only=True)
class Http(Sink):
    """Calls `url` once for each event; `{column}` in a template is the event's value.

    Attributes:
        url: a template; values are percent-encoded and stay in their place.
        method: POST, PUT, PATCH or DELETE.
        headers: templates by name; `${NAME}` is read from the executor's environment.
        body: a JSON template (mappings, lists, strings); None is the JSON of all columns.
        body_column: a column whose text or bytes are the body, unchanged.
        content_type: of the body.
        idempotency: the service absorbs a repeat that has the same `Idempotency-Key`, for
            `remembers_s` (default: a day).
        probe: a URL template to GET (200: arrived, 404: not), or a function that takes the event.
        window: how many events may be in doubt at once (OPAQUE).
        auth: `Bearer`, `Basic`, `Certificate`, or several of them as a tuple.
        ca: a file of CA certificates to verify the service with, instead of the machine's.
        concurrency: how many calls of a session may be in flight.
        timeout_s: how long one call may take: 10 s, or half of `deadline_s` if that is less; the
            calls of a chunk start so that they end within `deadline_s`.
        connect_s: how long making a connection may take.
        proxy: the URL of a proxy to tunnel through by CONNECT, or "env": the executor's
            HTTPS_PROXY.
        rate_limit: the most calls per second of a session.
        breaker: after so many failures in a row the rest of a chunk is not tried.
    """

    url: str = field(repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Any = field(default=None, repr=False)
    body_column: str | None = None
    content_type: str = "application/json"
    idempotency: bool = False
    probe: Any = field(default=None, repr=False)
    window: int = 1
    auth: Auth | tuple[Auth, ...] | None = None
    ca: str | None = None
    concurrency: int = 500
    timeout_s: float | None = None
    connect_s: float = 3.0
    proxy: str | None = field(default=None, repr=False)
    rate_limit: float | None = None
    breaker: int = 20
    remembers_s: float = 0.0
    chunk_rows: int = 20_000
    span_chunks: int = 1

    def __post_init__(self) -> None:
        self._require_numbers()
        self._require_templates()
        idempotency = self.idempotency or self.remembers_s > 0
        self._set("idempotency", idempotency)
        self._set("remembers_s", self.remembers_s or (DAY_S if idempotency else 0.0))
        if idempotency and self.probe is not None:
            raise self._wrong("idempotency and probe exclude each other: choose one")
        if idempotency and self.window != 1:
            raise self._wrong(
                f"window={self.window} with idempotency has no effect, because nothing is in "
                "doubt: remove window"
            )
        if isinstance(self.probe, str):
            self._set("probe", UrlTemplate.of(self.probe, self._named("probe")))
        if isinstance(self.probe, Asked):
            self._set("probe", self.probe.url)
        if isinstance(self.probe, UrlTemplate):
            self._set("probe", Asked(self.probe, self.service))
        self._cut()

    def _cut(self) -> None:
        """Set how much is called at once, as the capability allows."""
        match self.capability:
            case Capability.PROBING:
                if self.window != 1:
                    raise self._wrong(
                        f"window={self.window} with a probe by {{semel.key}}, which sends one call "
                        "after the other. Use a column in the probe to send more at once"
                    )
                self._set("chunk_rows", 1)
                self._set("span_chunks", PROBING_CHUNKS)
            case Capability.OPAQUE:
                self._set("chunk_rows", self.window)
                self._set("span_chunks", 1)
                if self.probe is not None:
                    self._set("on_doubt", OnDoubt.PROBE)
        if self.on_doubt == OnDoubt.PROBE and self.probe is None:
            raise self._wrong("on_doubt='probe' needs probe=, a URL template or a function")

    def _require_numbers(self) -> None:
        for name in ("window", "concurrency", "breaker"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise self._wrong(f"{name} must be an integer of at least 1, got {value!r}")
        times = {"deadline_s": self.deadline_s, "connect_s": self.connect_s}
        for name, value in (*times.items(), ("timeout_s", self.call_s)):
            if not isinstance(value, int | float) or not value > 0:
                raise self._wrong(
                    f"{name} must be a number of seconds greater than 0, got {value!r}"
                )
        if self.call_s > self.deadline_s * 0.75:
            raise self._wrong(
                f"timeout_s={self.call_s} is too long for deadline_s={self.deadline_s}: it must be "
                "at most three quarters of it, because calls start only if they can end within "
                "deadline_s"
            )
        if self.rate_limit is not None and not self.rate_limit > 0:
            raise self._wrong(f"rate_limit must be greater than 0, got {self.rate_limit!r}")

    def _require_templates(self) -> None:
        self._set("method", str(self.method).upper())
        if self.method not in METHODS:
            raise self._wrong(f"unknown method {self.method!r}; use {', '.join(METHODS)}")
        UrlTemplate.of(self.url, self._named("url"))
        require_proxy(self.proxy, self._named("proxy"))
        require_headers(self.headers)
        for name, value in self.headers.items():
            header(value, self._named(f"header {name}"))
        JsonBody.of(self.body, self._named("body"))
        if not (self.content_type.isascii() and self.content_type.isprintable()):
            raise self._wrong(f"content_type must be one line of ASCII, got {self.content_type!r}")
        if self.body is not None and self.body_column is not None:
            raise self._wrong("body and body_column exclude each other: choose one")
        given = self.auth_given
        if not all(isinstance(each, Bearer | Basic | Certificate) for each in given):
            raise self._wrong(
                "auth must be Bearer(...), Basic(...), Certificate(...) or a tuple of them"
            )
        credentials = sum(isinstance(each, Bearer | Basic) for each in given)
        if credentials > 1:
            raise self._wrong("auth has two Authorization headers: choose one")
        if credentials and any(name.lower() == "authorization" for name in self.headers):
            raise self._wrong("auth and headers both set Authorization: choose one")

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a template that names a column which is not there, or one
        that has no text.
        """
        for what, names, text in self._templates():
            for name in names:
                if name == KEY:
                    continue
                if name not in schema.names:
                    raise no_column(self._named(what), name, schema.names)
                kind = schema.field(name).type
                if text and pa.types.is_nested(kind):
                    raise self._wrong(
                        f"{what} needs a string or a number, but column {name!r} is {kind}: select "
                        "a field of it, or convert it with to_json before semel.deliver"
                    )
        body = self.body_column
        if body is not None and not (is_text(kind := schema.field(body).type) or is_bytes(kind)):
            raise self._wrong(
                f"body_column: column {body!r} is {kind}; a body must be text or bytes"
            )

    def _templates(self) -> Iterator[tuple[str, Iterable[str], bool]]:
        """Return the columns of each setting: the setting, its columns, and whether it converts
        them to text.
        """
        yield "url", sorted(UrlTemplate.of(self.url, "url").names), True
        for name, value in self.headers.items():
            template = header(value, name)
            yield f"header {name}", () if template is None else template.names, True
        if isinstance(self.probe, Asked):
            yield "probe", sorted(self.probe.url.names), True
        if self.body_column is not None:
            yield "body_column", (self.body_column,), False
        if self.body is not None:
            shape = JsonBody.of(self.body, "body")
            yield "body", sorted(shape.names), False
            yield "body", sorted(shape.texts), True

    @property
    def call_s(self) -> float:
        """How long one call may take."""
        return min(10.0, self.deadline_s / 2) if self.timeout_s is None else self.timeout_s

    @property
    def auth_given(self) -> tuple[Auth, ...]:
        """The credentials, however many."""
        if self.auth is None:
            return ()
        return self.auth if isinstance(self.auth, tuple) else (self.auth,)

    @property
    def capability(self) -> Capability:
        """What the service can do, according to the settings."""
        if self.idempotency or self.remembers_s > 0:
            return Capability.REPEATABLE
        if isinstance(self.probe, Asked) and self.probe.url.names == {KEY}:
            return Capability.PROBING
        return Capability.OPAQUE

    @property
    def takes_python_values(self) -> bool:
        """Yes: templates are filled with Python values."""
        return True

    @property
    def service(self) -> Service:
        """How the service is reached, without the content of requests."""
        return Service(
            name=self.name,
            method=self.method,
            headers=dict(self.headers),
            auth=self.auth_given,
            ca=self.ca,
            proxy=self.proxy,
            limits=Limits(
                concurrency=self.concurrency,
                timeout_s=self.call_s,
                connect_s=self.connect_s,
                deadline_s=self.deadline_s,
                retry=self.retry,
                rate_limit=self.rate_limit,
                breaker=self.breaker,
            ),
        )

    def open(self, target: Target) -> Session | ProbingSession:
        """Read the secrets and make ready to connect; the first call connects."""
        del target
        capability = self.capability
        keyed = capability is Capability.REPEATABLE
        filling = Filling.of(self, keyed=keyed or capability is Capability.PROBING)
        calls = self.service.calls(self.url, keyed=keyed)
        if capability is Capability.PROBING:
            return Probing(calls, filling, self.probe)
        return Calling(calls, filling)

    def notes(self) -> tuple[str, ...]:
        """State what the promise requires of this service."""
        absorbs = (
            "The service is stated to absorb a repeat by its Idempotency-Key for "
            f"{self.remembers_s:g} s."
        )
        if self.capability is Capability.REPEATABLE:
            return (absorbs,)
        if self.capability is Capability.PROBING:
            return (f"The service is asked for the key of a call, with GET: {MEANING}.", ONE_BY_ONE)
        return (f"The service is asked for an event, with GET: {MEANING}.",) * isinstance(
            self.probe, Asked
        )

    def _named(self, setting: str) -> str:
        return f"sink {self.name!r}, {setting}"

    def _wrong(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"sink {self.name!r}: {text}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


# -- what is sent


@dataclass(frozen=True, slots=True)
class Filling:
    """Makes the request of an event: templates read once, filled for each."""

    url: UrlTemplate
    headers: tuple[tuple[str, Template], ...]
    body: Callable[[Mapping[str, Any]], bytes] | None
    content_type: str
    keyed: bool
    names_key: bool

    @classmethod
    def of(cls, sink: Http, *, keyed: bool) -> Filling:
        """Read the templates of a sink."""
        url = UrlTemplate.of(sink.url, "url")
        headers = tuple(
            (name, template)
            for name, template in (
                (name, header(value, name)) for name, value in sink.headers.items()
            )
            if template is not None and template.names
        )
        body, named = _body(sink)
        names = url.names.union(named, *(template.names for _, template in headers))
        return cls(url, headers, body, sink.content_type, keyed, KEY in names)

    def request(self, row: Mapping[str, Any], key: str) -> Request:
        """Fill everything in. Raises `Rejected` for an event that cannot be written."""
        if self.names_key:
            row = {**row, KEY: key_text(key)}
        headers = {name: fill_header(template, row, name) for name, template in self.headers}
        if self.keyed:
            headers["Idempotency-Key"] = key_header(key)
        body = None
        if self.body is not None:
            body = self.body(row)
            headers["Content-Type"] = self.content_type
        return Request(self.url.fill(row), headers, body)


def _body(sink: Http) -> tuple[Callable[[Mapping[str, Any]], bytes] | None, frozenset[str]]:
    """Return the function that makes a body, and the columns it uses."""
    if sink.body_column is not None:
        return partial(_column_body, sink.body_column), frozenset({sink.body_column})
    if sink.body is not None:
        shape = JsonBody.of(sink.body, "body")
        return shape.fill, shape.names
    return (None if sink.method == "DELETE" else to_json), frozenset()


def _column_body(name: str, row: Mapping[str, Any]) -> bytes:
    value = column(row, name, "the body")
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise Rejected(f"column {name!r} is a {type(value).__name__}; a body must be text or bytes")


def lines_of(rows: Rows) -> list[Sequence[int]]:
    """Return the places of each entity's events in order; without entities each event is alone."""
    if rows.entities is None:
        return [(place,) for place in range(len(rows))]
    codes = rows.entities.codes
    order = np.argsort(codes, kind="stable")
    borders = np.flatnonzero(np.diff(codes[order])) + 1
    return [line.tolist() for line in np.split(order, borders)]


# -- sessions


@dataclass(slots=True)
class Calling:
    """A session that reports on every event (REPEATABLE, OPAQUE)."""

    calls: Calls
    filling: Filling

    def deliver(self, chunk: Chunk) -> Receipt:
        """Call for each event, many entities at once."""
        events = list(chunk.events())

        def request(place: int) -> Request:
            event = events[place]
            return self.filling.request(event.value, event.key)

        failures = self.calls.deliver(lines_of(chunk.rows), request)
        return Receipt(failures) if failures else DELIVERED

    def close(self) -> None:
        """Close the connections."""
        self.calls.close()


@dataclass(slots=True)
class Probing:
    """A session whose service is asked for the chunk's key, so a chunk is one call (PROBING)."""

    calls: Calls
    filling: Filling
    probe: Asked

    def deliver(self, chunk: Chunk) -> Receipt:
        """Call for the chunk's one event, under the chunk's key."""
        if len(chunk) > 1:
            raise Rejected("a probing sink sends one event per call: the chunk must be split")
        value = chunk.rows.value(0)
        failures = self.calls.deliver([[0]], lambda _: self.filling.request(value, chunk.key))
        if failures:
            raise failures[0]
        return DELIVERED

    def arrived(self, key: str) -> bool:
        """Ask the service. Raises `OutcomeUnknown` if it does not answer 200 or 404."""
        return self.probe.arrived({KEY: key_text(key)})

    def close(self) -> None:
        """Close the connections."""
        self.calls.close()


# -- asking


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks the service whether an event arrived: GET a URL that its columns give."""

    url: UrlTemplate
    service: Service

    def __call__(self, event: Event) -> bool:
        """Return whether it arrived. Raises `OutcomeUnknown` if the service does not answer
        that.
        """
        return self.arrived({**event.value, KEY: key_text(event.key)})

    def arrived(self, row: Mapping[str, Any]) -> bool:
        """GET: 200 means that it arrived, 404 that it did not, any other status means unknown."""
        request = Request(self.url.fill(row), {}, None)
        calls = self.service.calls(self.url.text)
        try:
            status = calls.ask(request)
        except (NeverSent, ConnectionBroken) as error:
            raise OutcomeUnknown(f"GET {self.url.shown} was not answered ({error})") from None
        finally:
            calls.close()
        if status in (200, 404):
            return status == 200
        raise OutcomeUnknown(
            f"GET {self.url.shown} answered {status}; only 200 and 404 are an answer"
        )
