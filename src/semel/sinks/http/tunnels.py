"""Connections through a proxy: a tunnel by CONNECT, with the service's own TLS inside it.

Always true:
- nothing of a request is written before the tunnel is made, so a failure here sent nothing;
- the credentials of a proxy are in no repr and no message, and are sent to the proxy only.
"""

from __future__ import annotations

import asyncio
import base64
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from semel.errors import ConfigurationError
from semel.sinks.http.auth import revealed

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.sinks.http.responses import Response

ENVIRONMENT = "env"
PORT = 3128
"""The port of a proxy whose URL has none."""

_NAMED = re.compile(r"\$\{\w+\}")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy as this machine reaches it."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """The proxy as messages name it."""
        return f"{_bracketed(self.host)}:{self.port}"

    async def tunnel(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        to: tuple[str, int],
        reader: Callable[[], Response],
    ) -> asyncio.Transport:
        """Ask for a tunnel. Raises `OSError` if the proxy does not make one."""
        transport, asking = await loop.create_connection(
            lambda: _Asking(loop, reader()), address, self.port
        )
        place = f"{_bracketed(to[0])}:{to[1]}"
        head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n"
        if self.authorization is not None:
            head += f"Proxy-Authorization: {self.authorization}\r\n"
        transport.write(f"{head}\r\n".encode("ascii"))
        try:
            status = await asking.answered
        except BaseException:
            transport.abort()
            raise
        if not 200 <= status < 300:
            transport.abort()
            hint = "; pass its user and password in proxy=" if status == 407 else ""
            raise OSError(f"the proxy {self.shown} answered CONNECT with {status}{hint}")
        return transport


class _Asking(asyncio.Protocol):
    """Waits for the proxy's answer to CONNECT."""

    def __init__(self, loop: asyncio.AbstractEventLoop, response: Response) -> None:
        self.answered: asyncio.Future[int] = loop.create_future()
        self._response = response
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take the head of the answer; behind one that opens the tunnel nothing may come yet."""
        if self.answered.done():
            self._fail("the proxy sent unexpected bytes")
            return
        response = self._response
        try:
            response.feed(data)
        except Exception as error:  # noqa: BLE001 - what cannot be read is not a tunnel
            self._fail(f"the proxy did not answer CONNECT: {error}")
            return
        if not response.status:
            return
        if 200 <= response.status < 300 and not response.head_alone:
            self._fail("the proxy sent unexpected bytes")
            return
        self.answered.set_result(response.status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the proxy closed the connection" + (f": {exc}" if exc else ""))

    def _fail(self, why: str) -> None:
        with suppress(asyncio.InvalidStateError):
            self.answered.set_exception(ConnectionResetError(why))
            self.answered.exception()  # the caller may have stopped waiting
        if self._transport is not None:
            self._transport.abort()


def require_proxy(proxy: Any, what: str) -> None:
    """Refuse what is neither "env" nor the URL of a proxy; nothing of it is shown."""
    if proxy is None or proxy == ENVIRONMENT:
        return
    if not isinstance(proxy, str):
        raise ConfigurationError(f"{what} must be 'env' or a URL, got {type(proxy).__name__}")
    if not _NAMED.fullmatch(proxy):
        _parts(proxy, what)


def proxy_for(proxy: str | None, origin: str, what: str) -> Proxy | None:
    """Return the proxy for an origin, or None. Runs on the executor.

    "env" is HTTPS_PROXY (or ALL_PROXY) of its environment for https://, except hosts in NO_PROXY.
    """
    if proxy is None:
        return None
    what = f"{what}, proxy"
    if proxy == ENVIRONMENT:
        scheme, _, place = origin.partition("://")
        named = getproxies_environment()
        found = named.get("https") or named.get("all")
        if scheme != "https" or not found or proxy_bypass(place):
            return None
        proxy = found if "://" in found else f"http://{found}"
    elif _NAMED.fullmatch(proxy):
        proxy = revealed(proxy, what)
    parts = _parts(proxy, what)
    host, port = str(parts.hostname), parts.port or PORT
    if parts.username is None:
        return Proxy(host, port)
    user = revealed(unquote(parts.username), what)
    password = revealed(unquote(parts.password or ""), what)
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Proxy(host, port, f"Basic {pair}", (password, parts.password or "", pair))


def _parts(url: str, what: str) -> SplitResult:
    """Parse the URL of a proxy. Raises `ConfigurationError`, which shows nothing of it."""
    wrong = ConfigurationError(
        f"{what} must be 'env' or a URL like http://host:3128, with user:password@ before the "
        "host if the proxy requires them, and without a path"
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a part of a password
        raise wrong from None
    plain = url.isascii() and url.isprintable() and " " not in url and port != 0
    path = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme != "http" or not parts.hostname or not plain or path:
        raise wrong
    return parts


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
