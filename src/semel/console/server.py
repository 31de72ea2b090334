"""Runs a console until a signal stops it.

Always true:
- the ledger, the token file and the socket are checked before the first request is taken;
- after SIGTERM or SIGINT all live streams end, what was begun is answered, and `serve` returns.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from semel.console.access import Access
from semel.console.app import ConsoleApp
from semel.console.live import LiveFigures
from semel.console.render import Renderer
from semel.operate import open_ledger
from semel.runtime import SystemClock
from semel.web import Lookups, Tokens, listen, require_safe, serve_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from semel.ledger import Ledger
    from semel.runtime import Clock

PORT = 8098
REQUEST_S = 30.0
"""The time in which a request has to arrive."""

_THREADS = 2
"""One page does not wait for another, or for the live figures."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of `semel console`."""

    ledger: str
    host: str = "127.0.0.1"
    port: int = PORT
    token_file: Path | None = None

    def __post_init__(self) -> None:
        require_safe(self.host, self.port, has_tokens=self.token_file is not None)


def serve(settings: ConsoleSettings, started: Callable[[str], None]) -> None:
    """Show the ledger until SIGTERM or SIGINT; `started` is called with the URL when it is ready.

    Raises `ConfigurationError` if it cannot start, `LedgerUnavailable` if the ledger does not
    answer.
    """
    clock = SystemClock()
    with ExitStack() as stack:
        tokens = None if settings.token_file is None else Tokens(settings.token_file, clock)
        ledger = stack.enter_context(open_ledger(settings.ledger))
        ledger.store.scan("pipelines", "", limit=1)
        listener = stack.enter_context(listen(settings.host, settings.port))
        uvloop.run(_run(settings, clock, tokens, listener, ledger, started))


async def _run(
    settings: ConsoleSettings,
    clock: Clock,
    tokens: Tokens | None,
    listener: socket.socket,
    ledger: Ledger,
    started: Callable[[str], None],
) -> None:
    pages, polls = Lookups("console-pages", _THREADS), Lookups("console-live")
    access = Access(tokens, clock)
    renderer = Renderer(settings.ledger, clock, has_tokens=access.has_tokens)
    live = LiveFigures(ledger, renderer, polls, clock)
    app = ConsoleApp(ledger, renderer, access, live, pages)
    try:
        await serve_app(
            app,
            listener,
            settings.host,
            timeout_s=REQUEST_S,
            started=started,
            stopping=live.stop,
            refused=_ignore,
        )
    finally:
        await live.ended()
        polls.close()
        pages.close()


def _ignore(status: int) -> None:
    """Do nothing with a request that was refused before the app: nothing is counted here."""
    del status
