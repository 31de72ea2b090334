"""Connections to one service: HTTP/1.1 with keep-alive, reduced to what a call needs.

Always true:
- a failure before the first byte of a request is `NeverSent`; after it the outcome is unknown;
- a request is written once, on one connection;
- an answer states whether its response is complete;
- a connection is used again only after a complete response, with no byte after it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from semel.sinks.http.responses import Response
    from semel.sinks.http.tunnels import Proxy

KEEPALIVE_S = 4.0
"""Shorter than common servers keep an idle connection, so that one rarely closes during a write."""

ADDRESSES_S = 10.0


class NeverSent(Exception):
    """Nothing of the request was written."""


class ConnectionBroken(Exception):
    """The request was written in part or whole, and there is no answer to it."""


class Reply(NamedTuple):
    """A status, the beginning of the body, when to come again, and whether all of it came."""

    status: int
    text: bytes
    retry_after: str | None
    whole: bool


class Connection(asyncio.Protocol):
    """One connection, with at most one call on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: Callable[[], Response]) -> None:
        self._loop, self._reader = loop, reader
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._response: Response | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether it can be written to now."""
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, request: bytes, timeout_s: float) -> Reply:
        """Write the request and wait for its answer. Raises `NeverSent` or `ConnectionBroken`."""
        if self._transport is None or self._transport.is_closing():
            raise NeverSent("the connection was closed")
        waiter: asyncio.Future[Reply] = self._loop.create_future()
        self._waiter = waiter
        self._response = None
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
        """The connection is made, TLS included."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the response arrived; unexpected bytes end the connection."""
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        response = self._response
        if response is None:  # not before: calls in flight hold as little as they can
            response = self._response = self._reader()
        try:
            ended = response.feed(data)
        except Exception as error:  # noqa: BLE001 - what cannot be read is not an answer
            self._end(str(error))
            return
        if ended:
            self._answer(response)

    def eof_received(self) -> None:
        """Nothing more will come: a response without a length is at its end."""
        if self._response is not None:
            self._response.end()
        self._end("the service closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end("the connection was lost" + (f": {exc}" if exc else ""))

    def _end(self, why: str) -> None:
        """No more of the response will be read; a status that came is an answer all the same."""
        if self._waiter is not None and not self._waiter.done():
            if self._response is not None and self._response.status:
                self._response.keeps = False
                self._answer(self._response)
            else:
                self._waiter.set_exception(ConnectionBroken(why))
        self.close()

    def _answer(self, response: Response) -> None:
        assert self._waiter is not None
        assert self._transport is not None
        written = not self._transport.get_write_buffer_size()
        if not (response.keeps and written):
            self.close()
        self._response = None
        self._waiter.set_result(
            Reply(response.status, response.text, response.retry_after, response.whole)
        )


class Connections:
    """The connections to one origin; they wait here between calls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: str,
        tls: ssl.SSLContext | None,
        *,
        reader: Callable[[], Response],
        connect_s: float,
        timeout_s: float,
        now: Callable[[], float],
        proxy: Proxy | None = None,
    ) -> None:
        parts = urlsplit(origin)
        self._loop, self._tls = loop, tls
        self._reader, self._proxy = reader, proxy
        self._host = str(parts.hostname)
        self._port = parts.port or (443 if tls else 80)
        self._next = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
        self._connect_s, self._timeout_s, self._now = connect_s, timeout_s, now
        self._idle: list[Connection] = []
        self._addresses: tuple[float, asyncio.Future[Any]] | None = None

    async def call(self, request: bytes, latest: float) -> Reply:
        """Write a request, once and not after `latest`, and give the answer. Raises `NeverSent` or
        `ConnectionBroken`.
        """
        connection = self._waiting() or await self._connected()
        if self._now() > latest:
            self._keep(connection)
            raise NeverSent("the connection was made too late for the call to end in time")
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
        """Return the connection that was idle for the shortest time, if that is short enough."""
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
            why = (
                f"{type(error).__name__}: {error}"
                if str(error)
                else ("the connection took too long")
            )
            raise NeverSent(why) from error

    async def _to_any(self, addresses: list[str]) -> Connection:
        last: OSError = OSError(f"{self._next[0]} has no address")
        for address in addresses:
            try:
                if self._proxy is None:
                    return await self._direct(address)
                return await self._through(self._proxy, address)
            except OSError as error:
                last = error
        raise last

    def _made(self) -> Connection:
        return Connection(self._loop, self._reader)

    async def _direct(self, address: str) -> Connection:
        _, made = await self._loop.create_connection(
            self._made,
            address,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
        return made

    async def _through(self, proxy: Proxy, address: str) -> Connection:
        """Make a connection to the service itself, through a tunnel of the proxy's."""
        transport: asyncio.BaseTransport | None
        transport = await proxy.tunnel(self._loop, address, (self._host, self._port), self._reader)
        connection = self._made()
        try:
            if self._tls is not None:
                transport = await self._loop.start_tls(
                    transport, connection, self._tls, server_hostname=self._host
                )
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the tunnel was closed")
        except BaseException:
            if transport is not None:
                transport.close()
            raise
        if self._tls is None:
            transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection

    async def _found(self) -> list[str]:
        """Return the addresses of the host or of the proxy; concurrent callers share one lookup."""
        now = self._loop.time()
        if self._addresses is None or now - self._addresses[0] > ADDRESSES_S:
            looking = asyncio.ensure_future(
                self._loop.getaddrinfo(*self._next, type=socket.SOCK_STREAM)
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
    """A failed lookup that no caller waits for is not an error."""
    if not looking.cancelled():
        looking.exception()
