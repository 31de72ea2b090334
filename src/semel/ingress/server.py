"""Runs an ingress until a signal stops it.

Always true:
- the socket and the ledger are checked before the first request is taken;
- after SIGTERM or SIGINT nothing new is taken, what was accepted is committed and answered, and
  `serve` returns.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import uvloop

from semel.ingress.admission import Admission
from semel.ingress.app import IngressApp
from semel.ingress.group_commit import GroupCommit
from semel.ingress.metrics import Metrics
from semel.ingress.responses import Responses
from semel.ledger import Ledger, open_store
from semel.operate import Outcomes
from semel.runtime import SystemClock
from semel.streams import Inbox
from semel.web import Tokens, listen, serve_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from semel.ingress.settings import IngressSettings


def serve(settings: IngressSettings, started: Callable[[str], None]) -> None:
    """Take events until SIGTERM or SIGINT; `started` is called with the URL when it is ready.

    Raises `ConfigurationError` if it cannot start, `LedgerUnavailable` if the ledger does not
    answer.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        tokens = None if settings.token_file is None else Tokens(settings.token_file, clock)
        listener = stack.enter_context(listen(settings.host, settings.port))
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

    def stop() -> None:
        admission.stop()
        responses.stop()

    try:
        await serve_app(
            app,
            listener,
            settings.host,
            timeout_s=settings.timeout_s,
            started=started,
            stopping=stop,
            refused=refused,
        )
    finally:
        await asyncio.to_thread(writer.close)
        responses.close()
