"""Runs a web application until a signal stops it, and checks where it may listen.

Always true:
- a server that other machines can reach has tokens;
- without tokens only requests to this machine by its own name are taken, so that a page in a
  browser cannot reach the server under a name of its own (DNS rebinding);
- calls that block run in threads of their own, and those that wait for one are bounded;
- after SIGTERM or SIGINT nothing new is taken, and `serve_app` returns.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import uvicorn

from semel.errors import ConfigurationError
from semel.web.guarded_http import guarded
from semel.web.problems import HttpProblem, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEEP_ALIVE_S = 75
_BACKLOG = 2_048
_CONNECTIONS_MAX = 8_192

LOOKUPS_MAX = 256

T = TypeVar("T")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host, by its name or its address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_safe(host: str, port: int, *, has_tokens: bool) -> None:
    """Raise `ConfigurationError` for a port that does not exist, and for an address that other
    machines can reach while there are no tokens.
    """
    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"--port must be between 0 and 65535, got {port}")
    if not has_tokens and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} can be reached from other machines, and then a token is "
            "required: pass --token-file with one token on each line, or --host 127.0.0.1"
        )


def require_own_name(host: bytes, what: str) -> None:
    """Raise `HttpProblem` if the `Host` of a request is not this machine. `what` is the server's
    name for the message.
    """
    written = host.decode("latin-1")
    name = written.rpartition(":")[0] if not written.endswith("]") else ""
    if not is_loopback((name or written).strip("[]")):
        raise HttpProblem(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this {what} has no tokens and takes requests to localhost or 127.0.0.1 only",
            field="host",
            value=shown(written),
        )


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at host and port. Raises `ConfigurationError` if that is not possible."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {host} port {port}: {error.strerror or error}; pass another --host "
            "or --port"
        ) from None
    with listener:
        yield listener


class Lookups:
    """Threads of their own for blocking calls; used by the thread of the event loop."""

    def __init__(self, name: str, threads: int = 1, waiting_max: int = LOOKUPS_MAX) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting_max = waiting_max
        self._waiting = 0

    def close(self) -> None:
        """Drop what did not begin yet, and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call in a thread and return its result. Raises `HttpProblem` if too many wait, and
        what the call raises.
        """
        if self._waiting >= self._waiting_max:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too many requests wait to read the ledger; send this one again",
                retry_after_s=1,
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._waiting -= 1


class _SignalledServer(uvicorn.Server):
    """uvicorn's server, which exits with the status 0 after a signal, and says when it takes
    requests and when it stops.
    """

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._started = started
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests, and say so: a signal that follows is known already."""
        await super().startup(sockets)
        self._started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first SIGTERM or SIGINT; at a second one without waiting for clients."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stopping()


async def serve_app(
    app: object,
    listener: socket.socket,
    host: str,
    *,
    timeout_s: float,
    started: Callable[[str], None],
    stopping: Callable[[], None],
    refused: Callable[[int], None],
) -> None:
    """Answer requests until a signal comes; `started` is called with the URL.

    `timeout_s` is the time in which a request has to arrive. `stopping` is called at the signal,
    `refused` with the status of each request that never reaches the app.
    """
    config = uvicorn.Config(
        cast("Any", app),
        http=cast("Any", guarded(timeout_s, refused)),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(timeout_s) + 1,
    )
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    server = _SignalledServer(config, lambda: started(url), stopping)
    await server.serve(sockets=[listener])
