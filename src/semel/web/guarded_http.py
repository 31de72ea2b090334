"""The HTTP protocol of uvicorn with limits for hostile clients, which uvicorn does not have.

Always true:
- a request arrives as a whole within its deadline, or it is answered with 408 and the connection is
  closed; so is a connection that sends nothing;
- a head that is not understood, or has too many or too large fields, is answered with a problem
  document and never reaches the app;
- the answer to a request is never that to another one: a connection whose later request is wrong is
  closed when the earlier ones are answered;
- fields behind a body (trailers) are not those of the head, and a client that offers another
  protocol is answered in this one, with all of its body.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from semel.web.problems import PROBLEM_TYPE, HttpProblem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

HEADERS_MAX = 100
HEAD_BYTES_MAX = 64 * 1024

_OFFERS = (b"connection", b"upgrade", b"http2-settings")


class _Outgoing:
    """A transport that drops what is written after the client is gone: uvloop's raises then, and
    each such client would be a traceback in the log.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._write = transport.write
        self.close = transport.close
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._write(data)


class GuardedHttp(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self, *arguments: Any, timeout_s: float, refused: Callable[[int], None], **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._timeout_s = timeout_s
        self._refused = refused
        self._deadline: asyncio.TimerHandle | None = None
        self._running: Any = None
        """The request that the app works on, or worked on last; others wait in `pipeline`."""
        self._in_head = False
        self._head_bytes = 0
        self._ended = False
        """Nothing more is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with the deadline of the first request."""
        super().connection_made(cast("asyncio.Transport", _Outgoing(transport)))
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; refuse what is not HTTP, and a head that goes on for too long."""
        if self._ended or self.transport.is_closing():
            return
        self._arm()
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            self._decline(data[offered.args[0] :])
            return
        except httptools.HttpParserError:
            detail = (
                "the request is not HTTP/1.1; send one that is, with a single way to tell its end"
            )
            self._refuse(HttpProblem(HTTPStatus.BAD_REQUEST, detail))
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_head(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """Begin with the head of the next request."""
        self._in_head, self._head_bytes = True, 0
        if not self._ended:
            self._arm()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head, unless there are too many."""
        if self._in_head and len(self.headers) <= HEADERS_MAX:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the app."""
        if self._ended or self.transport.is_closing():
            return
        if len(self.headers) > HEADERS_MAX:
            self._refuse_head(f"the request has more than {HEADERS_MAX} header fields")
            return
        problem = self._misunderstood()
        if problem is not None:
            self._refuse(problem)
            return
        if self.parser.should_upgrade():  # `_decline` reads it again
            return
        self._in_head = False
        super().on_headers_complete()
        if self.pipeline:  # its body is read when the app begins with it
            self._disarm()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        if not self._in_head:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole: its deadline ends."""
        self._disarm()
        if not self._in_head:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        if cycle.more_body and not self._ended:
            self._arm()
        super()._start_asgi_task(cycle, app)

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _misunderstood(self) -> HttpProblem | None:
        """Return what is wrong with a head of valid fields."""
        if self.parser.get_method() == b"CONNECT":
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "this server is not a proxy")
        names = [name for name, _ in self.headers]
        if names.count(b"host") > 1:
            detail = "the header host is there twice; send it once"
            return HttpProblem(HTTPStatus.BAD_REQUEST, detail, field="host")
        if b"transfer-encoding" in names:
            coding = dict(self.headers)[b"transfer-encoding"]
            if coding.strip().lower() != b"chunked":
                return HttpProblem(
                    HTTPStatus.NOT_IMPLEMENTED,
                    "of the transfer codings only `chunked` is read; send the body as it is",
                    field="transfer-encoding",
                )
        return None

    def _decline(self, rest: bytes) -> None:
        """Read a head again without the other protocol that it offers: the parser takes what
        follows for that protocol. `rest` is what was received behind the head.
        """
        if self._ended:
            return
        fields = [(name, value) for name, value in self.headers if name not in _OFFERS]
        if b"close" in [each.strip().lower() for each in self._values(b"connection")]:
            fields.append((b"connection", b"close"))
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % field for field in fields]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _values(self, wanted: bytes) -> list[bytes]:
        """Return the values of the fields with a name that are lists."""
        return [
            each for name, value in self.headers if name == wanted for each in value.split(b",")
        ]

    def _refuse_head(self, detail: str) -> None:
        detail += "; send fewer and shorter ones"
        self._refuse(HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail))

    def _too_slow(self) -> None:
        """End a connection whose request did not arrive in time."""
        self._deadline = None
        detail = f"the request did not arrive within {self._timeout_s:g} seconds"
        self._refuse(HttpProblem(HTTPStatus.REQUEST_TIMEOUT, detail))

    def _refuse(self, problem: HttpProblem) -> None:
        """Answer the newest request without the app, and read nothing more. If earlier ones are
        in work, they are answered instead, and then the connection is closed.
        """
        if self._ended or self.transport.is_closing():
            return
        self._ended = True
        self._disarm()
        self._refused(problem.status.value)
        running = self._running
        if running is None or running.response_complete:
            self._answer(problem)
        elif running.more_body:
            if running.response_started:
                self.transport.close()
            else:
                self._answer(problem)
            running.disconnected = True
            running.message_event.set()
        else:
            if self.pipeline and self.pipeline[0][0].more_body:
                self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else running
            last.keep_alive = False

    def _answer(self, problem: HttpProblem) -> None:
        """Answer without the app, and close the connection."""
        body = problem.body()
        head = (
            f"HTTP/1.1 {problem.status.value} {problem.status.phrase}\r\n"
            f"content-type: {PROBLEM_TYPE.decode()}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def guarded(timeout_s: float, refused: Callable[[int], None]) -> Callable[..., GuardedHttp]:
    """Return a maker of connections with this deadline; `refused` is called with each status."""
    return partial(GuardedHttp, timeout_s=timeout_s, refused=refused)
