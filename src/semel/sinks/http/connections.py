"""Connections to one service: HTTP/1.1 with keep-alive, as little of it as a call needs.

Always true:
- what goes wrong before the first byte of a request is `NeverSent`; after it nobody knows;
- a request is written once, on one connection;
- a status that arrived is an answer, whatever becomes of the rest of the response;
- a connection is used again only after a response whose end is certain, with nothing behind it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

KEEPALIVE_S = 4.0
"""Shorter than common servers keep an idle connection, so that seldom one closes as we write."""

ADDRESSES_S = 10.0
HEAD_MAX = 65_536
TEXT_MAX = 8_192

_LINE_END = -1
"""What is left of a chunk when only the line end behind it is."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?(?=\r\n)")
_FIELD = re.compile(rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")


class NeverSent(Exception):
    """Nothing of the request was written."""


class Broken(Exception):
    """The request began to be written, and there is no answer to it."""


class Reply(NamedTuple):
    """A status, the beginning of the body, and when to come again."""

    status: int
    text: bytes
    retry_after: str | None


class Response:
    """Reads one response as its bytes come."""

    __slots__ = ("_buffer", "_chunked", "_left", "keeps", "retry_after", "status", "text")

    def __init__(self) -> None:
        self._buffer = b""
        self._chunked = False
        self._left: int | None = None
        self.status = 0
        self.text = b""
        self.retry_after: str | None = None
        self.keeps = False

    def feed(self, part: bytes) -> bool:
        """Take bytes; say whether the response is at its end. Raises `Broken` for what is none."""
        self._buffer = self._buffer + part if self._buffer else part
        while not self.status:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_MAX:
                    raise Broken("the head of the response has no end")
                return False
            head, self._buffer = self._buffer[: end + 2], self._buffer[end + 4 :]
            self._read_head(head)
        return self._read_chunks() if self._chunked else self._read_body()

    def _read_head(self, head: bytes) -> None:
        found = _STATUS.match(head)
        if found is None:
            raise Broken(f"the response is not HTTP/1.1: {head[:40]!r}")
        status = int(found[2])
        if status < 200:
            if status == 101:
                raise Broken("the service changed the protocol")
            return  # on its way, not an answer
        fields = [(name.lower(), value) for name, value in _FIELD.findall(head)]
        lengths = {value for name, value in fields if name == b"content-length"}
        codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
        close = any(name == b"connection" and b"close" in value.lower() for name, value in fields)
        for name, value in fields:
            if name == b"retry-after":
                self.retry_after = value.decode("latin-1")
        self.status = status
        self.keeps = found[1] == b"1" and not close
        if status in (204, 304):
            self._left = 0
        elif codings:
            self._chunked = codings == [b"chunked"] and not lengths
            self.keeps = self.keeps and self._chunked
        elif len(lengths) == 1 and (length := lengths.pop()).isdigit() and len(length) < 16:
            self._left = int(length)
        else:
            self.keeps = False  # it ends with the connection

    def _read_body(self) -> bool:
        if self._left is None:
            self._take(len(self._buffer))
            return len(self.text) >= TEXT_MAX
        self._left -= self._take(self._left)
        return self._ended(ended=self._left == 0)

    def _read_chunks(self) -> bool:
        while True:
            if self._left is not None and self._left > 0:
                self._left -= self._take(self._left)
                if self._left:
                    return self._ended(ended=False)
                self._left = _LINE_END
            if self._left == _LINE_END:
                if len(self._buffer) < 2:
                    return self._ended(ended=False)
                self._buffer, self._left = self._buffer[2:], None
            found = _CHUNK.match(self._buffer)
            if found is None:
                if b"\r\n" in self._buffer or len(self._buffer) > HEAD_MAX:
                    self.keeps = False  # no chunk: nobody knows where the response ends
                    return True
                return self._ended(ended=False)
            self._left = int(found[1], 16)
            if not self._left:
                behind = self._buffer[found.end() :]
                if behind in (b"", b"\r"):
                    return self._ended(ended=False)
                self.keeps = self.keeps and behind == b"\r\n"
                return True  # what trailers say is not asked for
            self._buffer = self._buffer[found.end() :]

    def _take(self, count: int) -> int:
        part, self._buffer = self._buffer[:count], self._buffer[count:]
        if len(self.text) < TEXT_MAX:
            self.text += part
        return len(part)

    def _ended(self, *, ended: bool) -> bool:
        """An end that is certain, or a body so long that it is not waited for."""
        if ended:
            self.keeps = self.keeps and not self._buffer
            return True
        if len(self.text) >= TEXT_MAX:
            self.keeps = False
            return True
        return False


class Connection(asyncio.Protocol):
    """One connection, with at most one call on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._response = Response()
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether it can be written to now."""
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, request: bytes, timeout_s: float) -> Reply:
        """Write the request and wait for its answer. Raises `NeverSent` or `Broken`."""
        if self._transport is None or self._transport.is_closing():
            raise NeverSent("the connection was closed")
        waiter: asyncio.Future[Reply] = self._loop.create_future()
        self._waiter = waiter
        self._response = Response()
        timer = self._loop.call_later(timeout_s, self._end, f"no answer within {timeout_s:g} s")
        try:
            self._transport.write(request)
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None
            if not waiter.done() or waiter.cancelled():
                self.close()

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, TLS included."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the response came; bytes that nobody asked for end the connection."""
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        try:
            ended = self._response.feed(data)
        except Broken as error:
            self._end(str(error))
            return
        if ended:
            self._answer()

    def eof_received(self) -> None:
        """Nothing more will come."""
        self._end("the service closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end("the connection was lost" + (f": {exc}" if exc else ""))

    def _end(self, why: str) -> None:
        """No more of the response will be read: a status that came is the answer all the same."""
        if self._waiter is not None and not self._waiter.done():
            if self._response.status:
                self._response.keeps = False
                self._answer()
            else:
                self._waiter.set_exception(Broken(why))
        self.close()

    def _answer(self) -> None:
        response = self._response
        assert self._waiter is not None
        assert self._transport is not None
        written = not self._transport.get_write_buffer_size()
        if not (response.keeps and written):
            self.close()
        self._waiter.set_result(Reply(response.status, response.text, response.retry_after))


class Connections:
    """The connections to one origin; they wait here between calls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: str,
        tls: ssl.SSLContext | None,
        *,
        connect_s: float,
        timeout_s: float,
    ) -> None:
        parts = urlsplit(origin)
        self._loop, self._tls = loop, tls
        self._host = str(parts.hostname)
        self._port = parts.port or (443 if tls else 80)
        self._connect_s, self._timeout_s = connect_s, timeout_s
        self._idle: list[Connection] = []
        self._addresses: tuple[float, asyncio.Future[Any]] | None = None

    async def call(self, request: bytes, latest: float) -> Reply:
        """Write a request, once and not after `latest`, and give the answer. Raises `NeverSent` or
        `Broken`.
        """
        connection = self._waiting() or await self._connected()
        if self._loop.time() > latest:
            self._keep(connection)
            raise NeverSent("the connection stood too late for the call to end in time")
        reply = await connection.call(request, self._timeout_s)
        self._keep(connection)
        return reply

    def _keep(self, connection: Connection) -> None:
        if connection.usable:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)

    def close(self) -> None:
        """Close those that wait."""
        while self._idle:
            self._idle.pop().close()
        if self._addresses is not None:
            self._addresses[1].cancel()

    def _waiting(self) -> Connection | None:
        """Give the one that waited for the shortest time, if it did not wait for too long."""
        while self._idle:
            connection = self._idle.pop()
            fresh = self._loop.time() - connection.idle_since < KEEPALIVE_S
            if fresh and connection.usable:
                return connection
            connection.close()
        return None

    async def _connected(self) -> Connection:
        """Make a connection to the first address that takes one."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._to_any(await self._found())
        except (OSError, TimeoutError, UnicodeError) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else "it took too long"
            raise NeverSent(why) from error

    async def _to_any(self, addresses: list[str]) -> Connection:
        last: OSError = OSError(f"{self._host} has no address")
        for address in addresses:
            try:
                _, made = await self._loop.create_connection(
                    lambda: Connection(self._loop),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as error:
                last = error
            else:
                return made
        raise last

    async def _found(self) -> list[str]:
        """Give the host's addresses; all who ask at once share one look."""
        now = self._loop.time()
        if self._addresses is None or now - self._addresses[0] > ADDRESSES_S:
            looking = asyncio.ensure_future(
                self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            )
            looking.add_done_callback(_looked_at)
            self._addresses = (now, looking)
        try:
            found = await asyncio.shield(self._addresses[1])
        except OSError:
            self._addresses = None
            raise
        return list(dict.fromkeys(each[4][0] for each in found))


def _looked_at(looking: asyncio.Future[Any]) -> None:
    """An address that nobody waits for any more is no error."""
    if not looking.cancelled():
        looking.exception()
