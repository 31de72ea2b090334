"""Who may send, and how much at once.

Always true:
- without tokens only requests to this machine by its own name are taken, so that a page in a
  browser cannot reach the ingress under a name of its own (DNS rebinding);
- requests and bytes that are held are bounded, in all and for each client; more is refused before
  it is read.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from semel.web import HttpProblem, require_own_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.ingress.requests import Headers
    from semel.web import Tokens

REQUESTS_MAX = 4_096
CLIENT_REQUESTS_MAX = 1_024
BYTES_MAX = 64 * 2**20


class Admission:
    """Admits requests; used by the thread of the event loop."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self._held: Counter[bytes] = Counter()
        self._requests = 0
        self.bytes = 0
        self.stopping = False

    def client(self, scope: Any, headers: Headers) -> bytes:
        """Return who sent a request: its token's digest, or its address. Raises `HttpProblem`."""
        if self._tokens is None:
            require_own_name(headers.get(b"host", b"localhost"), "ingress")
            return str((scope.get("client") or ("",))[0]).encode()
        client = self._tokens.name_of(headers.get(b"authorization"))
        if client is None:
            raise HttpProblem(
                HTTPStatus.UNAUTHORIZED,
                "the request has no token of this ingress; send `Authorization: Bearer TOKEN`",
                field="authorization",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        return client

    @contextmanager
    def held(self, client: bytes) -> Iterator[None]:
        """Hold a request until it is answered. Raises `HttpProblem` if there are too many."""
        self.require_open()
        if self._held[client] >= CLIENT_REQUESTS_MAX:
            raise HttpProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"this client has {CLIENT_REQUESTS_MAX} requests that are not answered yet; wait "
                "for answers, or send several events in one request",
                retry_after_s=1,
            )
        if self._requests >= REQUESTS_MAX:
            raise _full()
        self._held[client] += 1
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

    def stop(self) -> None:
        """Take nothing new from now on."""
        self.stopping = True

    def require_open(self) -> None:
        """Raise `HttpProblem` if the ingress stops."""
        if self.stopping:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the ingress is stopping, and nothing of this request was stored; send it again",
                retry_after_s=1,
            )

    def take(self, size: int) -> None:
        """Hold bytes of a body. Raises `HttpProblem` if there is no room."""
        if self.bytes + size > BYTES_MAX:
            raise _full()
        self.bytes += size

    def release(self, size: int) -> None:
        """Release bytes that were taken."""
        self.bytes -= size


def _full() -> HttpProblem:
    return HttpProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "too many requests wait for the ledger, and nothing of this one was stored; send it again",
        retry_after_s=1,
    )
