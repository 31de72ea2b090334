"""Live figures: one poll of the ledger each second for all clients, as server-sent events.

Always true:
- the ledger is polled only while there are clients, once for each page that any of them shows;
- clients are bounded, and a slow one gets the newest figures and never a queue of older ones;
- at shutdown every stream ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from semel.errors import SemelError
from semel.events.encoding import ascii_json
from semel.operate import HeartbeatWatch, read_pipeline_detail, read_pipelines_page
from semel.web import HttpProblem, Lookups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from semel.console.render import Renderer
    from semel.ledger import Ledger
    from semel.runtime import Clock

CLIENTS_MAX = 64
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class LivePage:
    """What a client looks at: one pipeline, or a page of pipelines after a key."""

    pipeline: str | None = None
    after: str = ""


@dataclass(frozen=True, slots=True)
class _Figures:
    """The regions of a page by their ids as of a time, or why they could not be read."""

    at: float
    regions: Mapping[str, str]
    trouble: str = ""


class LiveFigures:
    """Streams figures to clients; used by the thread of the event loop, except for `read`."""

    def __init__(self, ledger: Ledger, renderer: Renderer, polls: Lookups, clock: Clock) -> None:
        self._ledger = ledger
        self._renderer = renderer
        self._polls = polls
        self._clock = clock
        self._watch = HeartbeatWatch(clock)
        self._pages: Counter[LivePage] = Counter()
        self._newest: dict[LivePage, _Figures] = {}
        self._polled = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End every stream."""
        self._stopped.set()
        self._polled.set()

    async def ended(self) -> None:
        """Wait for the last poll."""
        self.stop()
        if self._task is not None:
            await self._task

    def moving(self) -> dict[str, bool]:
        """Return which heartbeats are known to move, and which are known not to."""
        return self._watch.moving()

    def require_room(self) -> None:
        """Raise `HttpProblem` if there are too many clients, or the console stops."""
        if self._stopped.is_set() or self._pages.total() >= CLIENTS_MAX:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{CLIENTS_MAX} pages show live figures already; close some, or reload this one",
                retry_after_s=5,
            )

    async def stream(self, page: LivePage, may_go_on: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield events with the regions that changed, until the client goes, the console stops, or
        the client may see no more: its session has ended.
        """
        self._pages[page] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            sent: dict[str, str] = {}
            yield b"retry: 2000\n\n"
            while not self._stopped.is_set() and may_go_on():
                polled, known = self._polled, self._newest.get(page)
                if known is not None:
                    yield _news(known, sent)
                await polled.wait()
        finally:
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]
                self._newest.pop(page, None)

    async def _poll(self) -> None:
        while self._pages and not self._stopped.is_set():
            pages = tuple(self._pages)
            try:
                found = await self._polls.run(lambda pages=pages: self._read(pages))  # type: ignore[misc]
            except HttpProblem:
                found = {}
            self._newest |= {page: each for page, each in found.items() if page in self._pages}
            polled, self._polled = self._polled, asyncio.Event()
            polled.set()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._stopped.wait()
            except TimeoutError:
                continue

    def _read(self, pages: Iterable[LivePage]) -> dict[LivePage, _Figures]:
        """Read what the clients look at; runs in the thread for polls."""
        return {page: self._read_one(page) for page in pages}

    def _read_one(self, page: LivePage) -> _Figures:
        moving, at = self._watch.moving(), self._clock.wall()
        try:
            if page.pipeline is None:
                found = read_pipelines_page(self._ledger, page.after, moving)
                for each in found.pipelines:
                    self._watch.see(each.status)
                return _Figures(at, self._renderer.pipelines_regions(found))
            detail = read_pipeline_detail(self._ledger, page.pipeline, moving)
            self._watch.see(detail.overview.status)
            return _Figures(at, self._renderer.pipeline_regions(detail))
        except SemelError as error:
            return _Figures(at, {}, str(error))


def _news(known: _Figures, sent: dict[str, str]) -> bytes:
    """Return events: what a client does not have yet, noted as sent, and the time of the poll."""
    changed = {name: text for name, text in known.regions.items() if sent.get(name) != text}
    sent |= changed
    news = _event("regions", changed) if changed else b""
    return news + _event("polled", {"at": known.at, "trouble": known.trouble})


def _event(name: str, value: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {ascii_json(dict(value))}\n\n".encode()
