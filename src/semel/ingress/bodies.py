"""Reads the body of a request as a whole, and no more of it than is allowed."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from semel.web import HttpProblem, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from semel.ingress.admission import Admission
    from semel.ingress.requests import Headers

_DRAIN_S = 2.0
_DRAIN_BYTES = 64 * 2**20


class ClientGone(Exception):
    """The connection was closed before the request was complete; no client is left to answer."""


class Body:
    """The body of one request. Its bytes are held until `release`."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], admission: Admission) -> None:
        self._receive = receive
        self._admission = admission
        self.size = 0
        self.complete = False

    async def read(self, headers: Headers, bytes_max: int) -> bytes:
        """Return the body. Raises `HttpProblem` if it is too large, `ClientGone` if cut off."""
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > bytes_max:
            raise _too_large(shown(length), bytes_max)
        message = await self._next()
        first: bytes = message.get("body", b"")
        self._hold(len(first), bytes_max)
        if not message.get("more_body"):
            self.complete = True
            return first
        parts = [first]
        while message.get("more_body"):
            message = await self._next()
            parts.append(message.get("body", b""))
            self._hold(len(parts[-1]), bytes_max)
        self.complete = True
        return b"".join(parts)

    async def drain(self) -> None:
        """Read and drop what the client still sends, for a short time: a connection that is closed
        with unread bytes may lose the answer on its way.
        """
        dropped = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while dropped < _DRAIN_BYTES:
                    message = await self._next()
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return
        except (TimeoutError, ClientGone):
            return

    def release(self) -> None:
        """Give back what the body holds."""
        self._admission.release(self.size)
        self.size = 0

    async def _next(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    def _hold(self, size: int, bytes_max: int) -> None:
        if self.size + size > bytes_max:
            raise _too_large("", bytes_max)
        self._admission.take(size)
        self.size += size


def _too_large(size: str, bytes_max: int) -> HttpProblem:
    had = f" and this one has {size}" if size else ""
    return HttpProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a request may have at most {bytes_max} bytes{had}; send several requests",
    )
