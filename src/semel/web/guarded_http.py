"""The HTTP protocol of uvicorn with limits for hostile clients, which uvicorn does not have.

Always true:
- a request arrives as a whole within its deadline, or it is answered with 408 and the connection is
  closed; so is a connection that sends nothing;
- a head of too many or too large header fields is answered with 431, and never reaches the app.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from semel.web.problems import PROBLEM_TYPE, HttpProblem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

HEADERS_MAX = 100
HEAD_BYTES_MAX = 64 * 1024


class GuardedHttp(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self, *arguments: Any, timeout_s: float, refused: Callable[[int], None], **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._timeout_s = timeout_s
        self._refused = refused
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with the deadline of the first request."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; refuse a head that goes on for too long."""
        if self.transport.is_closing():
            return
        self._arm()
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_head(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """Begin with the head of the next request."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field, unless there are too many."""
        if len(self.headers) <= HEADERS_MAX:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the app."""
        if self.transport.is_closing():
            return
        if len(self.headers) > HEADERS_MAX:
            self._refuse_head(f"the request has more than {HEADERS_MAX} header fields")
            return
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        if not self._in_head:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole: its deadline ends."""
        self._disarm()
        if not self._in_head:
            super().on_message_complete()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_head(self, detail: str) -> None:
        detail += "; send fewer and shorter ones"
        self._answer(HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail))

    def _too_slow(self) -> None:
        """End a connection whose request did not arrive in time."""
        self._deadline = None
        cycle = self.cycle
        running = cycle is not None and not cycle.response_complete
        if self.transport.is_closing():
            return
        if running and not cycle.more_body:  # an earlier request of the connection is in work
            cycle.keep_alive = False
            return
        if running and cycle.response_started:
            self.transport.close()
            return
        detail = f"the request did not arrive within {self._timeout_s:g} seconds"
        self._answer(HttpProblem(HTTPStatus.REQUEST_TIMEOUT, detail))
        if running:
            cycle.disconnected = True
            cycle.message_event.set()

    def _answer(self, problem: HttpProblem) -> None:
        """Answer without the app, and close the connection."""
        if self.transport.is_closing():
            return
        self._refused(problem.status.value)
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
