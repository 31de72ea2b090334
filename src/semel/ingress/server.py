"""Runs an ingress until a signal stops it.

Always true:
- the socket and the ledger are checked before the first request is taken;
- after SIGTERM or SIGINT nothing new is taken, what was accepted is committed and answered, and
  `serve` returns.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import uvicorn
import uvloop

from semel.errors import ConfigurationError
from semel.ingress.admission import Admission
from semel.ingress.app import IngressApp
from semel.ingress.group_commit import GroupCommit
from semel.ingress.guarded_http import guarded
from semel.ingress.metrics import Metrics
from semel.ingress.responses import Responses
from semel.ingress.tokens import Tokens
from semel.ledger import Ledger, open_store
from semel.operate import Outcomes
from semel.runtime import SystemClock
from semel.streams import Inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.ingress.settings import IngressSettings

_KEEP_ALIVE_S = 75
_BACKLOG = 2_048
_CONNECTIONS_MAX = 8_192


class _IngressServer(uvicorn.Server):
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


def serve(settings: IngressSettings, started: Callable[[str], None]) -> None:
    """Take events until SIGTERM or SIGINT; `started` is called with the URL when it is ready.

    Raises `ConfigurationError` if it cannot start, `LedgerUnavailable` if the ledger does not
    answer.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        tokens = None if settings.token_file is None else Tokens(settings.token_file, clock)
        listener = stack.enter_context(_listener(settings))
        inbox = stack.enter_context(
            Inbox(settings.ledger, settings.stream, partitions=settings.partitions)
        )
        inbox.create()
        looks = stack.enter_context(Ledger(open_store(settings.ledger)))
        uvloop.run(_run(settings, tokens, listener, inbox, looks, started))


async def _run(
    settings: IngressSettings,
    tokens: Tokens | None,
    listener: socket.socket,
    inbox: Inbox,
    looks: Ledger,
    started: Callable[[str], None],
) -> None:
    counted = Metrics()
    admission = Admission(tokens)
    writer = GroupCommit(inbox, asyncio.get_running_loop(), counted, SystemClock())
    responses = Responses(Outcomes(looks, settings.stream, settings.pipelines))
    app = IngressApp(settings, inbox, writer, admission, responses, counted)

    def refused(status: int) -> None:
        counted.requests[status] += 1

    config = uvicorn.Config(
        cast("Any", app),
        http=cast("Any", guarded(settings.timeout_s, refused)),
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
        timeout_graceful_shutdown=int(settings.timeout_s) + 1,
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    try:
        server = _IngressServer(config, lambda: started(url), admission.stop)
        await server.serve(sockets=[listener])
    finally:
        await asyncio.to_thread(writer.close)
        responses.close()


@contextmanager
def _listener(settings: IngressSettings) -> Iterator[socket.socket]:
    """Listen at host and port. Raises `ConfigurationError` if that is not possible."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {settings.host} port {settings.port}: {error.strerror or error}; "
            "pass another --host or --port"
        ) from None
    with listener:
        yield listener
